"""The choice of the library that multiplies matrices."""

import pytest
import torch

from rlrun.machine import products
from rlrun.machine.products import Products, exact, library, pays

there = pytest.mark.skipif(library() is None, reason="this PyTorch has no such choice")


def chosen(monkeypatch, *shapes, possible=True):
    """Returns the choice for updates with products of these shapes (rows, inner, columns)."""
    monkeypatch.setattr(products, "pays", lambda: True)
    context = Products(possible)
    with context:
        for m, k, n in shapes:
            torch.ones(m, k) @ torch.ones(k, n)
    return context


@there
def test_large_products_go_through_onednn_and_small_ones_do_not(monkeypatch):
    assert chosen(monkeypatch, (256, 256, 256)).through is True
    assert chosen(monkeypatch, (64, 64, 64)).through is False
    assert chosen(monkeypatch, (256, 256, 256), *[(17, 17, 17)] * 40).through is False, (
        "what many small ones lose is more than a large one gains"
    )
    assert chosen(monkeypatch, (256, 256, 256), possible=False).through is False


@there
def test_gradients_and_batches_of_products_count_too(monkeypatch):
    monkeypatch.setattr(products, "pays", lambda: True)
    weight = torch.ones(64, 64, requires_grad=True)
    for learns, wanted in ((False, False), (True, True)):
        context = Products(True)
        with context:
            made = torch.ones(360, 64) @ weight  # saves 14.7 us, less than the cost of 15 us
            if learns:
                made.backward(torch.ones_like(made))
                torch.bmm(torch.ones(4, 256, 64), torch.ones(4, 64, 256))
        assert context.through is wanted


@there
def test_the_choice_holds_inside_updates_alone(monkeypatch):
    context, before = chosen(monkeypatch, (256, 256, 256)), library().fp32_precision
    with context:
        assert library().fp32_precision == products.ROUTE
    assert library().fp32_precision == before
    with pytest.raises(KeyError), context:
        raise KeyError
    assert library().fp32_precision == before, "also when an update fails"


def test_an_update_that_fails_while_it_is_watched_decides_nothing(monkeypatch):
    monkeypatch.setattr(products, "pays", lambda: True)
    context = Products(True)
    with pytest.raises(KeyError), context:
        raise KeyError
    assert context.through is None


@there
def test_where_it_is_chosen_products_keep_their_digits():
    if not pays():
        pytest.skip("this processor's products stay with MKL")
    assert exact()
    a, b = torch.randn(256, 256), torch.randn(256, 256)
    wanted = a.double() @ b.double()
    context = Products(True)
    with context:
        a @ b
    assert context.through
    with context:
        made = a @ b
    # the tolerance is float32's rounding; bfloat16's would be 0.1
    assert (made - wanted).abs().max() < 1e-3


def test_a_processor_that_rounds_to_bfloat16_is_found_out(monkeypatch):
    class Rounding:
        fp32_precision = "none"

    monkeypatch.setattr(products, "library", Rounding)
    real = torch.Tensor.__matmul__
    monkeypatch.setattr(torch.Tensor, "__matmul__", lambda a, b: real(a.bfloat16(), b.bfloat16()).float())
    assert not exact()
