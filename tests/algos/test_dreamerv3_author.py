"""One update of DreamerV3 beside the author's own code (danijar/dreamerv3 @ e3f0224, in JAX) from the same weights, rows and random numbers.

tests/data/dreamerv3_author_*.npz holds what the author's code computed; the head of scripts/peers/dreamerv3_author.py says how it was made."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from test_all import start

from rlrun.algos.dreamerv3 import DreamerV3
from rlrun.core.batch import Batch
from rlrun.core.schedule import Clock
from rlrun.core.specs import Box, Discrete
from rlrun.models.model import Model
from rlrun.policies.dreamer import DreamerPolicy

STOCH, CLASSES, DETER, STEPS = 4, 3, 16, 3
DATA = Path(__file__).parent.parent / "data"
# Classes come first in z here, and variables first in the author's.
ORDER = np.arange(STOCH * CLASSES).reshape(STOCH, CLASSES).T.flatten()


def pairs(made):
    """The author's names of all weights with tensors of this algorithm, and how the author's are put into their order."""
    rssm = made.policy.rssm
    features = np.concatenate([np.arange(DETER), DETER + ORDER])
    swapped = np.concatenate([STOCH * CLASSES + np.arange(DETER), ORDER])  # the decoder sees z before h

    def layer(name, net, norm=None, inputs=slice(None), outputs=slice(None)):
        yield f"{name}/kernel", net.weight, lambda x: x[inputs][:, outputs].T
        yield f"{name}/bias", net.bias, lambda x: x[outputs]
        if norm:
            yield f"{norm}/scale", net.scale, lambda x: x

    def stack(name, nets, inputs=features):
        for number, net in enumerate(nets):
            first = inputs if number == 0 else slice(None)
            yield from layer(f"{name}/mlp/linear{number}", net, f"{name}/mlp/norm{number}", first)

    yield from layer("dyn/dynin0", rssm.of_h, "dyn/dynin0norm")
    yield from layer("dyn/dynin1", rssm.of_z, "dyn/dynin1norm", ORDER)
    yield from layer("dyn/dynin2", rssm.of_action, "dyn/dynin2norm")
    for name, net in (("dynhid0", rssm.mixed), ("dyngru", rssm.gates)):
        yield f"dyn/{name}/kernel", net.weight, lambda x: x
        yield f"dyn/{name}/bias", net.bias, lambda x: x
    yield "dyn/dynhid0norm/scale", rssm.mixed_scale, lambda x: x
    for number, net in enumerate(rssm.prior.layers):
        yield from layer(f"dyn/prior{number}", net, f"dyn/prior{number}norm")
    yield from layer("dyn/priorlogit", rssm.prior.last, outputs=ORDER)
    yield from layer("dyn/obs0", rssm.posterior.first, "dyn/obs0norm")
    yield from layer("dyn/obslogit", rssm.posterior.last, outputs=ORDER)
    for number, net in enumerate(made.policy.encoder.layers):
        yield from layer(f"enc/mlp{number}", net, f"enc/mlp{number}norm")
    yield from stack("dec", made.decoder.layers, swapped)
    yield from layer("dec/vec/obs/pred", made.decoder.outputs[0])
    for name, net, last in (("rew", made.reward, "logits"), ("con", made.continues, "logit"), ("val", made.value, "logits"),
                            ("slowval", made.slow_value, "logits")):  # fmt: skip
        yield from stack(name, net.layers)
        yield from layer(f"{name}/head/{last}", net.last)
    actor = made.policy.actor
    yield from stack("pol", actor.layers)
    yield from layer(f"pol/head/action/{'logits' if actor.deviation is None else 'mean'}", actor.last)
    if actor.deviation is not None:
        yield from layer("pol/head/action/stddev", actor.deviation)


class Given:
    """Stands for the context's random numbers."""

    def __init__(self, stored, ctx):
        self.ctx, self.noise = ctx, {name: torch.from_numpy(stored[f"noise/{name}"]) for name in ("followed", "dreamt", "gumbel", "normal")}

    def __getattr__(self, name):
        return getattr(self.ctx, name)

    def rand(self, shape):
        if len(shape) == 3:  # columns, rows, variables; the row before the others draws the first class
            return torch.cat((torch.zeros(shape[0], 1, STOCH), self.noise["followed"].unsqueeze(1).expand(-1, shape[1] - 1, -1)), 1)
        return self.dreamt("dreamt" if shape[-1] == STOCH else "gumbel", shape)

    def randn(self, shape):
        return self.dreamt("normal", shape)

    def dreamt(self, name, shape):  # columns, rows where dreams begin, steps, numbers
        return self.noise[name].view(shape[0], shape[1], 1, shape[3]).expand(shape)


