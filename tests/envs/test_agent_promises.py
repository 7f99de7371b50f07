"""What becomes of an environment with several agents that fails, or does not keep the promises of its interface."""

import re

import pytest
from conftest import compose
from test_agents import walk

from rlrun.config.run import type_config
from rlrun.core.errors import UserError
from rlrun.core.seeding import Seeds
from rlrun.envs import registry

STATES = {"joint": "algo=qmix", "state": "algo=ppo"}  # who reads state(): an option of make_spec, and an algorithm


def made(name, *words, restarts=False, count=2, algo="algo=ppo", **options):
    """`count` environments. restarts: whether one that fails is made anew. options: those of make_spec."""
    cfg = type_config(compose(algo, f"env={name}", *words)).env
    spec = registry.make_spec(cfg, **options)
    return registry.Factory(cfg=cfg, spec=spec, seeds=Seeds(3), stream="env", learning=True, restarts=restarts)(0, count)


@pytest.mark.parametrize("reader", STATES)
@pytest.mark.parametrize("when", ["step", "reset"])
def test_an_environment_whose_state_raises_is_made_anew(reader, when):
    """The row of that step is dead in all its columns, and the state is again that of the other rows."""
    env = made("zoo:Stateful", restarts=True, algo=STATES[reader], **{reader: True})
    games, columns = env.env.games, env.count // 2

    def fail():
        raise RuntimeError("the state is lost")

    for t, (_, _, step) in enumerate(walk(env, 9)):
        failed = t == (2 if when == "step" else 6)  # six steps and a row that only resets
        assert list(step.failed) == [0] * failed and step.valid[columns:].any() == (t != 6)
        if failed:
            assert re.search(r"env 0 \(seed \d+\) failed in state: RuntimeError: the state is lost", step.failed[0].sentence)
            assert step.failed[0].broken_off == (when == "step") and step.is_first[:columns].all()
            assert not (step.valid[:columns].any() or step.reward[:columns].any()) and games[0].env.now == 0, "a new one was reset"
        state = step.obs["state"].reshape(2, -1, step.obs["state"].size // env.count)[:, 0, :2]
        assert state.tolist() == [[game.env.episode, game.env.now] for game in games]
        if t == (1 if when == "step" else 5):
            games[0].env.state = fail
    assert games[1].env.episode == 1, "the other one went on"


@pytest.mark.parametrize("reader", STATES)
def test_a_state_with_a_bug_is_not_taken_for_none(reader):
    with pytest.raises(UserError, match=r"env=zoo:Stateful fails in state: AttributeError: .*'epissode'.* \(.*zoo\.py"):
        made("zoo:Stateful", "+env.kwargs.kind=misspelt", algo=STATES[reader], **{reader: True})
    env = made("zoo:Stateful", "+env.kwargs.kind='not there'", algo=STATES[reader], **{reader: True})
    assert "has no state of its own" in env.spec.notes[-1]
