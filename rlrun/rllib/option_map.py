"""RLlib's option names and ours, as data: rlrun/rllib/options/<algo>.yaml beside those of the algorithms it is based on, and common.yaml."""

from __future__ import annotations

from typing import Any

import yaml

from rlrun.config.paths import base_options, inner_algorithm, package


def option_map(algo: str) -> list[dict[str, Any]]:
    """Rows {rllib, rlrun, why}: rlrun is None where there is no counterpart, and why then says the reason. Options that the algorithm does not have
    are left out by their own table's row."""
    folder = package() / "rllib" / "options"
    rows: dict[str, dict[str, Any]] = {}
    own: set[str] = set()  # said by the algorithm's own table, or by those of what it is based on
    for name in (algo, *(base.removeprefix("algo/").removesuffix("/base") for base in base_options(algo)), "common"):
        path = folder / f"{name}.yaml"
        for row in yaml.safe_load(path.read_text()) if path.is_file() else []:
            rows.setdefault(row["rllib"], row)
        if name != "common":
            own |= rows.keys()
    inner = inner_algorithm(algo)
    for row in option_map(inner) if inner else []:
        inside = (row["rlrun"] or "").replace("algo.", "algo.inner.") or None
        if row["rllib"] not in own:
            rows[row["rllib"]] = {**row, "rlrun": inside}
    return list(rows.values())
