"""BC: behaviour cloning, which learns the actions of a data set by maximum likelihood (Pomerleau 1989, "ALVINN").

Rows: single rows of a data set or, with memory, sequences that begin with an empty memory at any row of a trajectory.
Recorded: nothing. Rewards are not looked at.
Options: entropy_coef and log_std_coef keep the policy from becoming certain. With memory, sequence_length is the number
of rows that are learnt from; burn_in rows before them only fill the memory.
Differs from RLlib: sequences may begin anywhere, and not only at every sequence_length-th row of an episode.
The policy is that of ppo and a2c, so that a run of theirs can begin with its weights (init=RUN_DIR). Its values are not
learnt.
Metrics: learn/policy_loss: mean of minus log pi of the actions in the data, minus the log standard deviation's part;
entropy; grad_norm before clipping; lr.
Checked: tests/algos/test_offline.py (the loss by hand; sequences against single rows), tuned/bc/.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from rlrun.core.algorithm import Algorithm, FromReplay, LearnerContext, Needs, Update, recorded
from rlrun.core.batch import Batch
from rlrun.core.conditions import CONTINUOUS, OnlyFor, OnlyWith
from rlrun.core.errors import UserError
from rlrun.core.optimizer import OptimizerConfig
from rlrun.core.ranges import Count, NotNegative
from rlrun.core.schedule import Clock, Schedule
from rlrun.core.specs import EnvSpec
from rlrun.families.off_policy import WITH_MEMORY
from rlrun.models.model import Model
from rlrun.ops.distributions import Gaussian, Joint
from rlrun.policies import DistributionPolicy, Outputs


@dataclass(frozen=True, kw_only=True)
class Config:
    """The options of bc, which marwil shares."""

    name: str
    batch_size: Annotated[int, Count]
    lr: Annotated[Schedule, NotNegative]
    optimizer: OptimizerConfig
    max_grad_norm: Annotated[float, NotNegative]
    entropy_coef: Schedule
    log_std_coef: Annotated[
        float, OnlyFor(CONTINUOUS), OnlyWith("model.action_distribution", "gaussian", "squashed_gaussian")
    ]
    sequence_length: Annotated[Annotated[int, Count] | None, WITH_MEMORY]
    burn_in: Annotated[int, NotNegative, WITH_MEMORY]

    def __post_init__(self):
        if self.sequence_length is None and self.burn_in:
            raise ValueError("burn_in is for sequences: set sequence_length, for a model with memory")
        if self.batch_size % (self.sequence_length or 1):
            raise ValueError(
                f"batch_size {self.batch_size} must be a multiple of sequence_length {self.sequence_length}"
            )

    @property
    def rows(self) -> int:
        """Rows of a fragment that is drawn from the data."""
        return 1 if self.sequence_length is None else self.burn_in + self.sequence_length

    @property
    def columns(self) -> int:
        """Fragments in a train batch."""
        return self.batch_size // (self.sequence_length or 1)

    @property
    def from_replay(self) -> FromReplay:
        sequences = self.sequence_length is not None
        return FromReplay(
            fragment_length=1,
            num_envs=1,
            learning_starts=self.rows,
            ratio=1.0,
            rows_from=self.rows,
            rows_learnt=self.sequence_length or 1,
            obs="all" if sequences else "ends",
            sequences=sequences,
            priorities=False,
        )

    def check_memory(self, model: Model) -> None:
        """Raises UserError if a memory has no sequences to learn from, or sequences have no memory to train."""
        remembers = model.cfg.memory.kind != "none"
        if remembers and self.sequence_length is None:
            raise UserError(f"{self.name} with memory learns from sequences: set algo.sequence_length, such as 16")
        if not remembers and self.sequence_length is not None:
            raise UserError("algo.sequence_length is for a model with memory: set model/memory=lstm, gru or gtrxl")


class BC(Algorithm):
    cfg: Config
    policy: DistributionPolicy

    @classmethod
    def needs(cls, cfg: Config) -> Needs:
        memory = 0 if cfg.sequence_length is None else 1
        return Needs(rows=cfg.rows, columns=cfg.columns, core_every=memory, replay=cfg.from_replay)

    @classmethod
    def make_policy(cls, spec: EnvSpec, model: Model, cfg: Config) -> DistributionPolicy:
        cfg.check_memory(model)
        return DistributionPolicy(spec, model)

    def __init__(self, policy: DistributionPolicy, spec: EnvSpec, cfg: Config, ctx: LearnerContext):
        super().__init__(policy, spec, cfg, ctx)
        self.optimizer = ctx.optimizer(policy.parameters(), cfg.optimizer, cfg.lr, cfg.max_grad_norm)

    @recorded
    def update(self, batch: Batch, clock: Clock) -> Update:
        loss, shares, same = self.loss(batch, clock)
        steps = self.optimizer.step(loss, clock)
        return Update(self.report(shares, same, steps))

    def loss(self, batch: Batch, clock: Clock) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
        """Returns this learner's shares of the batch's loss [] and of metrics, and metrics that all learners know."""
        rows, outputs = self.unrolled(batch)
        return *self.imitation(rows, outputs, torch.ones_like(rows.reward), clock), {}

    def imitation(
        self, rows: Batch, outputs: Outputs, weight: Tensor, clock: Clock
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns this learner's shares of the mean [] of -weight * log pi - entropy_coef * entropy, and of
        metrics. log_std_coef * log standard deviation is added to log pi, to keep the policy from becoming certain.

        rows and weight are [T, B]."""
        cfg, mean = self.cfg, self.mean_over(rows.valid)
        dist = outputs.dist[: len(rows.valid)].given(rows.action)
        log_prob = dist.log_prob(rows.action)  # [T, B]
        if cfg.log_std_coef != 0:
            log_prob = log_prob + cfg.log_std_coef * mean_log_std(dist)
        policy_loss, entropy = -mean(weight * log_prob), mean(dist.entropy())
        return policy_loss - cfg.entropy_coef(clock) * entropy, {"policy_loss": policy_loss, "entropy": entropy}

    def unrolled(self, batch: Batch) -> tuple[Batch, Outputs]:
        """Returns the rows that are learnt from [T, B], and the policy's outputs for them.

        Outputs of sequences have a row T as well, for the observation that follows."""
        cfg = self.cfg
        rows = Batch({name: batch[name] for name in ("action", "reward", "terminated", "valid")})
        if cfg.sequence_length is None:
            return rows, self.policy.unroll(Batch(obs=batch.obs[:1], is_first=batch.is_first[:1]))
        begin = self.policy.initial_state(batch.reward.shape[1])
        core = Batch({name: begin[name].unsqueeze(0) for name in self.policy.core_spec()})
        outputs = self.policy.unroll(Batch(obs=batch.obs, is_first=batch.is_first, core=core), cfg.burn_in)
        return rows[cfg.burn_in :], outputs


def mean_log_std(dist) -> Tensor:
    """The mean log standard deviation [...] over the numbers of a row's action."""

    def all_of(dist) -> list[Tensor]:
        if isinstance(dist, Joint):
            return [one for part in dist.parts.values() for one in all_of(part)]
        return [dist.log_std] if isinstance(dist, Gaussian) else []

    return torch.cat(all_of(dist), -1).mean(-1)
