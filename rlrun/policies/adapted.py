"""A policy that has been adapted to several tasks, with parameters of its own for each."""

from __future__ import annotations

import math
import warnings
from typing import Any

from torch import Tensor
from torch.func import vmap

from rlrun.core.batch import Batch, nested
from rlrun.core.errors import UserError
from rlrun.core.specs import EnvSpec
from rlrun.models.heads import AutoregressiveHead
from rlrun.models.model import Model
from rlrun.models.per_column import frozen_in, plain, size_of, vector_of, with_vector
from rlrun.ops.distributions import Distribution
from rlrun.policies.distribution import DistributionPolicy, Outputs
from rlrun.policies.exploration import Explorer

# PyTorch tells its users that vmap computes this function for one task after the other.
warnings.filterwarnings("ignore", message=".*batching rule for aten::special_log_ndtr", category=UserWarning)


class AdaptedPolicy(DistributionPolicy):
    """In training, environment i acts with the parameters of task i // envs_per_task. Elsewhere the policy acts with
    its own parameters, those before any adaptation.

    Source: Finn et al. 2017, arXiv:1703.03400."""

    own_state = ("adapted",)
    adapted: Tensor

    def __init__(
        self, spec: EnvSpec, model: Model, explorer: Explorer, tasks: int, envs_per_task: int, saved: bool = False
    ):
        """saved: whether checkpoints hold the parameters of all tasks. Without them, every task of a resumed run begins
        with the policy's."""
        super().__init__(spec, model, explorer)
        if model.cfg.memory.kind != "none":
            raise UserError("a policy that is adapted by gradients has no memory: leave out model=lstm, gru and gtrxl")
        if isinstance(self.action_head, AutoregressiveHead):
            raise UserError(
                "model.autoregressive=true does not work with tasks: all tasks choose their actions at once, and the"
                " parts of an autoregressive action are chosen one after the other; set it to false"
            )
        self.tasks, self.envs_per_task = tasks, envs_per_task
        self.frozen = frozen_in(self)
        # [tasks, P], published to samplers with the policy
        self.register_buffer("adapted", vector_of(self, self.frozen).detach().repeat(tasks, 1), persistent=saved)

    def weights_taken(self) -> None:
        self.adapted.copy_(vector_of(self, self.frozen).detach())

    @property
    def size(self) -> int:
        """The number of parameters P."""
        return size_of(self, self.frozen)

    def vector(self) -> Tensor:
        """A copy of the policy's own parameters [P], which is differentiable if gradients are on."""
        return vector_of(self, self.frozen)

    def initial_state(self, columns: int, place: Tensor | None = None) -> Batch:
        state = super().initial_state(columns, place)
        if place is None:
            return state
        envs = self.tasks * self.envs_per_task
        number = (place.double() * max(1, envs - 1)).round().long()
        return state.replace(task=number.to(self.adapted.device) // self.envs_per_task)

    def acting(self, obs: Batch, is_first: Tensor, state: Batch) -> tuple[Outputs, Batch]:
        if "task" not in state:
            return super().acting(obs, is_first, state)
        task: Tensor = state["task"]  # type: ignore[assignment]
        # Neighbouring columns of the same task are computed together: g groups of `width` columns.
        width = math.gcd(self.envs_per_task * self.spec.columns_per_env, len(task))
        outputs = self.outputs_of(self.adapted[task[::width]], by_task(obs, width), by_task(is_first, width))
        return together(outputs), Batch()

    def forward(self, obs: Batch, is_first: Tensor) -> Outputs:
        """Distribution and value of rows, obs leaves [T, B, ...] and is_first [T, B]."""
        return self._forward(obs, is_first, Batch())[0]

    def outputs_of(self, vectors: Tensor, obs: Batch, is_first: Tensor) -> Outputs:
        """The outputs for the rows of G tasks, obs leaves [G, T, B, ...] and is_first [G, T, B], under their own
        parameters [G, P]."""
        kinds: list[Distribution] = []

        def one(vector: Tensor, rows: dict[str, Any], first: Tensor) -> tuple[dict[str, Any], Tensor]:
            outputs: Outputs = with_vector(self, vector, nested(rows), first, frozen=self.frozen)
            kinds.append(outputs.dist)
            return plain(outputs.dist.record()), outputs.value

        record, value = vmap(one)(vectors, plain(obs), is_first)
        return Outputs(kinds[0].from_record(nested(record)), value)


def by_task(rows: Any, width: int) -> Any:
    """Rows [T, G * width, ...] of neighbouring columns -> [G, T, width, ...]."""
    if isinstance(rows, Batch):
        return rows.map(lambda x: by_task(x, width))
    return rows.unflatten(1, (-1, width)).transpose(0, 1)


def side_by_side(rows: Tensor) -> Tensor:
    """The inverse of by_task: [G, T, width, ...] -> [T, G * width, ...]."""
    return rows.transpose(0, 1).flatten(1, 2)


def together(outputs: Outputs) -> Outputs:
    """Outputs [G, T, width] of tasks -> those of all columns [T, G * width]."""
    record = outputs.dist.record().map(side_by_side)
    return Outputs(outputs.dist.from_record(record), side_by_side(outputs.value))
