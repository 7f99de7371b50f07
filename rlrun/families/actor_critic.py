"""The options that all algorithms of the policy-gradient family share, and their ranges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rlrun.core.optimizer import OptimizerConfig
from rlrun.core.schedule import Schedule


@dataclass(frozen=True, kw_only=True)
class ActorCriticConfig:
    """conf/algo/<name>.yaml says what each is; an algorithm's own Config adds the rest."""

    name: str
    fragment_length: int
    batch_size: int
    discount: float
    lr: Schedule
    optimizer: OptimizerConfig
    max_grad_norm: float
    value_coef: float
    entropy_coef: Schedule
    reward_clip: Literal["none", "sign"] | float

    @property
    def columns(self) -> int:
        """Of a train batch."""
        return self.batch_size // self.fragment_length

    def __post_init__(self):
        if self.fragment_length < 1 or self.batch_size < 1:
            raise ValueError("fragment_length and batch_size must be at least 1")
        if self.batch_size % self.fragment_length:
            raise ValueError(f"batch_size {self.batch_size} must be a multiple of fragment_length {self.fragment_length}")
        if not 0 <= self.discount <= 1:
            raise ValueError("discount must lie in [0, 1]")
        if min(self.lr.values) < 0:
            raise ValueError("lr must not be negative")
        if self.max_grad_norm < 0 or self.value_coef < 0:
            raise ValueError("max_grad_norm and value_coef must not be negative")
        if isinstance(self.reward_clip, float) and self.reward_clip <= 0:
            raise ValueError("reward_clip must be none, sign or a positive bound")
