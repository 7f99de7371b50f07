"""Which library multiplies float32 matrices on a CPU.

PyTorch asks MKL, which has no AVX-512 code for AMD's processors; oneDNN, which comes with PyTorch too, has. On a Zen 5 core it takes half of the time for
large products (256x256x256: 173 against 344 us) and 15 us more for any, so that it is worse for nets of a few thousand weights."""

from __future__ import annotations

from types import TracebackType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from rlrun.machine.processor import cpu_flags, processor

SMALLEST = 2**12  # multiplications: PyTorch asks MKL for fewer in any case
SAVED_US = 1e-5  # per multiplication: 48,000 and 97,000 of them per microsecond
COST_US = 15.0  # per product
ROUTE, PLAIN = "bf16", "none"  # PyTorch's names: "may go through bfloat16", which processors without AMX do not do, and "as ever"
PRODUCTS = {torch.ops.aten.mm.default: 0, torch.ops.aten.addmm.default: 1, torch.ops.aten.bmm.default: 0, torch.ops.aten.baddbmm.default: 1}  # first factor


def library() -> Any:
    """Where PyTorch keeps the choice; None in versions before 2.9, which have no such."""
    return getattr(torch.backends.mkldnn, "matmul", None)


def pays() -> bool:
    """Whether this processor is one for which oneDNN's products are as exact as MKL's and faster when large."""
    there = processor().get("vendor_id") == "AuthenticAMD" and "avx512f" in cpu_flags()
    return there and library() is not None and exact()


def exact() -> bool:
    """Whether a product that is told to go through oneDNN keeps float32's digits: 257 has nine bits, bfloat16 eight."""
    odd = torch.full((64, 64), 257.0)
    with _Through():
        return bool(torch.equal(odd @ torch.eye(64), odd))


class _Through:
    """Products go through oneDNN inside."""

    def __enter__(self) -> None:
        self.place = library()
        self.before = self.place.fp32_precision
        self.place.fp32_precision = ROUTE

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.place.fp32_precision = self.before


class _Gain(TorchDispatchMode):
    """Adds up how many microseconds the other library would save for the products made inside."""

    def __init__(self) -> None:
        super().__init__()
        self.us = 0.0

    def __torch_dispatch__(self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        made = function(*args, **(kwargs or {}))
        if function in PRODUCTS and made.dtype == torch.float32:
            multiplications = made.numel() * args[PRODUCTS[function]].shape[-1]
            if multiplications > SMALLEST:
                self.us += SAVED_US * multiplications - COST_US
        return made


class Products:
    """A context for updates: the first one is watched, and from then on its products are made by the library that is faster for such an update. The choice is
    arithmetic, not timing, so the same run makes the same choice."""

    def __init__(self, possible: bool):
        """possible: False where nothing is to be chosen (a GPU; a run that is to be exact, where a resumed one's first update must be like any other)."""
        self.through: bool | None = None if possible and pays() else False
        self.inside: _Gain | _Through | None = None

    def __enter__(self) -> None:
        if self.through is not False:
            self.inside = _Gain() if self.through is None else _Through()
            self.inside.__enter__()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        inside, self.inside = self.inside, None
        if inside is not None:
            inside.__exit__(kind, error, trace)
        if isinstance(inside, _Gain) and error is None:
            self.through = inside.us > 0
