"""What algorithms with a replay share: options and first priorities.

It also has what the actor-critic algorithms among them share: weight decay, and the temperature of SAC and TQC.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, cast

import torch
from torch import Tensor, nn

from rlrun.core.algorithm import Algorithm, FromReplay
from rlrun.core.batch import Batch
from rlrun.core.conditions import EXPERIENCE, FIRST_PRIORITIES, PACED, OnlyFor, OnlyWith
from rlrun.core.errors import UserError
from rlrun.core.optimizer import OptimizerConfig
from rlrun.core.plugins import is_path
from rlrun.core.ranges import Count, NotNegative, Positive, PositiveShare, Share
from rlrun.core.schedule import Schedule
from rlrun.core.specs import Box, Space
from rlrun.models.critic import Critics, EnsembleLinear
from rlrun.models.encoders import NetConfig
from rlrun.models.heads import OwnHead
from rlrun.models.model import Model, Seen
from rlrun.ops.returns import fold_n_step, recorded_td_error
from rlrun.ops.td import taken
from rlrun.ops.transforms import clip_reward
from rlrun.policies import ActingConfig, StochasticActor

WITH_MEMORY = OnlyWith("model.memory.kind", "lstm", "gru", "gtrxl")


@dataclass(frozen=True, kw_only=True)
class OffPolicyConfig:
    """Shared options. conf/algo/<name>.yaml explains each; an algorithm's own Config adds its other options."""

    name: str
    fragment_length: Annotated[int, Count, OnlyFor(EXPERIENCE)]
    num_envs: Annotated[int, Count, OnlyFor(EXPERIENCE)]
    batch_size: Annotated[int, Count]
    replay_ratio: Annotated[float, Positive, OnlyFor(PACED), OnlyFor(EXPERIENCE)]
    learning_starts: Annotated[int, OnlyFor(EXPERIENCE)]
    discount: Annotated[float, Share]
    n_step: Annotated[int, Count] | tuple[Annotated[int, Count], Annotated[int, Count]]
    optimizer: OptimizerConfig
    max_grad_norm: Annotated[float, NotNegative]
    target_update_interval: Annotated[int, Count]
    target_tau: Annotated[float, PositiveShare]
    input_priorities: Annotated[bool, OnlyWith("replay.name", "prioritized")]
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
                f"learning_starts {self.learning_starts} is below n_step {self.n_steps[1]}, and there would be nothing"
                f" to learn from; the smallest that works is learning_starts={self.n_steps[1]}"
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
    sequence_length: Annotated[Annotated[int, Count] | None, WITH_MEMORY]
    burn_in: Annotated[int, NotNegative, WITH_MEMORY]
    sequence_stride: Annotated[int, Count, WITH_MEMORY]
    zero_init_state: Annotated[bool, WITH_MEMORY, OnlyFor(EXPERIENCE)]

    def __post_init__(self):
        super().__post_init__()
        if self.sequence_length is None:
            for name, unused in (("burn_in", 0), ("sequence_stride", 1), ("zero_init_state", False)):
                if getattr(self, name) != unused:
                    raise ValueError(f"{name} is for sequences: set sequence_length, for a model with memory")
            return
        if self.n_steps != (1, 1):
            raise ValueError("n_step must be 1 with sequence_length")
        if self.input_priorities:
            raise ValueError("input_priorities are for single rows, and sequence_length asks for sequences")
        if self.learning_starts < self.rows:
            raise ValueError(f"learning_starts {self.learning_starts} is below the {self.rows} rows of a sequence")

    @property
    def rows(self) -> int:
        """Rows of a fragment that is drawn from the replay."""
        return self.n_steps[1] if self.sequence_length is None else self.burn_in + self.sequence_length

    @property
    def core_every(self) -> int:
        """Distance in rows between stored recurrent states."""
        return 0 if self.sequence_length is None else self.sequence_stride

    @property
    def from_replay(self) -> FromReplay:
        asked = super().from_replay
        if self.sequence_length is None:
            return asked
        return asked.of_sequences(self.sequence_length, self.burn_in, self.sequence_stride)

    def check_memory(self, model: Model) -> None:
        """Raises UserError if a memory has no sequences to learn from, or sequences have no memory to train."""
        remembers = model.cfg.memory.kind != "none"
        if remembers and getattr(self, "input_priorities", False):
            raise UserError(f"{self.name} with input_priorities, as inside Ape-X, has no memory: set model/memory=none")
        if remembers and self.sequence_length is None:
            raise UserError(
                f"{self.name} with memory learns from sequences: set algo.sequence_length and algo.burn_in, such as 20"
            )
        if not remembers and self.sequence_length is not None:
            raise UserError("algo.sequence_length is for a model with memory: set model/memory=lstm, gru or gtrxl")


