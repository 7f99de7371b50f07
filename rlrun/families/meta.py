"""The options that algorithms share which adapt to tasks by gradient steps (maml, mbmpo)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from rlrun.core.conditions import OnlyWith
from rlrun.core.optimizer import OptimizerConfig
from rlrun.core.ranges import Count, NotNegative, Positive, Share
from rlrun.core.schedule import Schedule
from rlrun.policies import ActingConfig


@dataclass(frozen=True, kw_only=True)
class MetaConfig(ActingConfig):
    """conf/algo/<name>.yaml explains each option; an algorithm's own Config adds its other options."""

    name: str
    num_tasks: Annotated[int, Count]
    envs_per_task: Annotated[int, Count]
    fragment_length: Annotated[int, Count]
    inner_steps: Annotated[int, Count]
    inner_lr: Annotated[float, NotNegative]
    first_order: bool
    outer_steps: Annotated[int, Count]
    discount: Annotated[float, Share]
    baseline: Literal["value", "linear"]
    lambda_: Annotated[float, Share]
    lr: Annotated[Schedule, NotNegative]
    optimizer: OptimizerConfig
    max_grad_norm: Annotated[float, NotNegative]
    clip: Annotated[Schedule, NotNegative]
    value_coef: Annotated[float, NotNegative, OnlyWith("baseline", "value")]
    value_clip: Annotated[float, NotNegative, OnlyWith("baseline", "value")]
    entropy_coef: Annotated[Schedule, NotNegative]
    kl_coef: Annotated[float, NotNegative]
    kl_target: Annotated[float, Positive, OnlyWith("kl_coef")]
    reward_clip: Literal["none", "sign"] | Annotated[float, Positive]
