"""Replay in separate processes: shards copy fragments from the samplers' slots and write drawn batches into slots.

learner's process                      shard-i
add(header of a filled slot)  ------>  copies the slot's rows, computes their first priorities
                              <------  the slot is free
draw(slot, clock)             ------>  draws a batch into shared memory
                              <------  the batch is ready
write(keys, row fields)       ------>
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rlrun.core.awake import patiently
from rlrun.core.batch import Batch, Field, RowSpec
from rlrun.core.errors import ProcessLost, RunFailed
from rlrun.core.schedule import Clock
from rlrun.core.seeding import Seeds
from rlrun.dataflow.ranks import SAVE_SEC
from rlrun.dataflow.slots import Fragment, Header, Slots
from rlrun.dataflow.stores import FragmentStore, Key
from rlrun.dataflow.workers import READY, Worker, Workers
from rlrun.replay.buffer import FirstPriority, Replay
from rlrun.replay.layout import Layout, ReplayConfig, saved_with
from rlrun.replay.outcomes import OUTCOMES

PREFETCHED = 2  # number of batches that a shard has ready or is drawing
AHEAD = 2  # number of batches by which a shard may exceed its share while others are late


class ShardJob(NamedTuple):
    """The arguments of a shard's process (pickled)."""

    number: int
    cfg: ReplayConfig
    layout: Layout
    fragments: FragmentStore  # the samplers' slots
    drawn: Slots  # this shard's slots for drawn batches
    batch_size: int  # number of fragments in a batch
    seeds: Seeds
    generation: int
    first_priority: FirstPriority | None
    shards: int


