"""Reads the tables of RLlib's option names and rlrun's.

They are rlrun/rllib/options/<algo>.yaml, the tables of the algorithms that it inherits from, and common.yaml.
"""

from __future__ import annotations

from typing import Any

import yaml

from rlrun.config.paths import base_options, group_defaults, inner_algorithm, model_of, options, output_of, package


def option_map(algo: str, inner: str | None = None) -> list[dict[str, Any]]:
    """Returns rows {rllib, rlrun, why, same}. If an option has no counterpart, rlrun is None and why gives the reason;
    `same`, if there, is RLlib's value that means what rlrun does, so that nothing is lost with it.

    A row of the algorithm's own table replaces the common row of an option that the algorithm does not have. inner: the
    algorithm inside; None: that of conf/algo/<algo>.yaml, if there is one.
    """
    folder = package() / "rllib" / "options"
    rows: dict[str, dict[str, Any]] = {}
    own: set[str] = set()  # options in the algorithm's table or in those that it inherits
    for name in (algo, *(base.removeprefix("algo/").removesuffix("/base") for base in base_options(algo)), "common"):
        path = folder / f"{name}.yaml"
        for row in yaml.safe_load(path.read_text()) if path.is_file() else []:
            rows.setdefault(row["rllib"], row)
        if name != "common":
            own |= rows.keys()
    inner = inner or inner_algorithm(algo)
    for row in option_map(inner) if inner else []:
        inside = (row["rlrun"] or "").replace("algo.", "algo.inner.") or None
        if row["rllib"] not in own:
            rows[row["rllib"]] = {**row, "rlrun": inside}
    without = _of_other_policies(inner or algo)
    return [
        {**row, "rlrun": None, "why": f"{row['rlrun']} is for other algorithms, whose policies say something else"}
        if row["rlrun"] in without
        else row
        for row in rows.values()
    ]


def _of_other_policies(algo: str) -> set[str]:
    """Options of conf/model/output that an algorithm does not have, and all of conf/model/auto.yaml and of memories
    where its networks are its own."""
    every = {name for one in options("model/output") for name in group_defaults("model/output", one)}
    without = {f"model.{name}" for name in every - group_defaults("model/output", output_of(algo)).keys()}
    own = group_defaults("model", model_of(algo)).keys()
    if "stoch" in own:
        without |= {f"model.{name}" for name in group_defaults("model", "auto").keys() - own}
        memories = {name for one in options("model/memory") for name in group_defaults("model/memory", one)}
        without |= {f"model.memory.{name}" for name in memories}
    return without
