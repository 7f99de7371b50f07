"""Recorded functions: on a GPU an update is hundreds of kernels of a few microseconds each, and launching them from Python takes longer than running them.
A CUDA graph holds all of them and is launched as one.

What is recorded is what the function did once: kernels and the memory they read and write. So its inputs are copied to where they were when it was recorded,
shapes are fixed, nothing may be read back on the way, and a Python number stays as it was. Schedules are the numbers that do change: while a function is
recorded they are tensors (GraphClock), renewed before every replay.
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

WARM_UP = 3  # plain calls before a function is recorded: lazily made state, cuDNN's plans
MOST_SHAPES = 16  # that are recorded: where every batch has another shape, recordings would fill the memory
# One thread records, or does for the first times what it will record, while others replay at most: a device that is synchronised while any of its streams is
# being recorded ends that recording, and libraries do so when they begin (cuDNN's handles and searches, cuBLAS' workspaces).
RECORDING = threading.RLock()


class GraphRecorder:
    """How functions are recorded: core.algorithm.Recorder."""

    device: torch.device

    def plainly(self, run: Callable[[], Any]) -> Any:
        """Runs it as it will be recorded, unrecorded."""
        raise NotImplementedError

    def record(self, run: Callable[[], Any], rngs: Sequence[torch.Generator]) -> tuple[Any, Callable[[], None]]:
        """Records it, and returns what it returned with a function that does it again, into the same memory. If recording did it, the first call of that
        function does nothing. Random numbers come from `rngs`."""
        raise NotImplementedError

    def recorded(self, function: Callable[[Batch, Any], Any], rngs: Callable[[], Iterable[torch.Generator]]) -> Recorded:
        return Recorded(function, self, rngs)


class CudaGraphs(GraphRecorder):
    """On a GPU."""

    def __init__(self, device: torch.device, first: bool = False):
        """first: its kernels go before those of others that wait for the GPU."""
        self.device = device
        self.stream = torch.cuda.Stream(device, priority=-1 if first else 0)
        self.pool: Any = None

    def plainly(self, run: Callable[[], Any]) -> Any:
        """On the stream that it will be recorded on, so that autograd keeps to it."""
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
        gc.disable()  # an old graph that is collected meanwhile would end the recording
        try:
            # thread_local: another thread goes on with its own streams meanwhile
            with torch.cuda.graph(graph, pool=self.pool, stream=self.stream, capture_error_mode="thread_local"):
                made = run()
        finally:
            if collects:
                gc.enable()
        self.pool = graph.pool()  # results are copied before the next replay, so that all graphs may use the same memory
        return made, graph.replay


class Recorded:
    """function(batch, clock) -> tensors in tuples, dictionaries and Batches, recorded once for every shape of its batch. Results are copies."""

    def __init__(self, function: Callable[[Batch, Any], Any], recorder: GraphRecorder, rngs: Callable[[], Iterable[torch.Generator]]):
        """rngs: the generators that it draws from, asked for when it is recorded."""
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
    """Of one shape."""

    def __init__(self, function: Callable[[Batch, Any], Any], recorder: GraphRecorder, rngs: list[torch.Generator]):
        self.function, self.recorder, self.rngs = function, recorder, rngs
        self.clock = GraphClock(recorder.device)
        self.calls = 0
        self.replay: Callable[[], None] | None = None

    def __call__(self, batch: Batch, leaves: list[Tensor], clock: Clock) -> Any:
        self.clock.renew(clock)
        if self.replay is None:
            self.calls += 1
            if self.calls <= WARM_UP:
                with RECORDING:
                    return self.recorder.plainly(lambda: self.function(batch, self.clock))
            self._record(batch)
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
        """What the function returns, and its single numbers as one tensor [K], so that copying them is one kernel."""
        made = self.function(batch, self.clock)
        single = [leaf.detach() for leaf in tensors(made) if _single(leaf)]
        return made, torch.stack(single) if single else None

    def _copies(self) -> Any:
        numbers = iter(() if self.numbers is None else self.numbers.clone().unbind())
        return map_tensors(lambda leaf: next(numbers) if _single(leaf) else leaf.detach().clone(), self.made)


def _single(leaf: Tensor) -> bool:
    return leaf.ndim == 0 and leaf.dtype == torch.float32


def map_tensors(function: Callable[[Tensor], Tensor], tree: Any) -> Any:
    """The same tuples (named ones too), dictionaries and Batches with the function applied to every tensor; other things stay."""
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
    """Every tensor of such a tree, in map_tensors' order."""
    found: list[Tensor] = []

    def note(leaf: Tensor) -> Tensor:
        found.append(leaf)
        return leaf

    map_tensors(note, tree)
    return found
