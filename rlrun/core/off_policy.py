"""The options that all algorithms with a replay share, those of the actor-critic ones among them, and their ranges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rlrun.core.algorithm import FromReplay
from rlrun.core.optimizer import OptimizerConfig
from rlrun.core.schedule import Schedule


@dataclass(frozen=True, kw_only=True)
class OffPolicyConfig:
    """conf/algo/<name>.yaml says what each is; an algorithm's own Config adds the rest."""

    name: str
    fragment_length: int
    num_envs: int
    batch_size: int
    replay_ratio: float
    learning_starts: int
    discount: float
    n_step: int | tuple[int, int]
    optimizer: OptimizerConfig
    max_grad_norm: float
    target_update_interval: int
    target_tau: float
    input_priorities: bool
    reward_clip: Literal["none", "sign"] | float

    @property
    def n_steps(self) -> tuple[int, int]:
        """The fewest and the most."""
        return (self.n_step, self.n_step) if isinstance(self.n_step, int) else self.n_step

    @property
    def from_replay(self) -> FromReplay:
        return FromReplay(fragment_length=self.fragment_length, num_envs=self.num_envs, rows_from=self.n_steps[0], learning_starts=self.learning_starts,
                          ratio=self.replay_ratio, first_priority=self.input_priorities)  # fmt: skip

    def __post_init__(self):
        if min(self.fragment_length, self.num_envs, self.batch_size, self.target_update_interval) < 1:
            raise ValueError("fragment_length, num_envs, batch_size and target_update_interval must be at least 1")
        if self.replay_ratio <= 0:
            raise ValueError("replay_ratio must be positive")
        if not 1 <= self.n_steps[0] <= self.n_steps[1]:
            raise ValueError("n_step is a number from 1, or a range [fewest, most]")
        if self.learning_starts < self.n_steps[1]:
            raise ValueError(f"learning_starts {self.learning_starts} is below n_step {self.n_steps[1]}: there would be nothing to learn from")
        if not 0 <= self.discount <= 1:
            raise ValueError("discount must lie in [0, 1]")
        if self.max_grad_norm < 0:
            raise ValueError("max_grad_norm must not be negative")
        if not 0 < self.target_tau <= 1:
            raise ValueError("target_tau must lie in (0, 1]")
        if isinstance(self.reward_clip, float) and self.reward_clip <= 0:
            raise ValueError("reward_clip must be none, sign or a positive bound")


@dataclass(frozen=True, kw_only=True)
class NetConfig:
    """Hidden layers of an actor or a critic, behind the encoder."""

    hidden: tuple[int, ...]
    activation: Literal["tanh", "relu", "elu", "silu"]
    layer_norm: bool

    def __post_init__(self):
        if any(width < 1 for width in self.hidden):
            raise ValueError("hidden must be a list of positive widths")


@dataclass(frozen=True, kw_only=True)
class OffPolicyActorCriticConfig(OffPolicyConfig):
    """An actor and critics of state and action, each with an optimiser of its own."""

    actor: NetConfig
    critic: NetConfig
    actor_lr: Schedule
    critic_lr: Schedule
    random_steps: int
    l2: float
    huber_delta: float | None

    def __post_init__(self):
        super().__post_init__()
        if min(*self.actor_lr.values, *self.critic_lr.values) < 0:
            raise ValueError("actor_lr and critic_lr must not be negative")
        if self.random_steps < 0 or self.l2 < 0:
            raise ValueError("random_steps and l2 must not be negative")
        if self.huber_delta is not None and self.huber_delta <= 0:
            raise ValueError("huber_delta must be positive, or null for half the squared error")


@dataclass(frozen=True, kw_only=True)
class ActionNoiseConfig:
    """How a deterministic policy explores."""

    kind: Literal["ou", "gaussian", "parameter_noise"]
    std: float
    theta: float
    scale: Schedule
    scale_min: float | None

    def __post_init__(self):
        if self.std <= 0:
            raise ValueError("std must be positive; scale 0 is no noise")
        if not 0 <= self.theta < 2:
            raise ValueError("theta must lie in [0, 2): the process would grow without bound")
        if min(self.scale.values) < 0:
            raise ValueError("scale must not be negative")
        if self.scale_min is not None and self.scale_min <= 0:
            raise ValueError("scale_min is spaced from scale in logarithm: it must be above 0, or null")
        if self.kind == "parameter_noise" and self.scale_min is not None:
            raise ValueError("scale_min is for noise in actions (ou, gaussian)")
