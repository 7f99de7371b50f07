"""The options that all algorithms of the policy-gradient family share, and their ranges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from rlrun.core.algorithm import LearnerContext
from rlrun.core.optimizer import Optimizer, OptimizerConfig
from rlrun.core.ranges import Count, NotNegative, Positive, Share
from rlrun.core.schedule import Schedule
from rlrun.policies import ActingConfig, DistributionPolicy


@dataclass(frozen=True, kw_only=True)
class ActorCriticConfig(ActingConfig):
    """Shared options. conf/algo/<name>.yaml explains each; an algorithm's own Config adds its other options."""

    name: str
    fragment_length: Annotated[int, Count]
    batch_size: Annotated[int, Count]
    discount: Annotated[float, Share]
    lr: Annotated[Schedule, NotNegative]
    optimizer: OptimizerConfig
    max_grad_norm: Annotated[float, NotNegative]
    value_coef: Annotated[float, NotNegative]
    entropy_coef: Schedule
    reward_clip: Literal["none", "sign"] | Annotated[float, Positive]

    @property
    def columns(self) -> int:
        """The number of columns in a train batch."""
        return self.batch_size // self.fragment_length

    def __post_init__(self):
        if self.batch_size % self.fragment_length:
            raise ValueError(
                f"batch_size {self.batch_size} must be a multiple of fragment_length {self.fragment_length}"
            )


def check_normalized(rows: int, option: str) -> None:
    """Raises ValueError if advantages are normalised over a single row, where their mean is the advantage itself: it
    becomes 0, and the policy learns nothing. rows: those of all learners. option: what sets their number."""
    if rows == 1:
        raise ValueError(
            f"{option} 1 is one row, whose advantage normalize_advantage makes 0: the policy would learn nothing"
        )


def optimizers(
    policy: DistributionPolicy, cfg: ActorCriticConfig, value_lr: Schedule | None, ctx: LearnerContext
) -> tuple[Optimizer, Optimizer | None]:
    """Returns the optimiser of a policy, and that of the parameters which only the value uses.

    value_lr: the value's learning rate; None: one optimiser is for both, and the second is None. Raises ValueError if
    the value has no network of its own."""
    if value_lr is None:
        return ctx.optimizer(policy.parameters(), cfg.optimizer, cfg.lr, cfg.max_grad_norm), None
    value_only = policy.value_parameters()
    ids = {id(p) for p in value_only}
    others = (p for p in policy.parameters() if id(p) not in ids)
    return (
        ctx.optimizer(others, cfg.optimizer, cfg.lr, cfg.max_grad_norm),
        ctx.optimizer(value_only, cfg.optimizer, value_lr, cfg.max_grad_norm),
    )
