"""Checks environments whose observations describe the actions."""

import pytest
import torch
from conftest import SMALL
from wired import Wired, checked

from rlrun.core.batch import Batch
from rlrun.core.errors import UserError
from rlrun.core.schedule import Clock

ENV = ["env=ParametricActionsCartPole-v0", "model.action_embedding=avail_actions"]
WHICH = {"dqn": ["algo.head.dueling=false", "algo.learning_starts=30"], "c51": ["algo.learning_starts=30"], "iqn": ["algo.learning_starts=30"],
         "ppo": ["algo.minibatch_size=10", "algo.sequence_length=5"], "impala": []}  # fmt: skip


def observed(columns: int, generator: torch.Generator, dtype: torch.dtype = torch.float32) -> Batch:
    return Batch(
        observation=Batch(
            avail_actions=(9 * torch.randn(columns, 10, 2, generator=generator)).to(dtype),
            cart=torch.randn(columns, 4, generator=generator),
        ),
        action_mask=torch.ones(columns, 10, dtype=torch.int8),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.int16])
@pytest.mark.parametrize("algo", WHICH)
def test_an_action_is_what_it_means_and_not_where_it_stands(typed, algo, dtype):
    made = Wired(typed(f"algo={algo}", *ENV, *SMALL, *WHICH[algo])).algorithm().policy
    for parameter in made.parameters():  # A head's small initial gain would make all values equal.
        torch.nn.init.normal_(parameter, 0.0, 0.5, generator=torch.Generator().manual_seed(parameter.numel()))
    obs = observed(50, torch.Generator().manual_seed(0), dtype)
    order = torch.randperm(10, generator=torch.Generator().manual_seed(1))
    moved = obs.replace(observation=obs.observation.replace(avail_actions=obs.observation.avail_actions[:, order]))
    first = torch.ones(50, dtype=torch.bool)
    with torch.no_grad():
        before, after = (
            made.act(x, first, made.initial_state(50), Clock(), "greedy", torch.Generator()).action
            for x in (obs, moved)
        )
    assert torch.equal(order[after], before) and len(before.unique()) > 2


@pytest.mark.parametrize("algo", WHICH)
def test_meanings_that_never_change_are_not_filtered_away(typed, algo):
    """Their deviation is 0, so that a filter would make all of them 0."""
    made = Wired(typed(f"algo={algo}", *ENV, *SMALL, *WHICH[algo], "model.observation_filter=mean_std")).algorithm()
    obs = observed(50, torch.Generator().manual_seed(0)).map(lambda x: x.expand(3, *x.shape).clone())
    obs.observation.avail_actions[:] = torch.arange(20.0).view(10, 2)
    rows = Batch(obs=obs, valid=torch.ones(2, 50, dtype=torch.bool))
    made.absorb_rows([made.policy.moments(rows)])
    seen = made.policy.seen(obs).observation
    assert torch.equal(seen.avail_actions, obs.observation.avail_actions)
    assert not torch.equal(seen.cart, obs.observation.cart)


@pytest.mark.parametrize("words, said", [
    (["algo=dqn", *ENV], "head.dueling=false"),
    (["algo=dqn", "env=CartPole-v1", "model.action_embedding=x"], "has no such part"),
    (["algo=ppo", ENV[0], "model.action_embedding=avail_action"], "Did you mean avail_actions|avail_actions"),
    (["algo=ppo", ENV[0], "model.action_embedding=cart"], "a row of numbers for each of the 10 actions"),
    (["algo=ppo", "env=Pendulum-v1", "model.action_embedding=cart"], "for one choice among actions"),
])  # fmt: skip
def test_what_does_not_fit_gets_a_sentence(typed, words, said):
    with pytest.raises(UserError, match=said):
        checked(typed(*words))
