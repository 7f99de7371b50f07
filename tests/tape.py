"""A CUDA graph as the CPU can have one: kernels and the memory they read and write, played again on that memory."""

import dis
import sys

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from rlrun.machine.graphs import GraphRecorder

READ_BACK = {
    "aten::_local_scalar_dense",
    "aten::item",
    "aten::is_nonzero",
    "aten::nonzero",
    "aten::masked_select",
    "aten::unique_dim",
    "aten::equal",
}


class Unrecordable(Exception):
    """Numbers would have to come back from the GPU in the middle of a recording."""


class Tape(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.kernels = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = func._schema.name
        by_mask = name.startswith("aten::index") and any(
            part is not None and part.dtype == torch.bool for part in _tensors(args[1:2])
        )
        if name in READ_BACK or by_mask or (name == "aten::lift_fresh" and _waits()):
            raise Unrecordable(name)
        out = func(*args, **kwargs)
        self.kernels.append((func, args, kwargs, out))
        return out

    def play(self):
        with torch.no_grad():
            for func, args, kwargs, out in self.kernels:
                inputs = {t.untyped_storage().data_ptr() for t in _tensors((args, kwargs))}
                view = bool(_tensors(out)) and all(t.untyped_storage().data_ptr() in inputs for t in _tensors(out))
                if view and not func._schema.is_mutable:
                    continue
                again = func(*args, **kwargs)
                assert len(_tensors(out)) == len(_tensors(again)), func
                for old, new in zip(_tensors(out), _tensors(again), strict=True):
                    if old.untyped_storage().data_ptr() not in inputs:
                        old.copy_(new)


def _waits():
    """Whether a tensor that is just made of Python numbers would be copied to a GPU, which is waited for. PyTorch's
    optimisers make one on a CPU only, and x[i] = 1.0 fills memory of the GPU."""
    frame = sys._getframe(2)
    while "/torch/" in frame.f_code.co_filename:
        if "/torch/optim/" in frame.f_code.co_filename:
            return False
        frame = frame.f_back
    return dis.opname[frame.f_code.co_code[frame.f_lasti]] != "STORE_SUBSCR"


def _tensors(tree):
    if isinstance(tree, torch.Tensor):
        return [tree]
    if isinstance(tree, dict):
        tree = tuple(tree.values())
    return [t for part in tree for t in _tensors(part)] if isinstance(tree, list | tuple) else []


class Tapes(GraphRecorder):
    """Recordings and replays are counted."""

    device = torch.device("cpu")

    def __init__(self):
        self.recordings = self.replayed = 0

    def plainly(self, run):
        return run()

    def record(self, run, rngs):
        self.recordings += 1
        tape, done = Tape(), True
        with tape:
            made = run()

        def replay():
            nonlocal done
            self.replayed += 1
            if not done:  # recording was the first time
                tape.play()
            done = False

        return made, replay
