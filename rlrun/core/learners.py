"""Communication between the learners of one run: reports on new fragments, saving of rows, and the end of the run."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch

from rlrun.core.algorithm import Algorithm, Update
from rlrun.core.checkpoint import ROWS, as_bytes, from_bytes, load_part
from rlrun.core.errors import RunFailed
from rlrun.core.ranks import Ranks
from rlrun.core.restarts import Restarts, ToldRestarts
from rlrun.core.schedule import Clock
from rlrun.core.timing import Timers


class FragmentHeader(Protocol):
    """The attributes of a fragment's header (dataflow.slots.FragmentHeader) that are read here."""

    @property
    def updates(self) -> int: ...
    @property
    def env_steps(self) -> int: ...
    @property
    def episodes(self) -> Sequence[Any]: ...
    @property
    def seconds(self) -> tuple[float, float]: ...
    @property
    def agent_steps(self) -> int: ...
    @property
    def failures(self) -> Sequence[tuple[str, bool, bool]]: ...


class _Report(NamedTuple):
    """What a learner tells the others about a fragment."""

    lag: int  # updates since the weights that collected it
    env_steps: int
    seconds: tuple[float, float]
    episodes: list[tuple[int, float, int, dict[str, float]]]  # environment, return, length, info
    agent_steps: int
    failures: list[tuple[str, bool, bool]]  # as in core/env.py: Failure
    replaced: Sequence[tuple[str, int]] = ()  # as in Restarts.process_failed()


def exchange(
    headers: Sequence[FragmentHeader], clock: Clock, ranks: Ranks, replaced: list[tuple[str, int]] | None = None
) -> list[_Report]:
    """Returns reports on the new fragments of all learners, in the order of ranks.

    replaced: processes that this learner has replaced and that rank 0 should know of. What was told is removed."""
    mine = [
        _Report(
            clock.updates - h.updates,
            h.env_steps,
            h.seconds,
            [(e.env, e.ret, e.length, dict(e.info)) for e in h.episodes],
            h.agent_steps,
            list(h.failures),
        )
        for h in headers
    ]
    if ranks.world == 1:
        return mine
    if mine and replaced:
        mine[0] = mine[0]._replace(replaced=tuple(replaced))
        replaced.clear()
    return [_Report(*report) for text in ranks.everyones(json.dumps(mine)) for report in json.loads(text)]


OVER, ON, SAVE = range(3)  # what rank 0 tells the others between updates


class Kept(Protocol):
    """Something that a runner registers with a run to be saved and restored. A replay, whose rows are too large for
    state(), also has `saved` (whether checkpoints hold its rows) and save_rows(folder)."""

    def state(self) -> dict: ...

    def load(self, state: dict, folder: Path | None) -> str | None:
        """Restores what state() returned. `folder` holds the saved rows; it is None if they were not saved. Returns a
        sentence that the user should read, or None."""
        ...


LOST = "lost"  # stands in a checkpoint in place of what a runner keeps


def save_rows(kept: Mapping[str, Any], ranks: Ranks, folder: Path | None) -> None:
    """Writes every learner's rows, and the states of what the learners other than the first keep, into the folder that
    rank 0 passes. Raises OSError, on rank 0, if some learner's could not be written."""
    folder, problem = Path(ranks.everyones(str(folder))[0]), None
    try:
        for thing in kept.values():
            if hasattr(thing, "save_rows") and getattr(thing, "saved", True):
                thing.save_rows(folder)
        if ranks.rank > 0:
            torch.save({name: thing.state() for name, thing in kept.items()}, folder / f"{replay_part(ranks.rank)}.pt")
    except (OSError, RuntimeError) as error:  # torch.save raises RuntimeError on a full disk
        problem = error
    written = ranks.all(problem is None)
    if ranks.rank == 0 and not written:
        raise problem or OSError("another learner's replay could not be written")


def load_kept(name: str, thing: Kept, folder: Path, rank: int) -> str | None:
    """Restores one of a learner's kept things from a checkpoint. Returns a sentence for the user if part of its state
    is missing. Raises RunFailed if all of it is missing."""
    saved, there = load_part(folder, "replay"), any(folder.glob(ROWS))
    if rank > 0 and (folder / f"{replay_part(rank)}.pt").exists():  # a run that failed has the first learner's alone
        saved |= load_part(folder, replay_part(rank))
    if LOST in saved:
        return f"the {name} begins anew, because the processes that held it had failed when this was saved"
    if name not in saved:
        raise RunFailed(f"the checkpoint {folder} does not hold the state of the {name}")
    return thing.load(saved[name], folder if there else None)


