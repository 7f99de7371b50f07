"""The options that all algorithms of the policy-gradient family share, and their ranges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from rlrun.core.optimizer import OptimizerConfig
from rlrun.core.ranges import Count, NotNegative, Positive, Share
from rlrun.core.schedule import Schedule
from rlrun.policies import ActingConfig


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
