"""Checks the jobs of a sweep before the first of them begins."""

from __future__ import annotations

import contextlib
import json
import re
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from rlrun.cli import compose
from rlrun.core.errors import UserError
from rlrun.experiments.grid import Interval, bare

TELL_SEC = 10.0  # between two sentences that say how many jobs are checked
GOLDEN = 0.618033988749895  # share of an interval below a value that is whole in hardly any interval


class JobCheck:
    """Checks jobs before they begin, and remembers what it has planned."""

    def __init__(self, *, plans: bool, compares: bool = False, cwd: str | None = None):
        """plans: whether to plan the runs too, as rlrun train --plan does. compares: whether their returns are
        compared. cwd: the folder in which they run; None: this one."""
        self.planned: set[str] | None = set() if plans else None
        self.compares, self.cwd = compares, cwd
        # By the words of jobs without their seeds: a hash of the options of each such job that was checked.
        self.options: dict[tuple[str, ...], list[int]] = {}

    def __call__(self, words: Sequence[str], name: str) -> dict[str, Any]:
        """The plain config of a job. UserError with the job's name where it would not start."""
        with contextlib.chdir(self.cwd) if self.cwd is not None else contextlib.nullcontext():
            config = checked(words, name, self.planned)
        if self.compares:
            check_returns(config)
        return config

    def all(self, jobs: Sequence[tuple[str, Sequence[str]]]) -> dict[str, Any]:
        """Checks jobs, given their names and words, and returns the plain config of the first. Says how far it is."""
        first: dict[str, Any] = {}
        told = time.monotonic()
        for number, (name, words) in enumerate(jobs):
            if not self._differs_in_seed(words):
                config = self(words, name)
                options = json.dumps({**config, "seed": None}, sort_keys=True, default=str)
                self.options.setdefault(without_seed(words), []).append(hash(options))
                first = first or config
            if time.monotonic() - told >= TELL_SEC:
                told = time.monotonic()
                print(f"  checked {number + 1} of {len(jobs)} jobs", file=sys.stderr, flush=True)
        return first

    def _differs_in_seed(self, words: Sequence[str]) -> bool:
        """Whether two jobs were checked that differ from this one in the seed alone, and in no option that takes it."""
        whole = all(re.fullmatch(r"seed=(0|[1-9]\d{0,8})", word) for word in words if word.startswith("seed="))
        checked_before = self.options.get(without_seed(words), [])
        return whole and len(checked_before) > 1 and len(set(checked_before)) == 1


def without_seed(words: Sequence[str]) -> tuple[str, ...]:
    """The words of a job but for its seed."""
    return tuple(word for word in words if not word.startswith("seed="))


def check_returns(config: dict[str, Any]) -> None:
    """UserError where a run that is compared with others by its return has none."""
    if config["runner"]["name"] != "offline" or (config["eval"]["every"] and config["env"].get("family") != "data"):
        return
    raise UserError(
        "--search compares runs by their return, and these learn from data and play no games: say how often to"
        " evaluate with eval.every=, and in which environment with env="
    )


