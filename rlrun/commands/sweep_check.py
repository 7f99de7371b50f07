"""Checks the jobs of a sweep before the first of them begins."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from typing import Any

from rlrun.cli import compose
from rlrun.core.errors import UserError


class JobCheck:
    """Checks jobs before they begin, and remembers what it has planned."""

    def __init__(self, *, plans: bool, compares: bool = False, cwd: str | None = None):
        """plans: whether to plan the runs too, as rlrun train --plan does. compares: whether their returns are
        compared. cwd: the folder in which they run; None: this one."""
        self.planned: set[str] | None = set() if plans else None
        self.compares, self.cwd = compares, cwd

    def __call__(self, words: Sequence[str], name: str) -> dict[str, Any]:
        """The plain config of a job. UserError with the job's name where it would not start."""
        with contextlib.chdir(self.cwd) if self.cwd is not None else contextlib.nullcontext():
            config = checked(words, name, self.planned)
        if self.compares:
            check_returns(config)
        return config


def check_returns(config: dict[str, Any]) -> None:
    """UserError where a run that is compared with others by its return has none."""
    if config["runner"]["name"] != "offline" or (config["eval"]["every"] and config["env"].get("family") != "data"):
        return
    raise UserError(
        "--search compares runs by their return, and these learn from data and play no games: say how often to"
        " evaluate with eval.every=, and in which environment with env="
    )


def checked(words: Sequence[str], name: str, planned: set[str] | None = None) -> dict[str, Any]:
    """The plain config of a job. UserError with the job's name where it would not start.

    planned: which plans have been made already. If it is given, the job is planned too, unless one like it was."""
    from rlrun.commands.train import capacity_is_auto, check_tuned
    from rlrun.config.automatic import settled
    from rlrun.config.run import type_config, with_numbers
    from rlrun.config.saved import set_by_user
    from rlrun.config.types import plain
    from rlrun.core.passwords import check_logger
    from rlrun.runtime.data_plan import fill_spec

    found: list[dict[str, Any]] = []

    def job(cfg: Any, choices: dict[str, Any]) -> int:
        values = with_numbers(fill_spec(plain(cfg)))
        for note in check_tuned(choices, values):
            print(f"  {note}", flush=True)
        given, auto = set_by_user(values), capacity_is_auto(values)
        values, _ = settled(values)
        config = type_config(values)
        check_logger(values)
        found.append(values)
        # The plan of a run on other machines needs its cluster, and is left to the run.
        if planned is not None and config.run.resources.ray is None and (kind := plan_key(values)) not in planned:
            check_plan(values, given, auto)
            planned.add(kind)
        return 0

    try:
        compose(list(words), job)
    except UserError as error:
        raise UserError(f"job {name}: {error}") from None
    return found[0]


def plan_key(values: dict[str, Any]) -> str:
    """The options of a job without its seed and without fractions such as algo.lr, on which no plan depends. A plan
    takes half a second, and three with Atari's images, which is too long for each job of a large grid."""
    from rlrun.loggers.mlflow import flatten

    options = {
        key: "a fraction" if key.startswith("algo.") and isinstance(value, float) else value
        for key, value in flatten(values)
        if key != "seed"
    }
    return json.dumps(options, sort_keys=True, default=str)


def check_plan(values: dict[str, Any], given: dict[str, Any], auto: bool) -> None:
    """UserError where rlrun train would refuse this config on this machine. The arguments are those of planned_here()
    and refuse_unused()."""
    import copy

    from rlrun.commands.train import planned_here
    from rlrun.config.run import type_config
    from rlrun.runtime.build import preflight
    from rlrun.runtime.cluster import machine_for
    from rlrun.runtime.unused import refuse_unused

    machine = machine_for(type_config(values))
    plan = planned_here(copy.deepcopy(values), machine, given, [], auto)
    refuse_unused(plan, given)
    if plan.resources.device.type == "cpu":  # the sweep's own process builds nothing on a GPU, which is for its jobs
        preflight(plan, machine)
