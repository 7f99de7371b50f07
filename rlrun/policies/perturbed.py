"""The policy of evolution strategies, in which every column may act with its own parameters."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from rlrun.core.batch import Batch, RowSpec
from rlrun.core.errors import UserError
from rlrun.core.moments import Moments
from rlrun.core.policy import Act, Mode, Policy, action_rows_of
from rlrun.core.schedule import Clock
from rlrun.core.specs import Box, EnvSpec
from rlrun.models.encoders import NetConfig
from rlrun.models.heads import SMALL_GAIN, action_head
from rlrun.models.model import Model
from rlrun.models.normalizer import FiltersObservations
from rlrun.models.per_column import PerColumn
from rlrun.policies.actors import ActorNet
from rlrun.policies.exploration import certain_log_prob


class LinearHead(nn.Module):
    """Outputs the action itself, D numbers, which the environment clips to its bounds."""

    def __init__(self, linear: nn.Linear):
        super().__init__()
        self.linear = linear

    def forward(self, features: Tensor, mask: Tensor | None) -> Tensor:
        return self.linear(features)


class PerturbedPolicy(FiltersObservations, Policy):
    """Maps every observation to one action; if actions are discrete, to the likeliest one.

    Sources: Salimans et al. 2017; Mania et al. 2018."""

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

        self.net = ActorNet(model, spec, cfg, head)
        if not cfg.hidden:  # Linear policies begin at 0 (Mania et al. 2018, algorithm 2, line 2).
            for parameter in self.net.head.parameters():
                nn.init.zeros_(parameter)
        self.per_column = PerColumn(self.net, at_once=not spec.image, choose=self.chosen)

    @property
    def size(self) -> int:
        """Number of parameters P."""
        return self.per_column.size

    def vector(self) -> Tensor:
        """Returns a copy of the parameters [P], which is differentiable if gradients are enabled."""
        return self.per_column.vector()

    def record_spec(self, names: tuple[str, ...]) -> RowSpec:
        if names:
            raise KeyError(names[0])
        return {}

    def initial_state(self, columns: int, place: Tensor | None = None) -> Batch:
        return Batch()

    def filter_moments(self, observations: Tensor | Batch, live: Tensor) -> list[Moments] | None:
        """Returns the filter's moments of observations [T, B, ...] in live rows [T, B], or None without a filter."""
        return None if self.filter is None else self.filter.moments(observations, live)

    def chosen(self, said: Any) -> Tensor:
        """Converts the head's output, a tensor [..., D] or a distribution, to actions in the form that rows have."""
        space = self.spec.action
        return said.reshape(*said.shape[:-1], *space.shape) if isinstance(space, Box) else said.mode()

    def greedy(self, obs: Batch, is_first: Tensor, state: Batch) -> tuple[Tensor | Batch, Batch]:
        rows = self.seen(obs).map(lambda x: x.unsqueeze(0))
        return self.chosen(self.net(rows, is_first.unsqueeze(0), state)[0][0]), state

    def act(
        self,
        obs: Batch,
        is_first: Tensor,
        state: Batch,
        clock: Clock,
        mode: Mode,
        rng: torch.Generator,
        record: tuple[str, ...] = (),
    ) -> Act:
        return Act(*self.greedy(obs, is_first, state), Batch())  # type: ignore[arg-type]

    def log_prob(self, batch: Batch, mode: Mode, clock: Clock) -> Tensor:
        rows = action_rows_of(batch)
        obs: Batch = batch["obs"][:rows]  # type: ignore[assignment]
        chosen = self.chosen(self.net(self.seen(obs), batch["is_first"][:rows], Batch())[0])
        return certain_log_prob(self.spec.action, chosen, batch["action"])

    def act_with(self, parameters: Tensor, obs: Batch, is_first: Tensor) -> Tensor:
        """Returns every column's action for obs [B, ...] under its own parameters [B, P]."""
        return self.per_column.outputs(parameters, self.seen(obs), is_first)