@pytest.mark.parametrize("case", ["numbers", "choices", "last"])
def test_an_update_is_the_authors(case, typed):
    stored = np.load(DATA / f"dreamerv3_author_{case}.npz")
    words = [
        "algo.batch_size=2", "algo.batch_length=5", "algo.horizon=10", "algo.lr=1e-3", "algo.entropy_coef=0.1", "algo.return_norm.limit=0.01",
        f"algo.imag_length={STEPS}", f"model.unimix={0.0 if case == 'choices' else 0.01}", f"model.stoch={STOCH}", f"model.classes={CLASSES}",
        f"model.deter={DETER}", "model.hidden=8", "model.units=8", "model.blocks=2", "model.bins=15",
        f"algo.imag_last={3 if case == 'last' else 0}",
    ]  # fmt: skip
    _, other, _ = start(typed, "dreamerv3", "env=Pendulum-v1", *words)
    action = Box(shape=(3,), dtype="float32", low=(-1.0,) * 3, high=(1.0,) * 3) if case != "choices" else Discrete(n=3)
    seen = Box(shape=(3,), dtype="float32", low=(-np.inf,) * 3, high=(np.inf,) * 3)
    spec = dataclasses.replace(other.spec, obs={"observation": seen}, action=action)
    policy = DreamerPolicy(spec, Model(other.policy.cfg), other.cfg.explorer(spec))
    made = DreamerV3(policy, spec, other.cfg, other.ctx)
    left = {name.removeprefix("before/") for name in stored if name.startswith("before/")}
    with torch.no_grad():
        for name, weight, ordered in pairs(made):
            weight.copy_(torch.from_numpy(np.ascontiguousarray(ordered(stored[f"before/{name}"]))))
            left.remove(name)
    assert not left
    made.ctx = Given(stored, made.ctx)
    rows = {name.removeprefix("rows/"): torch.from_numpy(stored[name]).movedim(1, 0) for name in stored if name.startswith("rows/")}
    taken, first = rows["prevact"], rows["is_first"]
    batch = Batch(
        obs=Batch(observation=torch.cat((torch.ones(1, 2, 3), rows["obs"]))),
        is_first=torch.cat((torch.zeros(1, 2, dtype=torch.bool), first)),
        action=taken.long() if case == "choices" else taken,
        reward=rows["reward"],
        terminated=rows["is_terminal"],
        valid=~first,
        core=Batch(deter=rows["deter"].movedim(1, 0).unsqueeze(0)),
    )
    told = made.update(batch, Clock()).metrics
    wanted = {name.removeprefix("results/"): float(stored[name]) for name in stored if name.startswith("results/")}
    wanted["rec"] = wanted.pop("obs")
    assert set(wanted) == {"rec", "rew", "con", "dyn", "rep", "policy", "value", "repval", "loss", "grad_norm"}
    got = {name: float(told[name]) for name in wanted}
    assert got == pytest.approx(wanted, rel=2e-4)
    # The first step moves every weight by lr, as its gradient's sign says; gradients that are 0 but for rounding may differ.
    wrong = total = 0
    for name, weight, ordered in pairs(made):
        after = torch.from_numpy(np.ascontiguousarray(ordered(stored[f"after/{name}"])))
        wrong += int((weight - after).abs().gt(1e-5).sum())
        total += weight.numel()
    assert total > 4000 and wrong <= 0.003 * total
