"""A policy of which every column may act with parameters of its own: what evolution tries out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rlrun.core.algorithm import Algorithm, LearnerContext, Needs
from rlrun.core.batch import Batch, RowSpec
from rlrun.core.errors import UserError
from rlrun.core.evolution import FromPopulation, NoiseTable
from rlrun.core.moments import Moments
from rlrun.core.off_policy import NetConfig
from rlrun.core.optimizer import OptimizerConfig
from rlrun.core.policy import Act, Mode, Policy
from rlrun.core.schedule import Clock, Schedule
from rlrun.core.specs import Box, EnvSpec
from rlrun.models.heads import SMALL_GAIN, action_head
from rlrun.models.model import Model
from rlrun.models.per_column import PerColumn
from rlrun.policies.actors import ActorNet


class LinearHead(nn.Module):
    """The action itself, D numbers; the environment's bounds cut it."""

    def __init__(self, linear: nn.Linear):
        super().__init__()
        self.linear = linear

    def forward(self, features: Tensor, mask: Tensor | None) -> Tensor:
        return self.linear(features)


class PerturbedPolicy(Policy):
    """Deterministic: one action for every observation, the likeliest of choices (Salimans et al. 2017; Mania et al. 2018)."""

    def __init__(self, spec: EnvSpec, model: Model, cfg: NetConfig):
        super().__init__()
        if model.cfg.memory.kind != "none":
            raise UserError("evolution has no policies with memory (model=lstm, gru, gtrxl)")
        space = spec.action
        self.spec = spec
        self.filter = model.filter(spec)

        def head(inputs: int) -> nn.Module:
            if isinstance(space, Box):
                return LinearHead(model.linear(inputs, space.size, SMALL_GAIN))
            return action_head(space, inputs, model.linear, "gaussian", 0.0)

        self.net = ActorNet(model.trunk(spec), cfg, head)
        if not cfg.hidden:  # linear policies begin at 0 (Mania et al. 2018, algorithm 2, line 2)
            for parameter in self.net.head.parameters():
                nn.init.zeros_(parameter)
        self.per_column = PerColumn(self.net, at_once=not spec.image, choose=self.chosen)

    @property
    def size(self) -> int:
        """Number of parameters."""
        return self.per_column.size

    def vector(self) -> Tensor:
        """The parameters [P]; a copy, differentiable where gradients are on."""
        return self.per_column.vector()

    def record_spec(self, names: tuple[str, ...]) -> RowSpec:
        if names:
            raise KeyError(names[0])
        return {}

    def initial_state(self, columns: int, place: Tensor | None = None) -> Batch:
        return Batch()

    def filter_moments(self, observations: Tensor | Batch, live: Tensor) -> list[Moments] | None:
        """Observations [T, B, ...] of live rows [T, B]."""
        return None if self.filter is None else self.filter.moments(observations, live)

    def absorb(self, moments: Any, ranks: Any) -> None:
        if self.filter is not None:
            self.filter.merge(moments, ranks)

    def seen(self, obs: Batch) -> Batch:
        return obs if self.filter is None else obs.replace(observation=self.filter(obs["observation"]))

    def chosen(self, said: Any) -> Tensor:
        """What the head says [..., D], or a distribution -> actions as rows have them."""
        space = self.spec.action
        return said.reshape(*said.shape[:-1], *space.shape) if isinstance(space, Box) else said.mode()

    def greedy(self, obs: Batch, is_first: Tensor, state: Batch) -> tuple[Tensor | Batch, Batch]:
        rows = self.seen(obs).map(lambda x: x.unsqueeze(0))
        return self.chosen(self.net(rows, is_first.unsqueeze(0), state)[0][0]), state

    def act(self, obs: Batch, is_first: Tensor, state: Batch, clock: Clock, mode: Mode, rng: torch.Generator, record: tuple[str, ...] = ()) -> Act:
        return Act(*self.greedy(obs, is_first, state), Batch())  # type: ignore[arg-type]

    def act_with(self, parameters: Tensor, obs: Batch, is_first: Tensor) -> Tensor:
        """parameters [B, P], obs [B, ...] -> the action of every column by its own parameters."""
        return self.per_column.outputs(parameters, self.seen(obs), is_first)


@dataclass(frozen=True, kw_only=True)
class EvolutionConfig:
    """conf/algo/<name>.yaml says what each is; an algorithm's own Config adds the rest."""

    name: str
    noise_std: float
    noise_size: int
    eval_share: float
    action_noise: float
    report_length: int
    lr: Schedule
    optimizer: OptimizerConfig
    actor: NetConfig

    def __post_init__(self):
        if self.noise_std <= 0 or self.action_noise < 0:
            raise ValueError("noise_std must be positive and action_noise not negative")
        if min(self.noise_size, self.report_length) < 1:
            raise ValueError("noise_size and report_length must be at least 1")
        if not 0 <= self.eval_share <= 1:
            raise ValueError("eval_share must lie in [0, 1]")
        if min(self.lr.values) < 0:
            raise ValueError("lr must not be negative")


class Evolution(Algorithm):
    """An algorithm that moves a PerturbedPolicy by the returns of its perturbations."""

    NUMBERS = 2**24  # of the table that are weighed in one product
    cfg: EvolutionConfig
    policy: PerturbedPolicy

    @classmethod
    def asked(cls, cfg: Any) -> FromPopulation:
        raise NotImplementedError

    @classmethod
    def needs(cls, cfg: Any) -> Needs:
        kinds = ("discrete", "multi_discrete", "multi_binary", "box")
        return Needs(rows=1, columns=1, actions=kinds, population=cls.asked(cfg))

    @classmethod
    def make_policy(cls, spec: EnvSpec, model: Model, cfg: Any) -> PerturbedPolicy:
        return PerturbedPolicy(spec, model, cfg.actor)

    def __init__(self, policy: PerturbedPolicy, spec: EnvSpec, cfg: Any, ctx: LearnerContext):
        super().__init__(policy, spec, cfg, ctx)
        self.optimizer = ctx.optimizer(policy.net.parameters(), cfg.optimizer, cfg.lr, 0.0)
        self.noise: NoiseTable | None = None
        self.register_buffer("latest", torch.full((cfg.report_length,), torch.nan))
        self.latest: Tensor

    def attach_noise(self, noise: NoiseTable) -> None:
        """The table that offsets point into, by the runner."""
        self.noise = noise

    def weighed(self, weight: Tensor, offset: Tensor) -> Tensor:
        """sum_i weight_i noise_i [P], where noise_i begins at offset_i; weight, offset [N]."""
        assert self.noise is not None
        total = torch.zeros(self.policy.size)
        count = max(1, self.NUMBERS // self.policy.size)
        for weights, offsets in zip(weight.split(count), offset.split(count), strict=True):
            total += weights @ torch.stack([self.noise.piece(start, self.policy.size) for start in offsets.tolist()])
        return total

    def ascend(self, gradient: Tensor, l2: float, clock: Clock) -> dict[str, Tensor | float]:
        """One step of the optimiser along gradient [P], less l2 times the parameters."""
        vector = self.policy.vector()
        return self.optimizer.step(0.5 * l2 * vector.square().sum() - gradient.to(vector.device) @ vector, clock)

    def reported(self, evaluation: Tensor) -> dict[str, Tensor]:
        """The mean return of the last report_length episodes of the unperturbed policy, as a metric, with new ones [M]; none before the first."""
        self.latest.copy_(torch.cat([self.latest, evaluation.to(self.latest.device)])[-len(self.latest) :])
        known = self.latest[~self.latest.isnan()]
        return {"report_return": known.mean()} if len(known) else {}
