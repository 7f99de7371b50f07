"""What algorithms with a replay share, those of the actor-critic ones among them: options, first priorities, weight decay and the temperature of soft ones."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn

from rlrun.core.algorithm import FromReplay
from rlrun.core.batch import Batch
from rlrun.core.optimizer import OptimizerConfig
from rlrun.core.ranges import Count, NotNegative, Positive, PositiveShare, Share
from rlrun.core.schedule import Schedule
from rlrun.core.specs import Box, Space
from rlrun.models.critic import EnsembleLinear
from rlrun.models.encoders import NetConfig
from rlrun.ops.returns import recorded_td_error
from rlrun.ops.transforms import clip_reward


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
class OffPolicyActorCriticConfig(OffPolicyConfig):
    """An actor and critics of state and action, each with an optimiser of its own."""

    actor: NetConfig
    critic: NetConfig
    actor_lr: Annotated[Schedule, NotNegative]
    critic_lr: Annotated[Schedule, NotNegative]
    random_steps: Annotated[int, NotNegative]
    l2: Annotated[float, NotNegative]
    huber_delta: Annotated[float, Positive] | None


def recorded_priority(cfg: OffPolicyConfig, rows: Batch) -> Tensor:
    """rows [n + 1, N] as they were recorded -> priorities [N]: |TD error| of the values that acted (Horgan et al. 2018, arXiv:1803.00933, section 3)."""
    before = rows.map(lambda x: x[:-1])
    reward = clip_reward(before.reward, cfg.reward_clip)
    return recorded_td_error(reward, before.terminated, before.valid, rows.q_taken, rows.q_max, cfg.discount).abs()


def weight_decay(net: nn.Module, l2: float) -> Tensor | float:
    """l2 times half the squared weights of a net []; biases are left out."""
    if l2 == 0:
        return 0.0
    weights = [part.weight for part in net.modules() if isinstance(part, nn.Linear | nn.Conv2d | EnsembleLinear)]
    return l2 * 0.5 * sum(weight.square().sum() for weight in weights)


def step_metrics(**steps: dict[str, Tensor | float]) -> dict[str, Any]:
    """What the optimiser step of each net reported, by <net>_<metric>, and whether any of them was skipped."""
    told = {f"{net}_{name}": value for net, step in steps.items() for name, value in step.items() if name != "skipped_updates"}
    skipped = [step["skipped_updates"] for step in steps.values() if "skipped_updates" in step] or [0.0]
    told["skipped_updates"] = torch.stack(skipped).max() if isinstance(skipped[0], Tensor) else max(skipped)  # type: ignore[arg-type, type-var]
    return told


class Temperature:
    """The weight alpha of the entropy (Haarnoja et al. 2018, arXiv:1812.05905, section 5), which learns to keep the policy's entropy near a target.

    The algorithm that has one registers log_alpha, so that it is in checkpoints."""

    def __init__(self, space: Space, initial_alpha: float, target_entropy: Literal["auto"] | float, device: torch.device):
        """target_entropy auto: -D for D numbers (Haarnoja et al. 2018, table 1); 0.98 log A for A choices (Christodoulou 2019, arXiv:1910.07207, section 5)."""
        self.log_alpha = nn.Parameter(torch.tensor(initial_alpha, device=device).log())
        self.automatic = target_entropy == "auto"
        if target_entropy != "auto":
            self.target_entropy = float(target_entropy)
        else:
            self.target_entropy = -float(space.size) if isinstance(space, Box) else 0.98 * math.log(space.n)  # type: ignore[union-attr]

    @property
    def alpha(self) -> Tensor:
        """[], without gradient."""
        return self.log_alpha.detach().exp()

    def loss(self, log_prob: Tensor, obs: Batch) -> Tensor:
        """log_prob [B] of actions of the policy at row 0 of obs -> the loss of log alpha [B] (eq. 18; linear in log alpha as in the authors' code)."""
        return self.log_alpha * (log_prob.detach() + self.wanted_entropy(obs))

    def wanted_entropy(self, obs: Batch) -> float | Tensor:
        """The target []; where a mask narrows choices, 0.98 log of the number of legal ones in each row [B]."""
        if not self.automatic or "action_mask" not in obs:
            return self.target_entropy
        return 0.98 * obs["action_mask"][0].bool().sum(-1).float().log()
