"""Records functions on a CPU as lists of kernels.

An update of small networks is hundreds of kernels of a microsecond or two each, and PyTorch takes longer to find out
what to do (modules, autograd's graph, memory for results) than to do it. A tape holds the kernels that one call of the
function ran, with the memory that they read and wrote, and runs them again on that memory: the same kernels in the same
order, hence the same numbers to the bit. Two things are the same only up to rounding, because the value of a schedule
that changes is a tensor on a tape: steps of rmsprop, radam and sgd whose lr changes, and a loss with a coefficient that
changes where the number of rows multiplies that loss (impala's loss_reduction=sum).

What a CUDA graph is on a GPU (machine/graphs.py, whose rules hold here as well), a tape is on a CPU. QMIX's update for
the two-step game takes 0.57 of the time, DQN's for CartPole 0.67.

Not everything is run again. Views stay what they are, since memory does not move. Results that nobody reads are left
out. What is computed from constants only is still there. Large updates are run plainly: their time goes into the
kernels, and a tape would keep all of their memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from rlrun.machine.graphs import GraphRecorder, tensors

LARGEST = 16 * 2**20  # bytes that the results of a taped function take; above, plain calls are nearly as fast
# Kernels after which the function may go on differently, depending on the numbers.
READ_BACK = {
    "aten::_local_scalar_dense",
    "aten::item",
    "aten::is_nonzero",
    "aten::nonzero",
    "aten::masked_select",
    "aten::unique_dim",
    "aten::_unique2",
    "aten::equal",
}
READING = {"numpy", "tolist", "item", "__array__"}  # methods of tensors that no dispatcher sees
UNSET = {"aten::empty", "aten::empty_like", "aten::empty_strided", "aten::new_empty", "aten::new_empty_strided"}
# Their results depend on the shapes of what they are given only.
FILLED = {f"aten::{name}" for name in ("zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full")}
ALLOCATION = {"dtype", "layout", "device", "pin_memory"}  # arguments that say how to make a result


class Kernel(NamedTuple):
    """One kernel as it ran. Memory is named by the address of its storage."""

    function: Any
    args: tuple
    kwargs: dict[str, Any]
    results: list[Tensor]
    reads: set[int]
    writes: set[int]
    in_place: bool


class Tapes(GraphRecorder):
    """Records functions as tapes. One that reads numbers back, or is too large, is called plainly."""

    device = torch.device("cpu")

    def plainly(self, run: Callable[[], Any]) -> Any:
        return run()

    def record(self, run: Callable[[], Any], rngs: Sequence[torch.Generator]) -> tuple[Any, Callable[[], None] | None]:
        tape = _Tape()
        with tape, _Reading(tape):
            made = run()
        if tape.reads_back or _bytes(tape.kernels) > LARGEST:
            return made, None
        return made, _Player(needed(tape.kernels, {address(leaf) for leaf in tensors(made)}))


class _Tape(TorchDispatchMode):
    """Notes every kernel that runs in this thread, below autograd."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels: list[Kernel] = []
        self.reads_back = False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Spares the import of torch._dynamo, which takes a second."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        by_mask = func._schema.name.startswith("aten::index") and any(
            part.dtype == torch.bool for part in _tensors(args[1:2])
        )
        self.reads_back |= func._schema.name in READ_BACK or by_mask
        made = func(*args, **kwargs)
        self.kernels.append(_kernel(func, args, kwargs, made))
        return made


class _Reading(TorchFunctionMode):
    """Notices methods that hand a tensor's numbers to Python without a kernel."""

    def __init__(self, tape: _Tape):
        super().__init__()
        self.tape = tape

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.tape.reads_back |= getattr(func, "__name__", "") in READING
        return func(*args, **(kwargs or {}))


class _Player:
    """Runs kernels again, into the memory that their results had."""

    def __init__(self, kernels: Iterable[Kernel]):
        self.calls = [_again(kernel) for kernel in kernels]
        self.done = True  # recording was the first time

    def __call__(self) -> None:
        if self.done:
            self.done = False
            return
        with torch.no_grad():
            for call in self.calls:
                call()


