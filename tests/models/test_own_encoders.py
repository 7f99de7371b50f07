"""Encoders from the user's own package: parts of them that are frozen, and what may not be in them."""

import pytest
import torch
from conftest import small
from torch import nn
from wired import Wired

from rlrun.cli import _dispatch
from rlrun.core.errors import UserError
from rlrun.runtime.trained import load

QUIET = ["resources=debug", "logger=[]"]
TWO = ["resources=auto", "resources.num_learners=2", "resources.device=cpu"]
BOX, CHOICE = "env=rlrun/IdentityBox-v0", "env=CartPole-v1"


class HalfFrozen(nn.Module):
    """A pretrained body with normalisation, whose weights are all 0.5, below a layer that learns."""

    def __init__(self, space):
        super().__init__()
        self.features = 8
        self.body = nn.Sequential(nn.Linear(space.shape[0], 8), nn.BatchNorm1d(8)).eval().requires_grad_(False)
        for parameter in self.body.parameters():
            nn.init.constant_(parameter, 0.5)
        self.top = nn.Linear(8, 8)

    def forward(self, x):
        return self.top(torch.tanh(self.body(x)))


class AllFrozen(HalfFrozen):
    def __init__(self, space):
        super().__init__(space)
        self.top.requires_grad_(False)
        for parameter in self.top.parameters():
            nn.init.constant_(parameter, 0.5)


@pytest.mark.parametrize(
    "algo, env, words, kind",
    [
        ("ppo", CHOICE, ["algo.optimizer.kind=adamw", "algo.optimizer.weight_decay=0.1"], AllFrozen),
        ("ppo", CHOICE, [*TWO, "algo.optimizer.agc=0.1"], HalfFrozen),
        ("a3c", CHOICE, TWO, AllFrozen),
        ("dqn", CHOICE, ["algo.exploration.kind=parameter_noise", "algo.learning_starts=20"], HalfFrozen),
        ("dqn", CHOICE, ["algo.exploration.kind=parameter_noise", "algo.learning_starts=20"], AllFrozen),
        ("sac", BOX, ["algo.l2=0.1"], HalfFrozen),
        ("es", BOX, ["algo.l2=0.1"], HalfFrozen),
        ("es", BOX, ["algo.l2=0.1"], AllFrozen),
        ("maml", "env=Pendulum-v1", ["env.max_episode_steps=5"], HalfFrozen),
    ],
)
def test_frozen_weights_stay_what_they_are_and_others_learn(tmp_path, algo, env, words, kind):
    run = tmp_path / "run"
    tiny = [word for word in small(algo, "tiny") if "sequence_length" not in word]
    words = [*tiny, env, *QUIET, f"model.encoder={__name__}:{kind.__name__}", *words]
    assert _dispatch(["train", *words, "env_steps=100", f"run_dir={run}"]) == 0
    first = dict(load(run).policy.named_parameters())
    assert _dispatch(["resume", str(run), "env_steps=200"]) == 0
    policy = load(run).policy
    second, buffers = dict(policy.named_parameters()), dict(policy.named_buffers())
    parts = ("body",) if kind is HalfFrozen else ("body", "top")
    frozen = {name for name in second if any(f"{part}." in name for part in parts)}
    assert frozen and all(bool((second[name] == 0.5).all()) for name in frozen)
    means = [mean for name, mean in buffers.items() if name.endswith("running_mean")]
    assert means and not any(mean.any() for mean in means), "nothing puts the pretrained body into training mode"
    assert frozen != set(second) and any(not torch.equal(second[name], first[name]) for name in second)


class Modes(nn.Module):
    """An encoder, or a last layer, whose layer of this kind is in training mode."""

    layer = staticmethod(nn.Dropout)

    def __init__(self, space, outputs=8):
        super().__init__()
        inputs = space if isinstance(space, int) else space.shape[0]
        self.features = outputs
        self.net = nn.Sequential(nn.Linear(inputs, 8), self.layer(), nn.Linear(8, outputs))

    def forward(self, x):
        return self.net(x)


@pytest.mark.parametrize("option", ["model.encoder", "model.value_head"])
@pytest.mark.parametrize(
    "layer, refused",
    [
        (nn.Dropout, True),
        (lambda: nn.BatchNorm1d(8), True),
        (lambda: nn.BatchNorm1d(8, track_running_stats=False).eval(), True),
        (lambda: nn.TransformerEncoderLayer(8, 1), True),
        (lambda: nn.Dropout(0.0), False),
        (lambda: nn.Dropout().eval(), False),
        (lambda: nn.LayerNorm(8), False),
    ],
)
def test_layers_that_learn_in_another_mode_than_they_act_in_are_refused(typed, monkeypatch, option, layer, refused):
    monkeypatch.setattr(Modes, "layer", staticmethod(layer))
    words = typed("algo=ppo", CHOICE, *QUIET, f"{option}={__name__}:Modes")
    if refused:
        with pytest.raises(UserError, match=rf"{option}=.*:Modes has the layer net\.1.*LayerNorm.*call eval\(\)"):
            Wired(words).algorithm()
    else:
        Wired(words).algorithm()


class Endless(nn.Module):
    def __init__(self, space):
        super().__init__()
        self.features = 4

    def forward(self, x):
        return torch.full((len(x), 4), torch.nan)


def test_features_that_are_not_finite_are_refused_before_anything_starts(typed):
    with pytest.raises(UserError, match="Endless makes features that are not finite"):
        Wired(typed("algo=ppo", CHOICE, *QUIET, f"model.encoder={__name__}:Endless")).algorithm()
