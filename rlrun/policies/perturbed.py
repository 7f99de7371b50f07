"""A policy of which every column may act with parameters of its own: what evolution tries out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from rlrun.core.algorithm import Algorithm, LearnerContext, Needs
from rlrun.core.batch import Batch, RowSpec
from rlrun.core.errors import UserError
from rlrun.core.evolution import FromPopulation, NoiseTable
from rlrun.core.moments import Moments
from rlrun.core.off_policy import NetConfig
from rlrun.core.optimizer import OptimizerConfig
from rlrun.core.policy import Act, Mode, Policy
from rlrun.core.ranges import Count, NotNegative, Positive, Share
from rlrun.core.schedule import Clock, Schedule
from rlrun.core.specs import Box, EnvSpec
from rlrun.models.heads import SMALL_GAIN, action_head
from rlrun.models.model import Model
from rlrun.models.normalizer import FiltersObservations
from rlrun.policies.actors import ActorNet


class LinearHead(nn.Module):
    """The action itself, D numbers; the environment's bounds cut it."""

    def __init__(self, linear: nn.Linear):
        super().__init__()
        self.linear = linear

    def forward(self, features: Tensor, mask: Tensor | None) -> Tensor:
        return self.linear(features)


class PerturbedPolicy(FiltersObservations, Policy):
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
        self.one_by_one = spec.image  # convolutions of chunks have no batched form
        self.columns: tuple[Tensor, dict[str, Tensor]] | None = None  # what act_with was given last, and its views by name

    @property
    def size(self) -> int:
        """Number of parameters."""
        return sum(parameter.numel() for parameter in self.net.parameters())

    def vector(self) -> Tensor:
        """The parameters [P]; a copy, differentiable where gradients are on."""
        return torch.cat([parameter.reshape(-1) for parameter in self.net.parameters()])  # reshape: convolutions' are channels-last

    def record_spec(self, names: tuple[str, ...]) -> RowSpec:
        if names:
            raise KeyError(names[0])
        return {}

    def initial_state(self, columns: int, place: Tensor | None = None) -> Batch:
        return Batch()

    def filter_moments(self, observations: Tensor | Batch, live: Tensor) -> list[Moments] | None:
        """Observations [T, B, ...] of live rows [T, B]."""
        return None if self.filter is None else self.filter.moments(observations, live)

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
        rows = self.seen(obs)
        if self.one_by_one:
            return torch.stack([self._one(self._named(parameters[b]), _plain(rows[b]), is_first[b]) for b in range(len(parameters))])
        if self.columns is None or self.columns[0] is not parameters:
            self.columns = parameters, self._named(parameters)
        return vmap(self._one)(self.columns[1], _plain(rows), is_first)

    def _named(self, parameters: Tensor) -> dict[str, Tensor]:
        """[..., P] -> the net's parameters by name, [..., *shape], as views."""
        named, start = {}, 0
        for name, parameter in self.net.named_parameters():
            named[name] = parameters[..., start : start + parameter.numel()].view(*parameters.shape[:-1], *parameter.shape)
            start += parameter.numel()
        return named

    def _one(self, parameters: dict[str, Tensor], rows: Mapping[str, Any], is_first: Tensor) -> Tensor:
        """One column's action."""
        said: Any = functional_call(self.net, parameters, (_batch(rows), is_first[None, None], Batch()))[0]
        return self.chosen(said[0])[0]


def _plain(rows: Batch) -> dict[str, Any]:
    """Nested dictionaries, which vmap knows."""
    return {name: _plain(value) if isinstance(value, Batch) else value for name, value in rows.items()}


def _batch(rows: Mapping[str, Any]) -> Batch:
    """One column's leaves [...] -> [1, 1, ...]."""
    return Batch({name: _batch(value) if isinstance(value, Mapping) else value[None, None] for name, value in rows.items()})


@dataclass(frozen=True, kw_only=True)
class EvolutionConfig:
    """conf/algo/<name>.yaml says what each is; an algorithm's own Config adds the rest."""

    name: str
    noise_std: Annotated[float, Positive]
    noise_size: Annotated[int, Count]
    eval_share: Annotated[float, Share]
    action_noise: Annotated[float, NotNegative]
    report_length: Annotated[int, Count]
    lr: Annotated[Schedule, NotNegative]
    optimizer: OptimizerConfig
    actor: NetConfig


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
