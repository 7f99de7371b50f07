"""What algorithms share that add a reward of their own to the environment's: icm, rnd and re3."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor, nn

from rlrun.core.algorithm import Algorithm, Inner, LearnerContext, Needs
from rlrun.core.batch import Batch
from rlrun.core.policy import Policy
from rlrun.core.specs import EnvSpec
from rlrun.models.model import encoder, orthogonal


def check_inner(name: str, inner: Inner) -> None:
    """Raises ValueError if algorithm `name`, which adds rewards, cannot be around the inner algorithm."""
    needs, who = inner.algorithm.needs(inner.cfg), inner.cfg.name
    refused = f"{who} cannot be inside {name}"
    if needs.population is not None:
        raise ValueError(f"{refused}: it learns from returns alone, and the added reward belongs to rows")
    if needs.joint:
        raise ValueError(f"{refused}: it learns all agents of an environment together, and {name} rewards one")
    if needs.tasks is not None:
        raise ValueError(f"{refused}: it adapts to tasks, which would have to be played with the added reward")
    if not hasattr(inner.cfg, "reward_clip"):
        raise ValueError(f"{refused}: its options have no reward_clip")
    if needs.every_process_learns and needs.only_weights:
        raise ValueError(f"{refused}, whose own networks learn too; a2c is its synchronous form")
    if needs.replay is not None and needs.replay.first_priority:
        raise ValueError("inner.input_priorities must be false: samplers know no intrinsic reward")


def needs_around(inner: Inner) -> Needs:
    """Returns what the inner algorithm needs, with the observations of every row."""
    needs = inner.algorithm.needs(inner.cfg)
    if needs.replay is not None:
        needs = replace(needs, replay=replace(needs.replay, obs="all"))
    return replace(needs, only_weights=False, rewards_play=True)


def make_inner(inner: Inner, policy: Policy, spec: EnvSpec, ctx: LearnerContext, weight: str) -> Algorithm:
    """Makes the inner algorithm, which takes rewards as they are given.

    weight: the option that weights the added reward. Raises ValueError if the inner algorithm would scale rewards.
    """
    made = inner.algorithm(policy, spec, replace(inner.cfg, reward_clip="none"), ctx)
    if made.reward_scale is not None:
        raise ValueError(
            f"inner.normalize_reward would also scale the intrinsic reward; weight that with {weight} instead"
        )
    return made


def check_minibatches(count: int, columns: int) -> None:
    """Raises ValueError if a learner's batch has fewer columns than minibatches."""
    if count > columns:
        raise ValueError(f"num_minibatches {count} is more than the {columns} columns of a learner's batch")


def column_parts(batch: Batch, count: int, rng: torch.Generator) -> list[Batch]:
    """Splits a batch into `count` random groups of whole columns, so that neighbouring rows stay together."""
    # The replay's weight and key have no row dimension.
    batch = Batch({name: value for name, value in batch.items() if name not in ("weight", "key")})
    order = torch.randperm(batch.reward.shape[1], generator=rng, device=rng.device)
    return [batch.columns(picks) for picks in order.tensor_split(count)]


def flat_rows(x: Tensor | Batch) -> Tensor | Batch:
    """Lays the rows of all columns one behind the other: [T, B, ...] -> [T * B, ...]."""
    return x.map(lambda part: part.flatten(0, 1)) if isinstance(x, Batch) else x.flatten(0, 1)


def random_features(spec: EnvSpec, hidden: tuple[int, ...], activation: str, size: int) -> nn.Sequential:
    """Makes a network from observations [N, ...] to features [N, size]. Images go through the Nature CNN.

    Its weights are orthogonal with gain sqrt(2) and its biases are 0, so that features differ as observations do.
    """
    seen = encoder(spec, "auto", hidden, activation)  # type: ignore[arg-type]
    net = nn.Sequential(seen, nn.Linear(seen.features, size))  # type: ignore[arg-type]
    orthogonal(net, math.sqrt(2.0))
    return net