def shard_process(pipe: Connection, job: ShardJob) -> None:
    """Serves a shard until the pipe closes, as drawn at the top of this file."""
    rng = job.seeds.generator("replay", job.generation, job.number)
    replay = Replay(job.cfg, job.layout, rng, torch.device("cpu"), job.first_priority, job.number)
    views: dict[Key, Batch] = {}
    batches = [job.drawn.view(slot) for slot in range(job.drawn.count)]
    pipe.send(READY)
    while True:
        what, *facts = pipe.recv()
        if what == "add":
            (header,) = facts
            if header.slot not in views:
                views[header.slot] = job.fragments.view(header.slot)
            replay.add(Fragment(header._replace(worker=header.worker // job.shards), views[header.slot]))
            pipe.send(("added", header.slot, replay.starts))
        elif what == "draw":
            slot, clock = facts
            drawn = replay.sample(job.batch_size, clock)
            batches[slot].copy_(Batch({name: drawn[name] for name in batches[slot]}))
            pipe.send(("drawn", slot))
        elif what == "write":
            key, writes = facts
            replay.write(key, **writes)
        elif what == "save":
            question, folder = facts
            try:
                if folder is not None:
                    replay.save_rows(folder)
                pipe.send(("saved", question, replay.state()))
            except OSError as error:  # a full disk must not end the run; the learner skips this checkpoint
                pipe.send(("saved", question, error))
        elif what == "load":
            question, state, folder = facts
            replay.load(state, folder)
            pipe.send(("loaded", question, replay.starts))


class Drawn(NamedTuple):
    """A batch in a shard's slot. It must be given to free() when it has been copied."""

    shard: int
    slot: int
    batch: Batch


def shard_layouts(layout: Layout, shards: int) -> list[Layout]:
    """The layouts of the shards of a replay. Fragments of producer i go to shard i % shards."""
    blocks = [len(range(i, layout.blocks, shards)) for i in range(shards)]
    return [replace(layout, blocks=own, capacity=max(1, layout.capacity * own // layout.blocks)) for own in blocks]


class ShardedReplay:
    """The learner's side of the shards. To runners and Run it is a replay that answers asynchronously."""

    def __init__(
        self,
        cfg: ReplayConfig,
        layout: Layout,
        shards: int,
        fragments: FragmentStore,
        count: int,
        seeds: Seeds,
        generation: int,
        timeout_sec: float,
        first_priority: FirstPriority | None = None,
    ):
        """fragments: the samplers' slots. count: number of fragments in a batch. Raises RunFailed when a shard cannot
        start."""
        assert shards <= layout.blocks, "every shard needs a producer"
        self.cfg, self.layout, self.shards, self.timeout_sec = cfg, layout, shards, timeout_sec
        self.workers = Workers()
        layouts = shard_layouts(layout, shards)
        self.drawn = [Slots(drawn_layout(layout, count), PREFETCHED) for _ in range(shards)]
        self.views = [[slots.view(slot) for slot in range(PREFETCHED)] for slots in self.drawn]
        jobs = [
            ShardJob(i, cfg, layouts[i], fragments, self.drawn[i], count, seeds, generation, first_priority, shards)
            for i in range(shards)
        ]
        self.members: list[Worker] = self.workers.start_all(
            shard_process, {f"replay-{i}": (job,) for i, job in enumerate(jobs)}
        )
        self.number = {worker.name: i for i, worker in enumerate(self.members)}
        self.idle = [deque(range(PREFETCHED)) for _ in range(shards)]  # free batch slots of each shard
        self.ready: list[Drawn] = []
        self.added: list[Key] = []  # the samplers' slots that have been copied
        self.starts_of = [0] * shards
        # For each shard, its share of all batches (in proportion to its starts) minus the batches taken from it.
        self.owed = [0.0] * shards
        self.question = 0  # the number of the last question to all shards
        self.answers: list[tuple[int, Any]] = []  # to this question
        self.finish_writes: Callable[[], None] = lambda: None  # called before saving, to complete delayed writes

    def pin(self) -> None:
        """Page-locks the batch slots, for a learner on a GPU."""
        for slots in self.drawn:
            slots.pin()

    @property
    def starts(self) -> int:
        """The number of starts that may be drawn, according to the last messages of the shards."""
        return sum(self.starts_of)

    def add(self, header: Header) -> None:
        """Tells a shard to copy a slot. The slot belongs to the shard until `added` contains its key."""
        self.workers.send(self.members[header.worker % self.shards], ("add", header))

    def draw(self, clock: Clock) -> None:
        """Lets every shard that has rows draw into its free batch slots."""
        for shard, idle in enumerate(self.idle):
            while idle and self.starts_of[shard] > 0:
                self.workers.send(self.members[shard], ("draw", idle.popleft(), clock))

    def take(self) -> Drawn | None:
        """Returns a batch that is ready, or None if there is none or if other shards must be waited for.

        Batches are taken from shards in proportion to their starts, so that a row of a small shard is not drawn more
        often than one of a large shard.
        """
        best = max(self.ready, key=lambda drawn: self.owed[drawn.shard], default=None)
        late = any(owed > 0 and starts > 0 for owed, starts in zip(self.owed, self.starts_of, strict=True))
        if best is None or self.starts == 0 or (self.owed[best.shard] < -AHEAD and late):
            return None
        self.ready.remove(best)
        self.owed = [owed + starts / self.starts for owed, starts in zip(self.owed, self.starts_of, strict=True)]
        self.owed[best.shard] -= 1.0
        return best

    def free(self, drawn: Drawn) -> None:
        self.idle[drawn.shard].append(drawn.slot)

    def write(self, drawn: Drawn, key: Tensor, /, priority: Tensor | None = None, **fields: Tensor | Batch) -> None:
        """Calls Replay.write() in the shard that drew the batch. Raises KeyError for a field that is not recorded."""
        self.layout.refuse_unknown(fields)
        writes = Batch(fields) if priority is None else Batch(fields, priority=priority)
        self.workers.send(self.members[drawn.shard], ("write", key.cpu(), writes.map(lambda x: x.detach().cpu())))

    def poll(self, timeout: float = 0.0, also: list[Any] | None = None) -> bool:
        """Reads the shards' messages, and returns whether there were any.

        Waits up to `timeout` seconds for a message, or until a handle in `also` is ready.
        """
        if timeout > 0:
            handles = [*self.workers.by_handle, *(also or [])]
            patiently(lambda seconds: wait(handles, seconds), timeout)
        messages = self.workers.receive_or_nothing(0.0)
        for worker, message in messages:
            shard = self.number[worker.name]
            what, fact = message[:2]
            if what == "added":
                self.added.append(fact)
                self.starts_of[shard] = message[2]
            elif what == "drawn":
                self.ready.append(Drawn(shard, fact, self.views[shard][fact]))
            elif fact == self.question:  # a shard may answer later than anybody waits
                self.answers.append((shard, message[2]))
        return bool(messages)

    def _ask(self, what: str, facts: Callable[[int], tuple]) -> list[Any]:
        """Asks every shard i for what=save or load, with facts(i), and returns their answers in the order of shards."""
        self.question, self.answers = self.question + 1, []
        for shard, worker in enumerate(self.members):
            self.workers.send(worker, (what, self.question, *facts(shard)))
        patience = max(self.timeout_sec, SAVE_SEC)  # rows are many, and disks are slow
        while len(self.answers) < self.shards:
            if not self.poll(patience):
                raise ProcessLost(f"the replay did not answer for {patience:.0f} s")
        return [fact for _, fact in sorted(self.answers, key=lambda answer: answer[0])]

    # -- as Run sees it ----------------------------------------------------------------------------------------------

    @property
    def saved(self) -> bool:
        return saved_with(self.layout, self.cfg)

    def save_rows(self, folder: Path) -> None:
        self.finish_writes()
        for answer in self._ask("save", lambda _: (folder,)):
            if isinstance(answer, OSError):
                raise answer

    def state(self) -> dict:
        self.finish_writes()
        return {"shards": self._ask("save", lambda _: (None,))}

    def load(self, state: dict, folder: Path | None) -> None:
        if len(state["shards"]) != self.shards:
            raise RunFailed(
                "the checkpoint's replay has another number of shards: resume with the same runner.num_shards"
            )
        self.starts_of = self._ask("load", lambda shard: (state["shards"][shard], folder))

    def close(self) -> None:
        for slots in self.drawn:
            slots.unpin()
        self.workers.stop()


def drawn_layout(layout: Layout, count: int) -> RowSpec:
    """Returns the full shapes of a batch that Replay.sample() makes."""

    def widen(spec: Field | RowSpec, rows: int) -> Field | RowSpec:
        return (
            Field((rows, count, *spec.shape), spec.dtype)
            if isinstance(spec, Field)
            else {name: widen(part, rows) for name, part in spec.items()}
        )

    seen = 2 if layout.ends else layout.rows + 1
    made: RowSpec = {
        name: widen(spec, seen if name in ("obs", "is_first") else layout.rows) for name, spec in layout.stored.items()
    }
    if layout.core:
        made["core"] = widen(layout.core, 1)
    if layout.outcomes is not None:
        made |= {name: widen(Field((), torch.float32), layout.rows) for name in OUTCOMES}
    return {**made, "weight": Field((count,), torch.float32), "key": Field((count,), torch.int64)}