@dataclass(frozen=True, kw_only=True)
class DrawnActorConfig(OffPolicyActorCriticConfig):
    """Options of those whose actor is a distribution, and whose critics samplers do not have."""

    input_priorities: Annotated[bool, OnlyFor(FIRST_PRIORITIES)]

    def __post_init__(self):
        super().__post_init__()
        if self.input_priorities:
            raise ValueError(
                f"input_priorities must be false: samplers compute them and do not have the critics of {self.name}, "
                "only those of ddpg and td3"
            )


PRIORITY_ETA = 0.9  # weight of the largest error of a sequence in its priority, against the mean (R2D2, section 2.3)


class Transitions(NamedTuple):
    """What the losses of actor and critics are about: N rows, each with the observation that follows it.

    Without memory these are B transitions of n folded rows. With memory they are all rows after burn-in of B sequences
    (Kapturowski et al. 2019, "Recurrent Experience Replay in Distributed Reinforcement Learning", section 2.3), of
    which dead ones do not count; the actor begins with the state that was stored, and critics with zeros."""

    now: Seen
    then: Seen
    action: Tensor  # [N, ...], within the bounds
    reward: Tensor  # [N], clipped, and summed over the n rows
    discount: Tensor  # [N]: of the value of `then`; 0 after a termination
    weight: Tensor  # [N]
    valid: Tensor | None  # [N]; None: all rows count
    columns: int  # B
    # This learner's share of the mean over the live rows of all learners, for x [N]. It waits for no other learner, so
    # that several threads can call it.
    mean: Callable[[Tensor], Tensor]

    def priority(self, size: Tensor) -> Tensor:
        """Returns priorities [B] for absolute TD errors [N]."""
        if self.valid is None:
            return size
        live = self.valid.view(-1, self.columns)
        size = size.view(-1, self.columns).masked_fill(~live, 0.0)
        mean = size.sum(0) / live.sum(0).clamp(min=1)
        return PRIORITY_ETA * size.max(0).values + (1 - PRIORITY_ETA) * mean


def transitions(algorithm: Algorithm, batch: Batch) -> Transitions:
    """Takes the transitions out of a batch of replayed fragments, with filtered observations."""
    cfg, policy = cast(OffPolicyActorCriticConfig, algorithm.cfg), cast(Any, algorithm.policy)
    # Data may hold actions beyond the bounds, which were never executed. A user's own distribution may draw such ones,
    # and its critics must know the values of these. Where an environment has whole numbers, actions are not rounded to
    # those here: the critics value the numbers that actors give, and each of them stands for the whole number nearby.
    if isinstance(algorithm.spec.action, Box) and not isinstance(policy.net.head, OwnHead):
        batch = batch.replace(action=batch.action.clamp(-1.0, 1.0))
    if cfg.sequence_length is None:
        ends = batch.ends()
        obs, first, nothing = policy.seen(ends.obs), ends.is_first, Batch()
        reward, discount = fold_n_step(
            clip_reward(batch.reward, cfg.reward_clip), batch.terminated, batch.valid, cfg.discount
        )
        return Transitions(
            Seen(obs[:1], first[:1], nothing),
            Seen(obs[1:], first[1:], nothing),
            batch.action[0],
            reward,
            discount,
            batch.weight,
            None,
            len(reward),
            algorithm.mean,
        )
    state = batch.core[0].map(torch.zeros_like) if cfg.zero_init_state else batch.core[0]
    seen = Seen(policy.seen(batch.obs), batch.is_first, state, cfg.burn_in)
    rows = batch.map(lambda x: x[cfg.burn_in :]) if cfg.burn_in else batch
    valid = rows.valid.flatten()
    now, then = seen._replace(part=slice(0, -1)), seen._replace(part=slice(1, None))
    return Transitions(
        now,
        then,
        rows.action.flatten(0, 1),
        clip_reward(rows.reward, cfg.reward_clip).flatten(),
        cfg.discount * (~rows.terminated).to(rows.reward).flatten(),
        batch.weight.expand(rows.reward.shape).flatten(),
        valid,
        rows.reward.shape[1],
        algorithm.mean_over(valid),
    )


