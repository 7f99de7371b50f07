"""Policy: the part of an algorithm that samplers use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from rlrun.core.batch import Batch, RowSpec
from rlrun.core.errors import UserError
from rlrun.core.ranks import Ranks
from rlrun.core.schedule import Clock

Mode = Literal["explore", "greedy"]
Pass = Literal["acting", "learning"]  # passes through a policy's networks


class Act(NamedTuple):
    """What a policy returns for one row of observations."""

    action: Tensor  # [B] or [B, ...] as EnvSpec.action_row
    state: Batch  # recurrent state after this row, leaves [B, ...]; empty without memory
    record: Batch  # the outputs that were asked for, leaves [B, ...]


class Policy(nn.Module):
    """Chooses actions. Its observation filter (running mean and deviation) consists of buffers, so that it is
    published, saved and exported with the policy."""

    # Buffers and modules that are not the weights with which it acts now. A run that begins with the weights of another
    # one (init=) keeps its own.
    own_state: ClassVar[tuple[str, ...]] = ()

    def all_finite(self) -> bool:
        """Tells whether all numbers of the policy are finite."""
        return all(bool(x.isfinite().all()) for x in self.state_dict().values() if x.is_floating_point())

    def weights_taken(self) -> None:
        """Called when the policy has been given the weights of another run."""

    def recordable(self, what: Pass) -> bool:
        """Whether a GPU may record this pass and replay it in one launch (machine/graphs.py). The pass must read
        nothing back and, after fix_kernels(), launch the same kernels every time. "acting" means act(); "learning"
        means unroll() and whatever else a loss calls. By default, only learning without memory can be recorded."""
        return what == "learning" and not self.core_spec()

    def initial_state(self, columns: int, place: Tensor | None = None) -> Batch:
        """The state of `columns` new columns, leaves [B, ...]; an empty Batch for policies without memory. It may hold
        more than core_spec() names: the rest is what exploring needs, which is carried from row to row but not stored
        with the rows. place [B] is each column's place among all columns of the run, from 0 to 1. It is None outside
        of training; every column then explores as much as the schedule says."""
        raise NotImplementedError

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
        """obs leaves [B, ...], is_first [B] -> Act with the outputs named in `record`. The state is reset where
        is_first."""
        raise NotImplementedError

    def greedy(self, obs: Batch, is_first: Tensor, state: Batch) -> tuple[Tensor | Batch, Batch]:
        """The action of act(mode="greedy"), without anything drawn at random, and the state after this row. It must be
        a pure function of its inputs and of the weights, so that it can be exported."""
        raise NotImplementedError

    def unroll(self, batch: Batch):
        """The learner's pass over T+1 rows of a batch; returns the algorithm's own NamedTuple."""
        raise NotImplementedError

    def log_prob(self, batch: Batch, mode: Mode, clock: Clock) -> Tensor:
        """The log-probability [T, B] of the actions of a batch, [T, B] rows with obs and is_first of as many or one
        more, under act(mode) at this clock; for numbers, the logarithm of a density in the form that rows have. It is
        -inf for an action that is never taken. Memory begins with batch.core, or with zeros if there is none. What is
        explored by columns differs from one to the next (epsilon_min), is that of a column outside of training.

        Raises UserError if actions have no probability here."""
        raise UserError(f"{type(self).__name__} gives no probabilities of actions")

    def log_probs(self, batch: Batch, mode: Mode, clock: Clock) -> Tensor:
        """The log-probabilities [T, B, A] of all choices, where an action is one of A. Raises UserError as log_prob
        does."""
        raise UserError(f"{type(self).__name__} gives no probabilities of actions")

    def record_spec(self, names: tuple[str, ...]) -> RowSpec:
        """The shapes per row of these outputs. Raises KeyError for an output that the policy cannot record. Where
        log_prob is recorded, NaN stands for a probability that is not known."""
        raise NotImplementedError

    def moments(self, batch: Batch) -> Any:
        """What the filter learns from the live rows of a fragment or batch, without changing the filter; None if there
        is no filter."""
        return None

    def absorb(self, moments: Sequence[Any], ranks: Ranks) -> None:
        """Merges into the filter what moments() returned for the fragments of all learners. It is called once for each
        update's fragments, after the update and before weights are published. The filter is thus constant between two
        publications, so that learners and samplers see the same numbers."""

    def core_spec(self) -> RowSpec:
        """The shape per column of the recurrent state; empty for policies without memory."""
        return {}

    def state_before(self, batch: Batch) -> Batch:
        """The recurrent state before row 0 of a batch, leaves [B, ...]: the one that is stored there, or zeros."""
        if "core" in batch:
            return batch["core"].map(lambda x: x[0])  # type: ignore[return-value, arg-type]
        first: Tensor = batch["is_first"]  # type: ignore[assignment]
        spec: dict[str, Any] = self.core_spec()
        return Batch(
            {name: torch.zeros(first.shape[1], *field.shape, device=first.device) for name, field in spec.items()}
        )


def action_rows_of(batch: Batch) -> int:
    """The number of rows of a batch that have an action."""
    action = batch["action"]
    return len(next(action.leaves()) if isinstance(action, Batch) else action)


def fix_kernels(module: nn.Module) -> None:
    """Sets fixed_kernels on every part of the module that has this attribute, as models/recurrent.py has. Such a part
    can work in two ways; this chooses the one whose kernels do not depend on what the rows hold. It must be called
    before recording."""
    for part in module.modules():
        if hasattr(part, "fixed_kernels"):
            part.fixed_kernels = True  # type: ignore[assignment]
