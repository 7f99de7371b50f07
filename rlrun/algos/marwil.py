"""MARWIL: monotonic advantage re-weighted imitation learning (Wang et al. 2018, "Exponentially Weighted Imitation
Learning for Batched Historical Data").

Behaviour cloning (bc.py) in which an action counts exp(beta * advantage / c) times. c^2 is a moving average of squared
advantages; it is updated before it is used.

Rows: single rows of a data set, each with the discounted sum of the rewards behind it and the observation at the end of
its trajectory, whose value stands for what follows if the trajectory was not terminated. With memory: sequences, as in
bc.py, whose returns end with the value of the observation behind the last row. With learns_from=experience: fragments
of the environment, whose returns end in the same way. Rewards are raw.
Recorded: nothing; with learns_from=experience and memory, the recurrent state at row 0.
Options: beta from 0, which is bc, to 1. squared_advantage_start and _rate: c^2 at the beginning, and the share by which
an update moves it. With RLlib's numbers it hardly moves: c stays near 10, so that beta depends on the size of rewards.
weight_clip bounds the weights, which neither the paper nor RLlib do.
Differs from the paper: the value is learnt by the squared error of the return alone, as in RLlib.
Metrics: learn/policy_loss: mean of minus weight * log pi; value_loss; entropy; weight: mean weight; squared_advantage:
c^2; explained_variance of the values; grad_norm before clipping; lr.
Checked: tests/algos/test_offline.py (losses by hand; c^2 after an update; beta=0 is bc to the bit), tuned/marwil/.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from torch import Tensor

from rlrun.algos import bc
from rlrun.core.algorithm import LearnerContext, Needs
from rlrun.core.batch import Batch
from rlrun.core.conditions import OnlyWith
from rlrun.core.ranges import Count, NotNegative, Positive, Share
from rlrun.core.schedule import Clock
from rlrun.core.specs import EnvSpec
from rlrun.families.off_policy import WITH_MEMORY
from rlrun.models.model import Model
from rlrun.ops.returns import lambda_return
from rlrun.policies import DistributionPolicy, Outputs

OF_DATA = OnlyWith("learns_from", "data")
OVERFLOW = (
    ". The weights exp(algo.beta * advantage / c) overflow where advantages are large: set algo.weight_clip, a smaller"
    " algo.beta, a larger algo.squared_advantage_rate, or with data a smaller data.reward_scale"
)


@dataclass(frozen=True, kw_only=True)
class Config(bc.Config):
    beta: Annotated[float, Share]
    learns_from: Literal["data", "experience"]
    fragment_length: Annotated[int, Count, OnlyWith("learns_from", "experience")]
    sequence_length: Annotated[Annotated[int, Count] | None, WITH_MEMORY, OF_DATA]
    burn_in: Annotated[int, NotNegative, WITH_MEMORY, OF_DATA]
    discount: Annotated[float, Share, OnlyWith("beta")]
    value_coef: Annotated[float, NotNegative, OnlyWith("beta")]
    squared_advantage_start: Annotated[float, Positive, OnlyWith("beta")]
    squared_advantage_rate: Annotated[float, Share, OnlyWith("beta")]
    weight_clip: Annotated[float, NotNegative, OnlyWith("beta")]

    def __post_init__(self):
        super().__post_init__()
        if self.learns_from == "experience" and self.batch_size % self.fragment_length:
            raise ValueError(
                f"batch_size {self.batch_size} must be a multiple of fragment_length {self.fragment_length}"
            )

    def check_memory(self, model: Model) -> None:
        if self.learns_from == "data":
            super().check_memory(model)


class MARWIL(bc.BC):
    cfg: Config
    squared_advantage: Tensor

    @classmethod
    def needs(cls, cfg: Config) -> Needs:  # type: ignore[override]
        if cfg.learns_from == "experience":
            length = cfg.fragment_length
            return Needs(rows=length, columns=cfg.batch_size // length, core_every=length)
        needs = super().needs(cfg)
        assert needs.replay is not None
        single = cfg.beta > 0 and cfg.sequence_length is None
        return replace(needs, replay=replace(needs.replay, returns=cfg.discount if single else None))

    def __init__(self, policy: DistributionPolicy, spec: EnvSpec, cfg: Config, ctx: LearnerContext):
        super().__init__(policy, spec, cfg, ctx)
        if cfg.beta > 0 and cfg.weight_clip == 0:
            self.optimizer.advice = OVERFLOW
        # float32 would lose steps of rate 1e-8.
        start = torch.tensor(cfg.squared_advantage_start, dtype=torch.float64, device=ctx.device)
        self.register_buffer("squared_advantage", start)

    def loss(self, batch: Batch, clock: Clock) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
        """Returns this learner's shares of the batch's loss [] and of metrics, and metrics that all learners know."""
        cfg = self.cfg
        if cfg.beta == 0:
            return super().loss(batch, clock)
        rows, outputs = self.unrolled(batch)
        mean, value = self.mean_over(rows.valid), outputs.value[: len(rows.valid)]
        target = self.returns(batch, rows, outputs.value.detach())
        advantage = target - value  # R - V(s) [T, B]
        squared = mean(advantage.square())
        weight = self.weight(advantage.detach(), squared.detach())
        loss, shares = self.imitation(rows, outputs, weight, clock)
        value_loss = 0.5 * squared
        same = {
            "squared_advantage": self.squared_advantage.float(),
            "explained_variance": self.explained_variance(target, value.detach(), rows.valid),
        }
        return loss + cfg.value_coef * value_loss, shares | {"value_loss": value_loss, "weight": mean(weight)}, same

    @torch.no_grad()
    def weight(self, advantage: Tensor, squared: Tensor) -> Tensor:
        """Moves c^2 towards the mean of squared advantages, then returns exp(beta * advantage / c) [T, B].

        squared [] is this learner's share of that mean."""
        cfg = self.cfg
        self.squared_advantage.lerp_(self.total(squared).double(), cfg.squared_advantage_rate)
        c = 1e-8 + self.squared_advantage.sqrt().float()
        weight = torch.exp(cfg.beta * advantage / c)
        return weight.clamp(max=cfg.weight_clip) if cfg.weight_clip > 0 else weight

    def returns(self, batch: Batch, rows: Batch, value: Tensor) -> Tensor:
        """Returns the discounted rewards [T, B] from every row to its trajectory's end, and the end's value.

        value [T, B] or [T + 1, B] are those of the rows, and of the observation that follows them in sequences."""
        if "return_to_go" in batch:
            return batch.return_to_go + batch.end_discount * self.policy.last_value(batch.end)
        return lambda_return(rows.reward, rows.terminated, rows.valid, value[1:], self.cfg.discount, 1.0)

    def unrolled(self, batch: Batch) -> tuple[Batch, Outputs]:
        """As bc.py, but the memory of experience begins with the state that was recorded."""
        if self.cfg.learns_from == "experience":
            return batch, self.policy.unroll(batch)
        return super().unrolled(batch)
