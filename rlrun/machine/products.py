"""Chooses the library that multiplies float32 matrices on a CPU.

PyTorch uses MKL, which has no AVX-512 code for AMD processors; oneDNN, which also comes with PyTorch, has. On a Zen 5
core oneDNN takes half the time for large products (256x256x256: 173 us instead of 344 us), but 15 us more for every
product, so that it is slower for networks of a few thousand weights.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from rlrun.machine.processor import cpu_flags, processor

SMALLEST = 2**12  # multiplications in a product; PyTorch uses MKL for smaller products in any case
SAVED_US = 1e-5  # microseconds saved per multiplication: MKL does 48,000 per microsecond, oneDNN 97,000
COST_US = 15.0  # microseconds that oneDNN adds to every product
# PyTorch's names. "bf16" allows oneDNN to use bfloat16, which it does not do on processors without AMX; "none" is the
# default.
ROUTE, PLAIN = "bf16", "none"
# position of the first factor among the arguments
PRODUCTS = {
    torch.ops.aten.mm.default: 0,
    torch.ops.aten.addmm.default: 1,
    torch.ops.aten.bmm.default: 0,
    torch.ops.aten.baddbmm.default: 1,
}


def library() -> Any:
    """The PyTorch module that holds the choice; None before PyTorch 2.9, which has no such choice."""
    return getattr(torch.backends.mkldnn, "matmul", None)


def pays() -> bool:
    """Whether oneDNN's products on this processor are as exact as MKL's, and faster for large matrices."""
    there = processor().get("vendor_id") == "AuthenticAMD" and "avx512f" in cpu_flags()
    return there and library() is not None and exact()


def exact() -> bool:
    """Whether products through oneDNN keep the precision of float32. 257 needs nine bits; bfloat16 has eight."""
    odd = torch.full((64, 64), 257.0)
    with _Through():
        return bool(torch.equal(odd @ torch.eye(64), odd))


class _Through:
    """A context in which products go through oneDNN."""

    def __enter__(self) -> None:
        self.place = library()
        self.before = self.place.fp32_precision
        self.place.fp32_precision = ROUTE

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.place.fp32_precision = self.before


class _Gain(TorchDispatchMode):
    """A context that adds up how many microseconds oneDNN would save for the products in it."""

    def __init__(self) -> None:
        super().__init__()
        self.us = 0.0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """PyTorch asks whether its compiler should leave the method below alone, and imports the compiler to tell it
        so. That takes a second. Nothing is compiled here, so the answer does not matter."""
        return False

    def __torch_dispatch__(self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        made = function(*args, **(kwargs or {}))
        if function in PRODUCTS and made.dtype == torch.float32:
            multiplications = made.numel() * args[PRODUCTS[function]].shape[-1]
            if multiplications > SMALLEST:
                self.us += SAVED_US * multiplications - COST_US
        return made


class Products:
    """A context for updates. It watches the first update; later ones use the library that is faster for such an update.

    The choice is computed from the sizes of the products and not measured, so that the same run makes the same choice.
    """

    def __init__(self, possible: bool):
        """possible: False on a GPU and in exact runs, where the first update after a resume must be like any other."""
        self.through: bool | None = None if possible and pays() else False
        self.inside: _Gain | _Through | None = None

    def __enter__(self) -> None:
        if self.through is not False:
            self.inside = _Gain() if self.through is None else _Through()
            self.inside.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        inside, self.inside = self.inside, None
        if inside is not None:
            inside.__exit__(kind, error, trace)
        if isinstance(inside, _Gain) and error is None:
            self.through = inside.us > 0