def recorded_priority(cfg: OffPolicyConfig, rows: Batch) -> Tensor:
    """Returns priorities [N] of rows [n + 1, N], the absolute TD errors of the values recorded while acting.

    Source: Horgan et al. 2018, arXiv:1803.00933, section 3."""
    before = rows.map(lambda x: x[:-1])
    reward = clip_reward(before.reward, cfg.reward_clip)
    return recorded_td_error(reward, before.terminated, before.valid, rows.q_taken, rows.q_max, cfg.discount).abs()


def weight_decay(net: nn.Module, l2: float) -> Tensor | float:
    """Returns l2 times half the sum of a network's squared weights []; biases and frozen weights are left out."""
    if l2 == 0:
        return 0.0
    weights = [part.weight for part in net.modules() if isinstance(part, nn.Linear | nn.Conv2d | EnsembleLinear)]
    for part in net.modules():
        if isinstance(part, nn.RNNBase):
            weights += [value for name, value in part.named_parameters() if name.startswith("weight")]
    return l2 * 0.5 * sum(weight.square().sum() for weight in weights if weight.requires_grad)


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
        self,
        space: Space,
        initial_alpha: float,
        target_entropy: Literal["auto"] | float,
        device: torch.device,
        kind: str = "",
    ):
        """target_entropy auto stands for -D or 0.98 log A.

        -D is for D continuous actions (Haarnoja et al. 2018, table 1), 0.98 log A for A discrete actions (Christodoulou
        2019, arXiv:1910.07207, section 5). kind: model.action_distribution; a user's own may draw actions beyond the
        bounds. Raises ValueError for a target that no distribution over A actions, or within the bounds of D, can have:
        alpha would grow with every update, until it is infinite."""
        self.log_alpha = nn.Parameter(torch.tensor(initial_alpha, device=device).log())
        self.automatic = target_entropy == "auto"
        if target_entropy != "auto":
            self.target_entropy = float(target_entropy)
            most = space.size * math.log(2.0) if isinstance(space, Box) else math.log(space.n)  # type: ignore[union-attr]
            if self.target_entropy > most and not is_path(kind):
                raise ValueError(
                    f"target_entropy {self.target_entropy:g} cannot be reached: the largest entropy, that of uniform"
                    f" actions, is {most:.3g} here"
                )
        else:
            self.target_entropy = -float(space.size) if isinstance(space, Box) else 0.98 * math.log(space.n)  # type: ignore[union-attr]

    @property
    def alpha(self) -> Tensor:
        """alpha [], without gradient."""
        return self.log_alpha.detach().exp()

    def loss(self, log_prob: Tensor, mask: Tensor | None) -> Tensor:
        """Returns the loss of log alpha [N] (eq. 18, but linear in log alpha as in the authors' code).

        log_prob [N] belongs to actions that the policy drew, of which mask [N, A] says which ones were legal."""
        return self.log_alpha * (log_prob.detach() + self.wanted_entropy(mask))

    def wanted_entropy(self, mask: Tensor | None) -> float | Tensor:
        """Returns the target entropy [].

        With an action mask and target_entropy auto, it is 0.98 log of the number of legal actions in each row [N]."""
        if not self.automatic or mask is None:
            return self.target_entropy
        return 0.98 * mask.bool().sum(-1).clamp(min=1).float().log()


def values_taken(critic: Critics, features: Tensor, policy: StochasticActor, action: Tensor) -> Tensor:
    """Returns the critics' values [E, N] of the actions taken, for the critics' features [N, F]."""
    flat = policy.flat(action)
    q = critic.of(features, flat)
    return q[..., 0] if flat is not None else torch.stack([taken(one[..., 0], action) for one in q])