def address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def needed(kernels: Sequence[Kernel], kept: set[int]) -> list[Kernel]:
    """Returns the kernels that have to run again, in their order, so that memory in `kept` and all memory that the
    kernels did not make themselves is as after running all of them."""
    kernels = [kernel for kernel in kernels if kernel.in_place or not kernel.writes <= kernel.reads]  # others are views
    own = {place for kernel in kernels if not kernel.in_place for place in kernel.writes}
    rewritten = {place for kernel in kernels if kernel.in_place for place in kernel.writes}
    constant: set[int] = set()
    again = []
    for kernel in kernels:
        name = kernel.function._schema.name
        fixed = name in FILLED or (kernel.reads <= constant and not _draws(kernel.function))
        if name in UNSET or (fixed and not kernel.in_place and not kernel.writes & rewritten):
            constant |= set() if name in UNSET else kernel.writes
        else:
            again.append(kernel)
    wanted, made = set(kept), []
    for kernel in reversed(again):
        if kernel.writes & wanted or kernel.writes - own or not kernel.writes:
            wanted |= kernel.reads
            made.append(kernel)
    return made[::-1]


def _kernel(function: Any, args: tuple, kwargs: dict[str, Any], made: Any) -> Kernel:
    results, in_place = _tensors(made), function._schema.is_mutable
    writes = {address(result) for result in results}
    if in_place:
        for place, argument in enumerate(function._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                given = args[place] if place < len(args) else kwargs.get(argument.name)
                writes |= {address(part) for part in _tensors(given)}
    reads = {address(part) for part in _tensors((args, kwargs))}
    return Kernel(function, args, kwargs, results, reads, writes, in_place)


def _again(kernel: Kernel) -> Callable[[], Any]:
    """The call that repeats a kernel into the memory of its results."""
    if kernel.in_place:
        return partial(kernel.function._op, *kernel.args, **kernel.kwargs)
    if kernel.function is torch.ops.aten._to_copy.default:
        return partial(kernel.results[0].copy_, kernel.args[0])
    into = _into(kernel.function)
    if into is None or len(into.names) != len(kernel.results):
        return partial(_copied, kernel)
    kwargs = {name: value for name, value in kernel.kwargs.items() if name in into.takes}
    return partial(into.function._op, *kernel.args, **kwargs, **dict(zip(into.names, kernel.results, strict=True)))


def _copied(kernel: Kernel) -> None:
    """Repeats a kernel that cannot write into given memory."""
    for result, new in zip(kernel.results, _tensors(kernel.function(*kernel.args, **kernel.kwargs)), strict=True):
        result.copy_(new)


class Into(NamedTuple):
    """The form of a kernel that writes into given memory: the names of its results and of its other arguments."""

    function: Any
    names: list[str]
    takes: set[str]


@cache
def _into(function: Any) -> Into | None:
    packet = function._overloadpacket
    if any(str(one.type) != "Tensor" for one in function._schema.returns):
        return None
    wanted = [(one.name, str(one.type)) for one in function._schema.arguments if one.name not in ALLOCATION]
    for name in packet.overloads():
        other = getattr(packet, name)
        results = [one.name for one in other._schema.arguments if one.is_out]
        rest = [(one.name, str(one.type)) for one in other._schema.arguments if not one.is_out]
        same = [one for one in rest if one[0] not in ALLOCATION] == wanted
        if results and same and len(results) == len(function._schema.returns):
            return Into(other, results, {one[0] for one in rest})
    return None


def _draws(function: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in function.tags


def _bytes(kernels: Iterable[Kernel]) -> int:
    sizes: dict[int, int] = {}
    for kernel in kernels:
        if not kernel.in_place:
            sizes |= {address(one): one.untyped_storage().nbytes() for one in kernel.results}
    return sum(sizes.values())


def _tensors(tree: Any) -> list[Tensor]:
    if isinstance(tree, Tensor):
        return [tree]
    parts = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list | tuple) else ()
    return [leaf for part in parts for leaf in _tensors(part)]
