"""Policy: the part of an algorithm that lives in a sampler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from rlrun.core.batch import Batch, RowSpec
from rlrun.core.ranks import Ranks
from rlrun.core.schedule import Clock

Mode = Literal["explore", "greedy"]
Pass = Literal["acting", "learning"]  # through a policy's networks


class Act(NamedTuple):
    """What a policy says about one row of observations."""

    action: Tensor  # [B] or [B, ...] as EnvSpec.action_row
    state: Batch  # recurrent state after this row, leaves [B, ...]; empty without memory
    record: Batch  # what was asked for, leaves [B, ...]


class Policy(nn.Module):
    """How to act. Filters (running mean/std) are its buffers: they travel, save and export with it."""

    def recordable(self, what: Pass) -> bool:
        """Whether this pass (acting: act(); learning: unroll() and what else a loss asks for) reads nothing back and, after fix_kernels(), is the same
        kernels every time, so that a GPU may launch it as one (machine/graphs.py). By default only learning without memory is."""
        return what == "learning" and not self.core_spec()

    def initial_state(self, columns: int, place: Tensor | None = None) -> Batch:
        """State of `columns` fresh columns, leaves [B, ...]; an empty Batch without memory. It may hold more than core_spec() names, which then is carried
        from row to row and not stored with them. place [B]: where each stands among all columns of the run, from 0 to 1; None: nowhere (evaluation)."""
        raise NotImplementedError

    def act(self, obs: Batch, is_first: Tensor, state: Batch, clock: Clock, mode: Mode, rng: torch.Generator, record: tuple[str, ...] = ()) -> Act:
        """obs leaves [B, ...], is_first [B] -> Act with the outputs named in `record`. State is reset where is_first."""
        raise NotImplementedError

    def greedy(self, obs: Batch, is_first: Tensor, state: Batch) -> tuple[Tensor | Batch, Batch]:
        """What act(mode="greedy") does where nothing is drawn at random: action and the state after this row. A pure function of its inputs and of the
        weights, so that it can be exported."""
        raise NotImplementedError

    def unroll(self, batch: Batch):
        """The learner's pass over T+1 rows of a batch; returns the algorithm's own NamedTuple."""
        raise NotImplementedError

    def record_spec(self, names: tuple[str, ...]) -> RowSpec:
        """Shapes per row of these outputs; raises KeyError for one that it cannot record."""
        raise NotImplementedError

    def moments(self, batch: Batch) -> Any:
        """What a filter learns from the live rows of a fragment (still with the old filter); None without one."""
        return None

    def absorb(self, moments: Sequence[Any], ranks: Ranks) -> None:
        """Merges what moments() made of some fragments, by all learners. Called once per fragment, after the update that used it and before weights are
        published: between two publications the filter is constant, so that learner and samplers see the same numbers."""

    def core_spec(self) -> RowSpec:
        """Shape per column of the recurrent state; empty without memory."""
        return {}


def fix_kernels(module: nn.Module) -> None:
    """Lets every part of the module that has two ways to work (an attribute fixed_kernels, as models/recurrent.py has) take the one whose kernels do not
    depend on what the rows hold. Whoever records calls it."""
    for part in module.modules():
        if hasattr(part, "fixed_kernels"):
            part.fixed_kernels = True  # type: ignore[assignment]
