"""The options that all algorithms with a replay share, those of the actor-critic ones among them, and their ranges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from rlrun.core.algorithm import FromReplay
from rlrun.core.optimizer import OptimizerConfig
from rlrun.core.ranges import Count, NotNegative, Positive, PositiveShare, Range, Share
from rlrun.core.schedule import Schedule


@dataclass(frozen=True, kw_only=True)
class OffPolicyConfig:
    """conf/algo/<name>.yaml says what each is; an algorithm's own Config adds the rest."""

    name: str
    fragment_length: Annotated[int, Count]
    num_envs: Annotated[int, Count]
    batch_size: Annotated[int, Count]
    replay_ratio: Annotated[float, Positive]
    learning_starts: int
    discount: Annotated[float, Share]
    n_step: Annotated[int, Count] | tuple[Annotated[int, Count], Annotated[int, Count]]
    optimizer: OptimizerConfig
    max_grad_norm: Annotated[float, NotNegative]
    target_update_interval: Annotated[int, Count]
    target_tau: Annotated[float, PositiveShare]
    input_priorities: bool
    reward_clip: Literal["none", "sign"] | Annotated[float, Positive]

    @property
    def n_steps(self) -> tuple[int, int]:
        """The fewest and the most."""
        return (self.n_step, self.n_step) if isinstance(self.n_step, int) else self.n_step

    @property
    def from_replay(self) -> FromReplay:
        return FromReplay(fragment_length=self.fragment_length, num_envs=self.num_envs, rows_from=self.n_steps[0], learning_starts=self.learning_starts,
                          ratio=self.replay_ratio, first_priority=self.input_priorities)  # fmt: skip

    def __post_init__(self):
        if self.n_steps[0] > self.n_steps[1]:
            raise ValueError("n_step is a number from 1, or a range [fewest, most]")
        if self.learning_starts < self.n_steps[1]:
            raise ValueError(f"learning_starts {self.learning_starts} is below n_step {self.n_steps[1]}: there would be nothing to learn from")


@dataclass(frozen=True, kw_only=True)
class NetConfig:
    """Hidden layers of an actor or a critic, behind the encoder."""

    hidden: tuple[Annotated[int, Count], ...]
    activation: Literal["tanh", "relu", "elu", "silu"]
    layer_norm: bool


@dataclass(frozen=True, kw_only=True)
class OffPolicyActorCriticConfig(OffPolicyConfig):
    """An actor and critics of state and action, each with an optimiser of its own."""

    actor: NetConfig
    critic: NetConfig
    actor_lr: Annotated[Schedule, NotNegative]
    critic_lr: Annotated[Schedule, NotNegative]
    random_steps: Annotated[int, NotNegative]
    l2: Annotated[float, NotNegative]
    huber_delta: Annotated[float, Positive] | None


@dataclass(frozen=True, kw_only=True)
class ActionNoiseConfig:
    """How a deterministic policy explores."""

    kind: Literal["ou", "gaussian", "parameter_noise"]
    std: Annotated[float, Positive]
    theta: Annotated[float, Range(0, 2, below_highest=True)]  # with more the process would grow without bound
    scale: Annotated[Schedule, NotNegative]
    scale_min: Annotated[float, Positive] | None  # spaced from scale in logarithm

    def __post_init__(self):
        if self.kind == "parameter_noise" and self.scale_min is not None:
            raise ValueError("scale_min is for noise in actions (ou, gaussian)")
