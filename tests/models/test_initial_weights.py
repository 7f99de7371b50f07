"""model.init=orthogonal is for every hidden layer of a run's networks."""

import pytest
import torch
from torch import nn
from wired import Wired

from rlrun.algos.implicit_q import StateValue
from rlrun.core.specs import Box, Discrete, EnvSpec, Nested
from rlrun.models.model import Model

VECTOR = Box(shape=(3,), dtype="float32", low=(-1.0,), high=(1.0,))


def gains(module):
    """The gain of each linear layer, or None where its weights are not orthogonal or its biases not 0."""
    made = []
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            weight = layer.weight.detach()
            square = weight @ weight.T if weight.shape[0] <= weight.shape[1] else weight.T @ weight
            size = float(square.diagonal().mean())
            right = torch.allclose(square, size * torch.eye(len(square)), atol=1e-4) and not layer.bias.any()
            made.append(round(size**0.5, 3) if right else None)
    return made


@pytest.mark.parametrize(
    ("algo", "env"),
    [
        ("sac", ["env=Pendulum-v1"]),
        ("td3", ["env=Pendulum-v1"]),
        ("es", ["env=CartPole-v1"]),
        ("maddpg", ["env=zoo:UnlikeAgents", "+env.kwargs.kind=bounds"]),
    ],
)
def test_actors_have_orthogonal_hidden_layers(algo, env, typed):
    words = [f"algo={algo}", *env, "resources=debug", "logger=[]", "algo.actor.hidden=[8,9]"]
    policy = Wired(typed(*words, "model.init=orthogonal")).policy_factory(acting=False)()
    actors = policy.actors if algo == "maddpg" else [policy.net]
    assert len(actors) and all(gains(one.hidden) == [1.414, 1.414] for one in actors)
    assert all(gains(one.head) == [0.01] for one in actors)
    plain = Wired(typed(*words)).policy_factory(acting=False)()
    assert all(gains(one) == [None] * 3 for one in (plain.actors if algo == "maddpg" else [plain.net]))


def test_the_values_of_implicit_q_and_the_parts_of_actions_have_them_too(typed):
    spec = EnvSpec(name="x", obs={"observation": VECTOR}, action=Nested(spaces=(("a", Discrete(n=3)), ("b", Discrete(n=2))), ordered=False))  # fmt: skip
    config = typed("algo=implicit_q", "env=Pendulum-v1", "model.init=orthogonal", "algo.critic.hidden=[8,9]")
    assert gains(StateValue(spec, Model(config.run.model), config.algo.critic)) == [1.414, 1.414, 1.0]
    model = Model(typed("algo=ppo", "env=CartPole-v1", "model.autoregressive=true").run.model)
    head = model.action_head(spec, 6)
    assert gains(head.mixers) == [1.414] and gains(head.heads) == [0.01, 0.01]