def check_goal(config: dict[str, Any]) -> None:
    """UserError where the runs of a search end as soon as they have a certain return."""
    if (goal := config["stop"]["return_mean"]) is not None:
        raise UserError(
            f"--search compares the returns at the ends of runs, and stop.return_mean={goal:g} ends every good run at"
            " that return: add stop.return_mean=null"
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
        values = fill_spec(with_numbers(plain(cfg)))
        for note in check_tuned(choices, values):
            print(f"  {note}", flush=True)
        given, auto = set_by_user(values), capacity_is_auto(values)
        values, _ = settled(values)
        config = type_config(values)
        check_logger(values)
        found.append(values)
        # The plan of a run on other machines needs its cluster, and is left to the run.
        kind = plan_key(values, given)
        if planned is not None and config.run.resources.ray is None and kind not in planned:
            check_plan(values, given, auto)
            planned.add(kind)
        return 0

    try:
        compose(list(words), job)
    except UserError as error:
        raise UserError(f"job {name}: {error}") from None
    return found[0]


def plan_key(values: dict[str, Any], given: Collection[str]) -> str:
    """The options of a job without its seed and with only the signs of fractions such as algo.lr, and the names of
    those that differ from their defaults.

    No plan depends on more, but an option that is 0 may leave others without a use, and one without a use is refused
    where it is given. A plan takes half a second, and three with Atari's images, which is too long for each job of a
    large grid."""
    from rlrun.loggers.mlflow import flatten

    options = {
        key: f"a fraction, {value > 0}, {value == 0}" if key.startswith("algo.") and isinstance(value, float) else value
        for key, value in flatten(values)
        if key != "seed"
    }
    return json.dumps([options, sorted(given)], sort_keys=True, default=str)


def check_fractions(config: dict[str, Any], intervals: Mapping[str, Interval]) -> None:
    """UserError where an interval draws fractions for an option that takes whole numbers alone.

    config: that of a job with the lowest values, which say little: a whole option takes 16 from interval(16,64)."""
    for key, one in intervals.items():
        inside = one.low + GOLDEN * (one.high - one.low)
        if one.whole or not one.low.is_integer() or float(one.text(inside)).is_integer():
            continue
        if is_whole(config, bare(key), int(one.low)):
            written = f"interval({one.low:.12g},{one.high:.12g})"
            raise UserError(
                f"{key} takes whole numbers, and its interval would draw fractions too: write"
                f" int({f'tag(log,{written})' if one.log else written})"
            )


def is_whole(config: dict[str, Any], option: str, value: int) -> bool:
    """Whether an option of a plain config, which may have this value, takes whole numbers alone."""
    import copy

    from rlrun.commands.resume import set_option
    from rlrun.config.run import type_config
    from rlrun.config.types import numbers_read

    config = copy.deepcopy(config)
    with numbers_read() as found, contextlib.suppress(UserError):
        set_option(config, option, str(value))
        type_config(config)
    return isinstance(found.get(option), int)


def check_changes(jobs: Callable[[str, str], dict[str, Any]], changes: Mapping[str, Sequence[str]]) -> None:
    """UserError where members of a population could not change these options while they train.

    jobs(key, value) returns the plain config of a member with this value. changes: values of every option to be tried;
    what a run saves must not depend on them, because members copy it from each other."""
    from rlrun.experiments.population import check_number

    for key, values in changes.items():
        configs = [jobs(key, value) for value in values]
        for config in configs:
            check_number(key, config)
        begun = [state_at_the_start(config) for config in configs]
        first = begun[0]
        for value, other in zip(values, begun, strict=True):
            if {name: x.shape for name, x in first.items()} != {name: x.shape for name, x in other.items()}:
                raise UserError(
                    f"{key}: networks with {values[0]} and with {value} have other shapes, so that no member could copy"
                    " the other's weights; try them with --search tpe or a grid"
                )
            if not all(torch_equal(x, other[name]) for name, x in first.items()):
                raise UserError(
                    f"{key} only sets where a run begins, and a member that copies another goes on from that member's"
                    " value; try values with --search tpe or a grid"
                )


def state_at_the_start(values: dict[str, Any]) -> dict[str, Any]:
    """The tensors with which the learner of a run begins, by name."""
    import copy

    from rlrun.commands.train import planned_here
    from rlrun.config.run import type_config
    from rlrun.core.ranks import Ranks
    from rlrun.runtime.build import build
    from rlrun.runtime.cluster import machine_for

    config = copy.deepcopy(values)
    config["resources"] |= {"device": "cpu", "ray": None}
    plan = planned_here(config, machine_for(type_config(config)), {}, [], False)
    parts = build(plan, Ranks(world=plan.learners_in_lockstep))
    parts.callbacks = []
    return dict(parts.algorithm().state_dict())


def torch_equal(one: Any, other: Any) -> bool:
    import torch

    return torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


def check_plan(values: dict[str, Any], given: dict[str, Any], auto: bool) -> None:
    """UserError where rlrun train would refuse this config on this machine. The arguments are those of planned_here()
    and refuse_unused()."""
    import copy

    from rlrun.commands.train import planned_here
    from rlrun.config.run import type_config
    from rlrun.runtime.cluster import machine_for
    from rlrun.runtime.preflight import preflight
    from rlrun.runtime.unused import refuse_unused

    machine = machine_for(type_config(values))
    plan = planned_here(copy.deepcopy(values), machine, given, [], auto)
    refuse_unused(plan, given)
    if plan.resources.device.type == "cpu":  # the sweep's own process builds nothing on a GPU, which is for its jobs
        preflight(plan, machine)
