"""What the bandits share: options, rows, and the sums of a Bayesian linear regression."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor, nn

from rlrun.core.algorithm import Needs
from rlrun.core.batch import Batch
from rlrun.core.conditions import SLATES, OnlyFor, OnlyWith
from rlrun.core.ranges import Count, Positive
from rlrun.ops.ridge import solve, sums
from rlrun.policies import ActingConfig
from rlrun.policies.bandits import BanditExplorationConfig, BanditPolicy

# Of options of the policy's own way to explore.
EXPLORING = (OnlyWith("explore"), OnlyWith(".exploration.kind", "uncertainty"))


@dataclass(frozen=True, kw_only=True)
class BanditConfig(ActingConfig):
    """Shared options. conf/bandit/base.yaml explains each; an algorithm's own Config adds its other options."""

    name: str
    fragment_length: Annotated[int, Count]
    batch_size: Annotated[int, Count]
    items: str | None
    click: Annotated[str, OnlyFor(SLATES)]
    ridge: Annotated[float, Positive]
    intercept: bool
    exploration: BanditExplorationConfig

    @property
    def needs(self) -> Needs:
        return Needs(
            rows=self.fragment_length,
            columns=self.batch_size // self.fragment_length,
            actions=("discrete", "multi_discrete"),
            on_policy=True,
        )

    def __post_init__(self):
        if self.batch_size % self.fragment_length:
            raise ValueError(
                f"batch_size {self.batch_size} must be a multiple of fragment_length {self.fragment_length}"
            )


class Pulls(NamedTuple):
    """Arms that were taken, N of them, as a regression reads them."""

    x: Tensor  # features [N, d]
    y: Tensor  # rewards [N]
    arm: Tensor  # whose weights are meant [N]; 0 where items describe the arms
    valid: Tensor  # [N]


def pulls_of(policy: BanditPolicy, batch: Batch, click: str, raw: bool = False) -> Pulls:
    """The arms that the rows of a batch [T, B] took, column by column. A slate is as many pulls as it has places: the
    item that was chosen is paid the reward, and the others 0. raw: x is what the policy's net reads."""
    count = len(batch.reward)
    action, y, valid = batch.action, batch.reward, batch.valid
    rows = policy.seen(batch["obs"][:count]), batch["is_first"][:count]
    x = policy.features.raw(*rows) if raw else policy.features(*rows)  # [T, B, A or 1, d]
    arms = policy.arms
    if arms.items is None:
        return Pulls(by_column(x.squeeze(2)), by_column(y), by_column(action), by_column(valid))
    taken = action if arms.places is not None else action.unsqueeze(-1)  # [T, B, S]
    x = x.gather(2, taken.unsqueeze(-1).expand(*taken.shape, x.shape[-1]))
    y, valid = y.unsqueeze(-1).expand_as(taken), valid.unsqueeze(-1).expand_as(taken)
    if arms.places is not None:
        observation: Any = batch["obs"]["observation"]
        chosen = observation[click][1 : count + 1].unsqueeze(-1) == torch.arange(arms.places, device=y.device)
        y = torch.where(chosen, y, 0.0)
    x, y, valid = (by_column(part).flatten(0, 1) for part in (x, y, valid))
    return Pulls(x, y, torch.zeros_like(y, dtype=torch.int64), valid)


def by_column(x: Tensor) -> Tensor:
    """[T, B, ...] -> [B T, ...], a column behind the other, so that the rows of several learners are in the order of
    one learner's."""
    return x.transpose(0, 1).flatten(0, 1)


class Regression(nn.Module):
    """The sums of a Bayesian linear regression for every arm, in double precision, since they only grow."""

    def __init__(self, arms: int, size: int, ridge: float):
        super().__init__()
        self.ridge, self.arms, self.size = ridge, arms, size
        self.register_buffer("precision", torch.empty(arms, size, size, dtype=torch.float64))
        self.register_buffer("moment", torch.empty(arms, size, dtype=torch.float64))
        self.register_buffer("squares", torch.empty(arms, dtype=torch.float64))
        self.register_buffer("count", torch.empty(arms, dtype=torch.float64))
        self.precision: Tensor
        self.moment: Tensor
        self.squares: Tensor
        self.count: Tensor
        self.clear()

    def clear(self) -> None:
        """Forgets all rows."""
        self.precision.copy_(self.ridge * torch.eye(self.size, dtype=torch.float64))
        for sum_ in (self.moment, self.squares, self.count):
            sum_.zero_()

    def of(self, pulls: Pulls) -> list[Tensor]:
        """What these rows add to the four sums."""
        return list(sums(pulls.x.double(), pulls.y.double(), pulls.arm, pulls.valid, self.arms))

    def add(self, added: list[Tensor]) -> None:
        for total, more in zip((self.precision, self.moment, self.squares, self.count), added, strict=True):
            total += more

    def solve(self) -> tuple[Tensor, Tensor]:
        """Returns the mean [K, d] and the root of the covariance [K, d, d]."""
        return solve(self.precision, self.moment)
