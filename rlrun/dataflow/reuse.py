"""Using fragments more than once: replay of whole fragments, and several passes over train batches."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence

import torch

from rlrun.core.batch import Batch, stack_columns
from rlrun.core.timing import Timers
from rlrun.dataflow.slots import Fragment


class FragmentReplay:
    """Keeps copies of the last `slots` fragments, and adds `proportion` of them on average to every new fragment.

    The replayed fragments are drawn uniformly from those that are kept, of which the newest is one (IMPALA section
    5.2.2; RLlib's replay_proportion and replay_buffer_num_slots). A fragment that was drawn stays what it was until it
    is given back with release(), however many new fragments arrive meanwhile.
    """

    def __init__(self, proportion: float, slots: int, rng: torch.Generator):
        self.proportion, self.slots, self.rng = proportion, slots, rng
        self.kept: list[Batch] = []
        self.next = 0
        self.drawn: Counter[int] = Counter()  # how often a fragment, by its id, was drawn and not yet given back

    def clear(self, rng: torch.Generator) -> None:
        """Forgets all fragments and continues with this generator. At a bit-exact checkpoint both the saving and the
        resumed run do this."""
        self.kept, self.next, self.rng = [], 0, rng
        self.drawn.clear()

    def accompany(self, fragment: Fragment) -> list[Batch]:
        """Keeps a copy of the fragment, and returns the replayed fragments to use with it."""
        if self.slots == 0 or self.proportion == 0:
            return []
        if len(self.kept) < self.slots:
            self.kept.append(fragment.batch.clone())
        else:
            oldest = self.kept[self.next]
            if self.drawn[id(oldest)]:  # it waits for its train batch, so that its memory cannot be used yet
                self.kept[self.next] = fragment.batch.clone()
            else:
                oldest.copy_(fragment.batch)
            self.next = (self.next + 1) % self.slots
        count = int(self.proportion)
        if float(torch.rand((), generator=self.rng)) < self.proportion - count:
            count += 1
        picks = [self.kept[pick] for pick in torch.randint(len(self.kept), (count,), generator=self.rng).tolist()]
        self.drawn.update(map(id, picks))
        return picks

    def release(self, batches: Iterable[Batch]) -> None:
        """Takes fragments back that accompany() returned and whose rows have been copied."""
        for batch in batches:
            self.drawn[id(batch)] -= 1
            if not self.drawn[id(batch)]:
                del self.drawn[id(batch)]


class PassRing:
    """Holds `size` train batches and emits each of them `passes` times, taking turns (RLlib's minibatch_buffer_size and
    num_sgd_iter)."""

    def __init__(self, size: int, passes: int, build: Callable[[Batch | None], Batch]):
        self.build = build  # takes an old batch whose memory may be overwritten, or None, and returns a new batch
        self.passes = passes
        self.batches: list[Batch | None] = [None] * size
        self.left = [0] * size
        self.next = 0

    def clear(self) -> None:
        """Forgets all batches, for a bit-exact checkpoint."""
        self.left = [0] * len(self.left)
        self.next = 0

    def emit(self) -> Batch:
        index = self.next
        self.next = (self.next + 1) % len(self.batches)
        if self.left[index] == 0:
            self.batches[index] = self.build(self.batches[index])
            self.left[index] = self.passes
        self.left[index] -= 1
        batch = self.batches[index]
        assert batch is not None
        return batch


def gather(batches: list[Batch], out: Batch | None, device: torch.device) -> Batch:
    """Copies fragments side by side into one batch, so that their slots can be given back.

    out: a batch whose memory may be used, if it fits.
    """
    if out is not None and len(batches) == 1:  # a single batch may have leaves without columns
        out.copy_(batches[0])
        return out
    if (
        out is not None
        and out.reward.device == device
        and out.reward.shape[1] == sum(b.reward.shape[1] for b in batches)
    ):
        return stack_columns(batches, out)
    stacked = stack_columns(batches)
    if device.type == "cpu":
        return stacked.clone() if len(batches) == 1 else stacked
    return stacked.to(device)


class Courier:
    """Copies Batches from main memory to a GPU on a separate stream, while the GPU does other work. The originals may
    be overwritten after the call."""

    def __init__(self, device: torch.device):
        self.device, self.stream = device, torch.cuda.Stream(device)

    def __call__(self, batches: Sequence[Batch]) -> list[Batch]:
        current = torch.cuda.current_stream(self.device)
        with torch.cuda.stream(self.stream):
            made = [batch.to(self.device) for batch in batches]
            copied = torch.cuda.Event(blocking=True)
            copied.record(self.stream)
        copied.synchronize()
        current.wait_event(copied)
        for batch in made:
            for leaf in batch.leaves():
                leaf.record_stream(current)
        return made


AHEAD = 2  # largest number of updates that may be queued on a GPU and not be finished


class Gatherer:
    """gather() for one learner.

    On a GPU, fragments are copied while the previous update is still being computed. The thread waits only where it
    would get more than AHEAD batches ahead, because samplers gain nothing from updates that are not finished.
    """

    def __init__(self, device: torch.device, timers: Timers):
        self.device, self.timers = device, timers
        self.courier = Courier(device) if device.type == "cuda" else None
        self.on_gpu = self.courier is not None
        self.told: deque[torch.cuda.Event] = deque()  # for each batch, the end of all work that was queued before it

    def __call__(self, batches: list[Batch], out: Batch | None = None) -> Batch:
        """Returns one batch of these fragments. out: a batch whose memory may be used (only on a CPU)."""
        if self.courier is None:
            with self.timers("copy"):
                return gather(batches, out, self.device)
        return self.upload(*batches)

    def upload(self, *batches: Batch) -> Batch:
        """Does the same without a copy on a CPU, for batches that only the caller uses."""
        if self.courier is None:
            return stack_columns(batches)
        event = torch.cuda.Event(blocking=True)
        event.record(torch.cuda.current_stream(self.device))
        self.told.append(event)
        with self.timers("gpu"):
            while len(self.told) >= AHEAD:
                self.told.popleft().synchronize()
        with self.timers("copy"):
            return stack_columns(self.courier(batches))