def replay_part(rank: int) -> str:
    """The checkpoint's part that holds this learner's replay."""
    return f"replay-{rank}" if rank else "replay"


def check_equal(algorithm: Algorithm, ranks: Ranks) -> None:
    """Raises RunFailed unless all learners hold the same parameters and buffers."""
    if ranks.world == 1:
        return
    tensors = [t.detach().double().flatten().cpu() for t in (*algorithm.parameters(), *algorithm.buffers())]
    weighted: Any = sum((t * (i + 1)).sum() for i, t in enumerate(tensors))
    squares: Any = sum(t.square().sum() for t in tensors)
    sums = ranks.gather(torch.stack([weighted, squares]))
    if any(not torch.equal(sums[0], other) for other in sums[1:]):
        raise RunFailed("the learners begin with different weights: does another run still write what init= names?")


def tell_state(algorithm: Algorithm, clock: Clock, generation: int, ranks: Ranks) -> None:
    """Sends what rank 0 begins with to learners on other machines, which may not see its files."""
    state = {"algorithm": algorithm.state(), "clock": list(clock), "generation": generation}
    ranks.firsts(as_bytes(state))


def hear_state(algorithm: Algorithm, ranks: Ranks) -> tuple[Clock, int]:
    """Begins with what rank 0 begins with. Returns its clock and its generation."""
    said = from_bytes(ranks.firsts(b""))
    algorithm.load_state(said["algorithm"])
    return Clock(*said["clock"]), said["generation"]


class FollowingLearner:
    """The run as seen by learners other than the first. They begin with the same state, and rank 0 tells them when the
    run is over."""

    def __init__(
        self,
        ranks: Ranks,
        restored: tuple[dict[str, dict], dict] | None,
        saved: Path | None = None,
        restarts: ToldRestarts | None = None,
    ):
        """`saved` is the directory of the checkpoint that was restored. restarts: the budget for this learner's own
        samplers, whose replacements rank 0 counts too; None: none is replaced."""
        told = restarts or ToldRestarts(0, 1.0)
        self.restarts: Restarts = told
        self.news = told.news  # replaced processes, of which rank 0 does not know yet
        self.ranks, self.restored, self.saved = ranks, restored, saved
        self.kept: dict[str, Kept] = {}
        self.timers = Timers()
        self.breaks: list[Callable[[int], None]] = []
        self.generation = 0
        self.hold_learners: Callable[[], Clock] | None = None
        self.ahead = 0
        self.clock = Clock()

    def begin(self, algorithm: Algorithm) -> Clock:
        if self.restored is not None:
            tensors, run = self.restored
            algorithm.load_state(tensors["algorithm"])
            self.clock = Clock(run["env_steps"], run["updates"])
            self.restored = None
        if self.ranks.apart:
            self.clock, self.generation = hear_state(algorithm, self.ranks)
        else:
            self.generation = self.ranks.first(0)  # the checkpoint does not know of sessions that saved nothing
        check_equal(algorithm, self.ranks)
        return self.clock

    def sampler_ready(self, sampler: Any) -> None:
        """Restores nothing: with several learners, columns begin anew."""

    def keeps(self, name: str, thing: Kept) -> None:
        self.kept[name] = thing
        if self.saved is not None:
            load_kept(name, thing, self.saved, self.ranks.rank)

    def collected(self, headers: Sequence[FragmentHeader]) -> int:
        return sum(report.env_steps for report in exchange(headers, self.clock, self.ranks, self.news))

    def rescuing(self) -> AbstractContextManager[None]:
        """Does nothing: rank 0 saves."""
        return nullcontext()

    def tick(self, clock: Clock, update: Update | None) -> bool:
        self.clock = clock
        while (said := self.ranks.first(OVER)) == SAVE:
            save_rows(self.kept, self.ranks, None)
        return said == ON

    def stopping(self) -> bool:
        return self.ranks.first(OVER) == OVER
