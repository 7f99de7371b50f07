"""A replay for each of several policies, behind the interface of one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rlrun.core.batch import Batch, stack_columns
from rlrun.core.schedule import Clock
from rlrun.dataflow.slots import Fragment
from rlrun.replay.buffer import Replay


class GroupedReplay:
    """Splits the columns of new fragments among replays, and puts what they draw side by side.

    The columns of agents whose policy does not learn are stored nowhere."""

    def __init__(self, replays: Mapping[str, Replay], members: Mapping[str, Sequence[int]], agents: int):
        """replays: one for every policy that learns. members: the numbers of its agents among N = agents, whose columns
        are e * N + number for every environment e."""
        self.replays, self.members, self.agents = dict(replays), members, agents
        self.finish_writes: Callable[[], None] = lambda: None  # called before saving, to complete delayed writes

    @property
    def starts(self) -> int:
        """The number of places at which every one of the replays may begin a fragment, at least."""
        return min(replay.starts for replay in self.replays.values())

    def waits_for(self) -> list[str]:
        """The policies without a row to learn from, for which the others wait."""
        return [name for name, replay in self.replays.items() if replay.starts == 0]

    @property
    def largest_weight(self) -> float:
        return max(replay.largest_weight for replay in self.replays.values())

    @property
    def blocks(self) -> int:
        """The number of producers of fragments."""
        return self._first.blocks

    @property
    def next_row(self) -> list[int | None]:
        """The samplers' numbers of the next rows, for each producer."""
        return self._first.next_row

    @property
    def _first(self) -> Replay:
        return next(iter(self.replays.values()))

    def __len__(self) -> int:
        return sum(len(replay) for replay in self.replays.values())

    def add(self, fragment: Fragment) -> None:
        """Copies the columns of a fragment [T, B] into the replays of their policies."""
        envs = torch.arange(fragment.batch["reward"].shape[1] // self.agents) * self.agents
        whole = fragment.batch
        for name, replay in self.replays.items():
            columns = (envs.unsqueeze(1) + torch.tensor(self.members[name])).flatten()
            batch = Batch({field: value for field, value in whole.items() if field != "core"}).columns(columns)
            if replay.layout.core:
                core = whole["core"][name]
                assert isinstance(core, Batch)
                batch = batch.replace(core=core.columns(columns))
            replay.add(replace(fragment, batch=batch, whole=None))

    def sample(self, count: int, clock: Clock) -> Batch:
        """Draws `count` fragments from every replay, in the order of the policies: [T, policies * count]. The recurrent
        state is a Batch for every policy."""
        drawn = {name: replay.sample(count, clock) for name, replay in self.replays.items()}
        beside = [
            Batch({field: value for field, value in batch.items() if field not in ("core", "weight", "key")})
            for batch in drawn.values()
        ]
        flat = {field: torch.cat([batch[field] for batch in drawn.values()]) for field in ("weight", "key")}  # type: ignore[misc]
        core = {name: batch["core"] for name, batch in drawn.items() if "core" in batch}
        return stack_columns(beside).replace(**flat, **({"core": Batch(core)} if core else {}))

    def write(self, key: Tensor, /, priority: Tensor | None = None, **fields: Tensor | Batch) -> None:
        """Writes what an update computed for what sample() drew, as Replay.write() does."""
        width = len(key) // len(self.replays)
        for number, replay in enumerate(self.replays.values()):
            where = slice(number * width, (number + 1) * width)
            more = Batch(fields).columns(where)
            replay.write(key[where], None if priority is None else priority[where], **dict(more.items()))

    @property
    def saved(self) -> bool:
        return all(replay.saved for replay in self.replays.values())

    def state(self) -> dict[str, Any]:
        self.finish_writes()
        return {"groups": {name: replay.state() for name, replay in self.replays.items()}}

    def save_rows(self, folder: Path) -> None:
        self.finish_writes()
        for replay in self.replays.values():
            replay.save_rows(folder)

    def load(self, state: dict[str, Any], folder: Path | None) -> None:
        for name, replay in self.replays.items():
            replay.load(state["groups"][name], folder)
