"""Records functions as CUDA graphs.

On a GPU an update is hundreds of kernels of a few microseconds each, and launching them from Python takes longer than
running them. A CUDA graph holds all of them and is launched as one.

A recording holds what the function did once: its kernels and the memory that they read and write. Therefore inputs are
copied to the memory that they had during the recording, shapes are fixed, nothing may be read back on the way, and
Python numbers are constants. Only schedules change: while a function is recorded they are tensors (GraphClock), which
are renewed before every replay.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from rlrun.core.batch import Batch
from rlrun.core.schedule import Clock, GraphClock

WARM_UP = 3  # plain calls before a function is recorded, which create lazy state and cuDNN's plans
MOST_SHAPES = 16  # recorded batch shapes; if every batch had another shape, recordings would fill the memory
# One thread at a time records, or warms up a function that it will record; others may only replay. Synchronising a
# device breaks the recordings of all its streams, and libraries do so when they start (cuDNN's handles and searches,
# cuBLAS' workspaces).
RECORDING = threading.RLock()


class GraphRecorder:
    """A way to record functions; it implements core.algorithm.Recorder."""

    device: torch.device

    def plainly(self, run: Callable[[], Any]) -> Any:
        """Runs the function as it will be recorded, but without recording it."""
        raise NotImplementedError

    def record(self, run: Callable[[], Any], rngs: Sequence[torch.Generator]) -> tuple[Any, Callable[[], None] | None]:
        """Records the function; returns its result and a function that repeats it into the same memory.

        If recording already ran the function, the first call of the returned function does nothing. A recording that
        ran a function which cannot be repeated returns None in its place. Random numbers come from `rngs`.
        """
        raise NotImplementedError

    def recorded(
        self, function: Callable[[Batch, Any], Any], rngs: Callable[[], Iterable[torch.Generator]]
    ) -> Recorded:
        return Recorded(function, self, rngs)


class CudaGraphs(GraphRecorder):
    """Records functions as CUDA graphs on a GPU."""

    def __init__(self, device: torch.device, first: bool = False):
        """first: its kernels have priority over others that wait for the GPU."""
        self.device = device
        self.stream = torch.cuda.Stream(device, priority=-1 if first else 0)
        self.pool: Any = None

    def plainly(self, run: Callable[[], Any]) -> Any:
        """Runs the function on the stream that will record it, so that autograd stays on that stream."""
        current = torch.cuda.current_stream(self.device)
        self.stream.wait_stream(current)
        with torch.cuda.stream(self.stream):
            made = run()
        current.wait_stream(self.stream)
        return made

    def record(self, run: Callable[[], Any], rngs: Sequence[torch.Generator]) -> tuple[Any, Callable[[], None]]:
        graph = torch.cuda.CUDAGraph()
        for rng in rngs:
            graph.register_generator_state(rng)
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        collects = gc.isenabled()
        gc.collect()
        gc.disable()  # collecting an old graph during the recording would break it
        try:
            # thread_local: other threads may use their own streams during the recording
            with torch.cuda.graph(graph, pool=self.pool, stream=self.stream, capture_error_mode="thread_local"):
                made = run()
        finally:
            if collects:
                gc.enable()
        self.pool = graph.pool()  # all graphs can share memory, because results are copied before the next replay
        return made, graph.replay


class Recorded:
    """A function(batch, clock) that is recorded once for every shape of its batch.

    It returns tensors in tuples, dictionaries and Batches. Results are copies.
    """

    def __init__(
        self,
        function: Callable[[Batch, Any], Any],
        recorder: GraphRecorder,
        rngs: Callable[[], Iterable[torch.Generator]],
    ):
        """rngs: returns the generators that the function draws from; it is called when the function is recorded."""
        self.function, self.recorder, self.rngs = function, recorder, rngs
        self.ways: dict[tuple, _Way] = {}

    def __call__(self, batch: Batch, clock: Clock) -> Any:
        leaves = list(batch.leaves())
        key = tuple((leaf.shape, leaf.dtype) for leaf in leaves)
        if key not in self.ways and len(self.ways) >= MOST_SHAPES:
            with RECORDING:
                return self.recorder.plainly(lambda: self.function(batch, clock))
        if key not in self.ways:
            self.ways[key] = _Way(self.function, self.recorder, list(self.rngs()))
        return self.ways[key](batch, leaves, clock)


class _Way:
    """One recorded shape."""

    def __init__(self, function: Callable[[Batch, Any], Any], recorder: GraphRecorder, rngs: list[torch.Generator]):
        self.function, self.recorder, self.rngs = function, recorder, rngs
        self.clock = GraphClock(recorder.device)
        self.calls = 0
        self.replay: Callable[[], None] | None = None
        self.plain = False  # it cannot be repeated

    def __call__(self, batch: Batch, leaves: list[Tensor], clock: Clock) -> Any:
        self.clock.renew(clock)
        if self.replay is None:
            self.calls += 1
            if self.plain:
                return self.recorder.plainly(lambda: self.function(batch, self.clock))
            if self.calls <= WARM_UP:
                with RECORDING:
                    return self.recorder.plainly(lambda: self.function(batch, self.clock))
            self._record(batch)
            if self.replay is None:
                self.plain, made = True, self._copies()
                del self.inputs, self.made, self.numbers
                return made
        for mine, given in zip(self.inputs, leaves, strict=True):
            mine.copy_(given, non_blocking=True)
        assert self.replay is not None
        self.replay()
        return self._copies()

    def _record(self, batch: Batch) -> None:
        batch = batch.map(torch.clone)
        self.inputs = list(batch.leaves())
        with RECORDING:
            (self.made, self.numbers), self.replay = self.recorder.record(lambda: self._gathered(batch), self.rngs)

    def _gathered(self, batch: Batch) -> tuple[Any, Tensor | None]:
        """Returns the function's result and its K scalars as one tensor [K], so that one kernel copies them."""
        made = self.function(batch, self.clock)
        single = [leaf.detach() for leaf in tensors(made) if _single(leaf)]
        return made, torch.stack(single) if single else None

    def _copies(self) -> Any:
        numbers = iter(() if self.numbers is None else self.numbers.clone().unbind())
        return map_tensors(lambda leaf: next(numbers) if _single(leaf) else leaf.detach().clone(), self.made)


def _single(leaf: Tensor) -> bool:
    return leaf.ndim == 0 and leaf.dtype == torch.float32


def map_tensors(function: Callable[[Tensor], Tensor], tree: Any) -> Any:
    """Applies the function to every tensor in nested (named) tuples, dictionaries and Batches; keeps other values."""
    if isinstance(tree, Tensor):
        return function(tree)
    if isinstance(tree, Batch):
        return tree.map(function)
    if isinstance(tree, dict):
        return {name: map_tensors(function, value) for name, value in tree.items()}
    if isinstance(tree, tuple):
        parts = [map_tensors(function, value) for value in tree]
        return type(tree)(*parts) if hasattr(tree, "_fields") else tuple(parts)
    return tree


def tensors(tree: Any) -> list[Tensor]:
    """Returns every tensor of such a tree, in the order of map_tensors."""
    found: list[Tensor] = []

    def note(leaf: Tensor) -> Tensor:
        found.append(leaf)
        return leaf

    map_tensors(note, tree)
    return found
