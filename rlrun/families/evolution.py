"""What algorithms that learn from returns of perturbed policies share: options and weighted perturbations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from rlrun.core.conditions import CONTINUOUS, OnlyFor, OnlyWith
from rlrun.core.evolution import NoiseTable
from rlrun.core.optimizer import OptimizerConfig
from rlrun.core.ranges import Count, NotNegative, Positive, Share
from rlrun.core.schedule import Schedule
from rlrun.models.encoders import NetConfig

ACTIONS = ("discrete", "multi_discrete", "multi_binary", "box")  # action spaces that a PerturbedPolicy can act in
NUMBERS = 2**24  # numbers of the noise table that one matrix product reads, which bounds its memory


@dataclass(frozen=True, kw_only=True)
class EvolutionConfig:
    """Shared options. conf/algo/<name>.yaml explains each; an algorithm's own Config adds its other options."""

    name: str
    noise_std: Annotated[float, Positive]
    noise_size: Annotated[int, Count]
    eval_share: Annotated[float, Share]
    action_noise: Annotated[float, NotNegative, OnlyFor(CONTINUOUS)]
    report_length: Annotated[int, Count, OnlyWith("eval_share")]
    lr: Annotated[Schedule, NotNegative]
    optimizer: OptimizerConfig
    actor: NetConfig


def weighed_noise(noise: NoiseTable, size: int, weight: Tensor, offset: Tensor) -> Tensor:
    """Returns sum_i weight_i noise_i [size], where noise_i begins at offset_i of the table. weight, offset: [N]."""
    total = torch.zeros(size)
    count = max(1, NUMBERS // size)
    for weights, offsets in zip(weight.split(count), offset.split(count), strict=True):
        total += weights @ torch.stack([noise.piece(start, size) for start in offsets.tolist()])
    return total


def report_return(latest: Tensor, evaluation: Tensor) -> dict[str, Tensor]:
    """Shifts new returns [M] of the unperturbed policy into `latest` and returns the mean of `latest` as a metric.

    `latest` [report_length] begins as NaN. There is no metric before the first return."""
    latest.copy_(torch.cat([latest, evaluation.to(latest.device)])[-len(latest) :])
    known = latest[~latest.isnan()]
    return {"report_return": known.mean()} if len(known) else {}
