"""LaProp, clipping relative to weights, and warm-up, against formulas in NumPy."""

import numpy as np
import pytest
import torch
from conftest import optimizer_config

from rlrun.core.optimizer import Optimizer
from rlrun.core.schedule import Clock, Schedule

LR = Schedule(((0.0, 0.01),))


def laprop(weights, gradients, lr, agc=0.0, beta1=0.9, beta2=0.999, epsilon=1e-20, warmup=0, decay=0.0):
    """The author's chain of transformations (embodied/jax/opt.py of danijar/dreamerv3), one weight after the other."""
    weights = [w.astype(np.float64).copy() for w in weights]
    square, mean = [0.0 * w for w in weights], [0.0 * w for w in weights]
    for t, step in enumerate(gradients, 1):
        for i, g in enumerate(step):
            if agc:
                bound = agc * max(1e-3, np.linalg.norm(weights[i]))
                g = g / max(1.0, np.linalg.norm(g) / bound)
            square[i] = beta2 * square[i] + (1 - beta2) * g * g
            normal = g / (np.sqrt(square[i] / (1 - beta2**t)) + epsilon)
            mean[i] = beta1 * mean[i] + (1 - beta1) * normal
            rate = lr * min(1.0, (t - 1) / warmup) if warmup else lr
            weights[i] = weights[i] - rate * (mean[i] / (1 - beta1**t) + decay * weights[i])
    return weights


@pytest.mark.parametrize("deferred", [False, True])
@pytest.mark.parametrize("more", [{}, {"agc": 0.3}, {"agc": 0.01, "warmup": 4}, {"decay": 0.1}])
def test_steps_are_those_of_the_formula(more, deferred):
    rng = np.random.default_rng(0)
    shapes = [(3, 5), (7,), (2, 2, 2)]
    start = [rng.normal(0, scale, shape) for scale, shape in zip((1.0, 1e-5, 30.0), shapes, strict=True)]
    gradients = [[rng.normal(0, scale, shape) for scale, shape in zip((5.0, 1e-6, 1e3), shapes, strict=True)]
                 for _ in range(7)]  # fmt: skip
    parameters = [torch.nn.Parameter(torch.from_numpy(w).float()) for w in start]
    cfg = optimizer_config(kind="laprop", epsilon=1e-20, agc=more.get("agc", 0.0), warmup_updates=more.get("warmup", 0),
                           weight_decay=more.get("decay", 0.0))  # fmt: skip
    made = Optimizer(parameters, cfg, LR, 0.0, deferred=deferred)
    for number, step in enumerate(gradients):
        loss = sum((p * torch.from_numpy(g).float()).sum() for p, g in zip(parameters, step, strict=True))
        made.step(loss, Clock(number, number))
    for parameter, wanted in zip(parameters, laprop(start, gradients, 0.01, **more), strict=True):
        np.testing.assert_allclose(parameter.detach().numpy(), wanted, rtol=2e-4, atol=1e-7)


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e6])
def test_the_first_step_has_the_size_of_lr_whatever_the_gradients_are(scale):
    parameter = torch.nn.Parameter(torch.zeros(4))
    made = Optimizer([parameter], optimizer_config(kind="laprop", epsilon=1e-20), LR, 0.0)
    made.step((parameter * torch.tensor([1.0, -2.0, 3.0, 0.0]) * scale).sum(), Clock())
    torch.testing.assert_close(parameter.detach(), torch.tensor([-0.01, 0.01, -0.01, 0.0]))


def test_small_gradients_are_not_clipped_and_large_ones_keep_their_direction():
    weight = torch.tensor([3.0, 4.0])  # of norm 5
    for size, kept in ((1.4, 1.4), (15.0, 1.5)):
        parameter = torch.nn.Parameter(weight.clone())
        made = Optimizer([parameter], optimizer_config(kind="sgd", agc=0.3), Schedule(((0.0, 1.0),)), 0.0)
        made.step((parameter * torch.tensor([0.6, 0.8]) * size).sum(), Clock())
        torch.testing.assert_close(weight - parameter.detach(), torch.tensor([0.6, 0.8]) * kept)


def test_warmth_and_statistics_are_saved():
    def optimizer():
        parameter = torch.nn.Parameter(torch.ones(3))
        cfg = optimizer_config(kind="laprop", epsilon=1e-20, warmup_updates=5)
        return parameter, Optimizer([parameter], cfg, LR, 0.0)

    (one, first), (other, second) = optimizer(), optimizer()
    for number in range(3):
        first.step((one * number).sum(), Clock())
    other.data.copy_(one.data)
    second.load_state_dict(first.state_dict())
    assert [float(each.step(weight.square().sum(), Clock())["lr"]) for weight, each in ((one, first), (other, second))] == [
        pytest.approx(0.006)] * 2  # fmt: skip
    assert torch.equal(one, other)
