"""Ape-X: distributed prioritized experience replay around another algorithm (Horgan et al. 2018, arXiv:1803.00933).

The inner algorithm is one that learns from a replay. Samplers, replay shards and the learner are processes of their
own. Priorities are the inner algorithm's: absolute TD errors, or the KL divergences of C51 and Rainbow. The first ones
come from what the samplers recorded.

Every environment has an epsilon of its own, from exploration.epsilon of the first to epsilon_min of the last (0.4 to
0.4^8, section 4.1). Noisy layers (algo@algo.inner=rainbow) explore too, with noise that is drawn for every step as in
the inner algorithm; algo.inner.exploration.epsilon=0 leaves all exploration to them. With several agents
(algo@algo.inner=qmix, vdn or iql; RLlib's APEX_QMIX) all agents of an environment have its epsilon, and a row of the
replay holds all of them.

Rows, recorded, metrics: those of the inner algorithm (algo.inner), whose input_priorities must be true. As in RLlib,
statistics count the episodes of only those columns that explore least (counted_share).
Differs from the paper: first priorities are computed where rows are stored, from the values that the samplers
recorded, which gives the same numbers. Rows leave the replay when they are overwritten, not every 100 updates.
Checked: tests/algos/test_dqn.py (first priorities, the ladder of epsilons), tests/algos/test_apex_qmix.py (several
agents), tests/runners/test_distributed_replay.py, tuned/apex/.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any

from torch import Tensor

from rlrun.core.algorithm import Algorithm, Inner, LearnerContext, Needs, Update
from rlrun.core.batch import Batch
from rlrun.core.conditions import SEVERAL_ENVS, OnlyFor
from rlrun.core.policy import Policy
from rlrun.core.ranges import PositiveShare
from rlrun.core.schedule import Clock
from rlrun.core.specs import EnvSpec
from rlrun.models.model import Model


@dataclass(frozen=True, kw_only=True)
class Config:
    name: str
    inner: Any
    counted_share: Annotated[float, PositiveShare, OnlyFor(SEVERAL_ENVS)]

    def __post_init__(self):
        needs = self.inner.algorithm.needs(self.inner.cfg)
        if needs.replay is None or not needs.replay.first_priority:
            raise ValueError("inner.input_priorities must be true: Ape-X needs priorities from the samplers")


class Apex(Algorithm):
    holds_another = True
    cfg: Config
    inner: Algorithm

    @classmethod
    def needs(cls, cfg: Config) -> Needs:
        needs = cfg.inner.algorithm.needs(cfg.inner.cfg)
        return replace(needs, only_weights=False, counted_from=1 - cfg.counted_share)

    @classmethod
    def can_hold(cls, inner: type[Algorithm]) -> str | None:
        known = inner.knows_first_priority
        return (
            None
            if known
            else "Ape-X needs priorities from samplers: use dqn, c51, rainbow, qr_dqn, iqn, r2d2, ddpg or td3, or with"
            " several agents qmix, vdn or iql"
        )

    @classmethod
    def make_policy(cls, spec: EnvSpec, model: Model, cfg: Config) -> Policy:
        return cfg.inner.algorithm.make_policy(spec, model, cfg.inner.cfg)

    @classmethod
    def first_priority(cls, cfg: Config, rows: Batch) -> Tensor:
        return cfg.inner.algorithm.first_priority(cfg.inner.cfg, rows)

    def __init__(self, policy: Policy, spec: EnvSpec, cfg: Config, ctx: LearnerContext):
        super().__init__(policy, spec, cfg, ctx)
        inner: Inner = cfg.inner
        self.inner = inner.algorithm(policy, spec, inner.cfg, ctx)

    def update(self, batch: Batch, clock: Clock) -> Update:
        return self.inner.update(batch, clock)
