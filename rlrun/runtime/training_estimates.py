"""Estimates of the policy's value from recorded episodes while a run learns (eval.estimate)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch

from rlrun.config.run import Typed
from rlrun.core.algorithm import Algorithm
from rlrun.core.errors import UserError
from rlrun.core.policy import Policy
from rlrun.core.schedule import Clock
from rlrun.core.specs import EnvSpec
from rlrun.datasets.open import open_source
from rlrun.datasets.parquet import flat_fields
from rlrun.datasets.trajectories import Source, Trajectory
from rlrun.runtime.estimate import FIT, NEED_CHANCES, Question, discount_of, endless, estimate
from rlrun.runtime.plan import Plan
from rlrun.runtime.recorded_episodes import RecordedEpisodes, check_spaces, is_cut, log_prob, trajectories


class TrainingEstimates:
    """Makes the estimates of a run, which draw no number from its own random streams."""

    def __init__(self, plan: Plan):
        config = plan.config
        cfg, self.model = config.run.eval.estimate, config.run.model
        self.source, self.spec, self.cfg = source_of(config, plan.spec), plan.spec, cfg
        self.policy = cpu_policy(plan)
        self.question = Question(
            methods=cfg.methods,
            discount=asked_discount(config),
            interval=cfg.interval,
            confidence=cfg.confidence,
            mode="greedy" if cfg.greedy else "explore",
            seed=config.run.seed,
        )
        self.fit = replace(FIT, updates=cfg.updates)
        self.episodes: RecordedEpisodes | None = None  # they are read when they are needed first, and stay in memory

    def __call__(self, algorithm: Algorithm, clock: Clock) -> Mapping[str, float | None]:
        if self.episodes is None:
            self.episodes = RecordedEpisodes(self.source, self.spec, self.cfg.episodes)
        self.policy.load_state_dict(algorithm.policy.state_dict())
        with torch.random.fork_rng(devices=[]):  # networks are made with the global generator
            report = estimate(self.policy, self.episodes, clock, self.model, self.question, self.fit)
        made: dict[str, float | None] = {}
        for one in report.answers:
            made |= {one.method: one.value, f"{one.method}_low": one.low, f"{one.method}_high": one.high}
            made[f"{one.method}_effective"] = one.effective
        return made


def asked_discount(config: Typed) -> float:
    """The discount of the return that is estimated."""
    asked = config.run.eval.estimate.discount
    return discount_of(config.algo) if asked is None else asked


def cpu_policy(plan: Plan) -> Policy:
    """The run's policy for this process, on the CPU."""
    return replace(plan.policy_factory(acting=True), precision="fp32")()


def source_of(config: Typed, spec: EnvSpec) -> Source:
    """The data that estimates are made from. Raises UserError if nobody says which, or if they cannot be read."""
    cfg, data = config.run.eval.estimate, config.run.data
    paths = list(data.shares) if cfg.path is None else [cfg.path]
    if len(paths) != 1:
        why = f"data.path has {len(paths)} data sets" if paths else "there is no data.path"
        raise UserError(
            f"eval.estimate.methods={','.join(cfg.methods)} estimates from one data set, and {why}: say which with"
            " eval.estimate.path=DIR"
        )
    return open_source(paths[0], spec, data.actions_normalized)


def check_estimates(plan: Plan, available: int) -> None:
    """Raises UserError before the start if estimates could not be made.

    available: bytes of free main memory."""
    if not plan.estimates:
        return
    cfg, spec = plan.config.run.eval.estimate, plan.spec
    source, methods = source_of(plan.config, spec), "eval.estimate.methods"
    check_spaces(source, spec)
    needing = [method for method in cfg.methods if method in NEED_CHANCES]
    rows, unknown, found, cut, first = 0, 0, 0, 0, None
    for each in first_episodes(source, cfg.episodes):
        first = each if first is None else first
        rows, unknown, found = rows + len(each), unknown + (not each.has_log_prob), found + 1
        cut += is_cut(each)
    if first is None:
        raise UserError(f"{methods}: {source.name} has no whole episode to estimate from")
    infinite, why = endless(cfg.methods, asked_discount(plan.config), cut, found)
    if infinite:
        raise UserError(
            f"{methods}={','.join(infinite)}: {why}; give a discount below 1, such as eval.estimate.discount=0.99"
        )
    if needing and unknown:
        raise UserError(
            f"{methods}={','.join(needing)} needs the probabilities of the actions, and {source.name} has none in"
            f" {unknown:,} of {found:,} episodes; dm needs none"
        )
    if needing:
        one = RecordedEpisodes(Listed(source, first), spec)
        try:
            log_prob(one, cpu_policy(plan), "greedy" if cfg.greedy else "explore", Clock())
        except UserError as error:
            raise UserError(f"{methods}={','.join(needing)}: {error}; dm needs no probabilities") from None
    fields = flat_fields({"obs": spec.obs_rows, "action": spec.action_row})
    need = rows * sum(math.prod(field.shape) * field.dtype.itemsize for _, field in fields)
    if need > available:
        raise UserError(
            f"{methods}: {found:,} episodes of {source.name} take {need / 1e9:.3g} GB of memory, and"
            f" {available / 1e9:.3g} GB are free; eval.estimate.episodes={int(found * available / need / 2)} reads"
            " fewer"
        )


def first_episodes(source: Source, count: int | None) -> Iterator[Trajectory]:
    """Yields the first whole episodes of a source."""
    found = 0
    for one in trajectories(source):
        if one.whole and one.steps:
            yield one
            found += 1
            if found == count:
                return


class Listed:
    """A Source of one trajectory of another one."""

    most_rows = None

    def __init__(self, source: Source, one: Trajectory):
        self.facts, self.name, self.identity, self.one = source.facts, source.name, source.identity, one

    def pieces(self) -> int:
        return 1

    def read(self, piece: int) -> Iterator[Trajectory]:
        yield self.one
