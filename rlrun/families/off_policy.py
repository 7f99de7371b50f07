"""What algorithms with a replay share: options and first priorities.

It also has what the actor-critic algorithms among them share: weight decay, and the temperature of SAC and TQC.
"""

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
from rlrun.policies import ActingConfig


@dataclass(frozen=True, kw_only=True)
class OffPolicyConfig:
    """Shared options. conf/algo/<name>.yaml explains each; an algorithm's own Config adds its other options."""

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
        """The smallest and the largest n_step."""
        return (self.n_step, self.n_step) if isinstance(self.n_step, int) else self.n_step

    @property
    def from_replay(self) -> FromReplay:
        return FromReplay(
            fragment_length=self.fragment_length,
            num_envs=self.num_envs,
            rows_from=self.n_steps[0],
            learning_starts=self.learning_starts,
            ratio=self.replay_ratio,
            first_priority=self.input_priorities,
        )

    def __post_init__(self):
        if self.n_steps[0] > self.n_steps[1]:
            raise ValueError("n_step must be a number, at least 1, or a range [fewest, most]")
        if self.learning_starts < self.n_steps[1]:
            raise ValueError(
                f"learning_starts {self.learning_starts} is below n_step {self.n_steps[1]}: there would be nothing to"
                " learn from"
            )


@dataclass(frozen=True, kw_only=True)
class OffPolicyActorCriticConfig(OffPolicyConfig, ActingConfig):
    """Options of algorithms with an actor and with critics of state and action, each with its own optimiser."""

    actor: NetConfig
    critic: NetConfig
    actor_lr: Annotated[Schedule, NotNegative]
    critic_lr: Annotated[Schedule, NotNegative]
    l2: Annotated[float, NotNegative]
    huber_delta: Annotated[float, Positive] | None


def recorded_priority(cfg: OffPolicyConfig, rows: Batch) -> Tensor:
    """Returns priorities [N] of rows [n + 1, N], the absolute TD errors of the values recorded while acting.

    Source: Horgan et al. 2018, arXiv:1803.00933, section 3."""
    before = rows.map(lambda x: x[:-1])
    reward = clip_reward(before.reward, cfg.reward_clip)
    return recorded_td_error(reward, before.terminated, before.valid, rows.q_taken, rows.q_max, cfg.discount).abs()


def weight_decay(net: nn.Module, l2: float) -> Tensor | float:
    """Returns l2 times half the sum of a network's squared weights []; biases are left out."""
    if l2 == 0:
        return 0.0
    weights = [part.weight for part in net.modules() if isinstance(part, nn.Linear | nn.Conv2d | EnsembleLinear)]
    return l2 * 0.5 * sum(weight.square().sum() for weight in weights)


def step_metrics(**steps: dict[str, Tensor | float]) -> dict[str, Any]:
    """Returns the optimiser metrics of each network as <net>_<metric>, and whether any step was skipped."""
    told = {
        f"{net}_{name}": value
        for net, step in steps.items()
        for name, value in step.items()
        if name != "skipped_updates"
    }
    skipped = [step["skipped_updates"] for step in steps.values() if "skipped_updates" in step] or [0.0]
    told["skipped_updates"] = torch.stack(skipped).max() if isinstance(skipped[0], Tensor) else max(skipped)  # type: ignore[arg-type, type-var]
    return told


class Temperature:
    """The learned weight alpha of the entropy, which keeps the policy's entropy near a target.

    Source: Haarnoja et al. 2018, arXiv:1812.05905, section 5. The algorithm that uses it registers log_alpha, so that
    checkpoints contain it."""

    def __init__(
        self, space: Space, initial_alpha: float, target_entropy: Literal["auto"] | float, device: torch.device
    ):
        """target_entropy auto stands for -D or 0.98 log A.

        -D is for D continuous actions (Haarnoja et al. 2018, table 1), 0.98 log A for A discrete actions (Christodoulou
        2019, arXiv:1910.07207, section 5)."""
        self.log_alpha = nn.Parameter(torch.tensor(initial_alpha, device=device).log())
        self.automatic = target_entropy == "auto"
        if target_entropy != "auto":
            self.target_entropy = float(target_entropy)
        else:
            self.target_entropy = -float(space.size) if isinstance(space, Box) else 0.98 * math.log(space.n)  # type: ignore[union-attr]

    @property
    def alpha(self) -> Tensor:
        """alpha [], without gradient."""
        return self.log_alpha.detach().exp()

    def loss(self, log_prob: Tensor, obs: Batch) -> Tensor:
        """Returns the loss of log alpha [B] (eq. 18, but linear in log alpha as in the authors' code).

        log_prob [B] belongs to actions that the policy drew at row 0 of obs."""
        return self.log_alpha * (log_prob.detach() + self.wanted_entropy(obs))

    def wanted_entropy(self, obs: Batch) -> float | Tensor:
        """Returns the target entropy [].

        With an action mask and target_entropy auto, it is 0.98 log of the number of legal actions in each row [B]."""
        if not self.automatic or "action_mask" not in obs:
            return self.target_entropy
        return 0.98 * obs["action_mask"][0].bool().sum(-1).float().log()
