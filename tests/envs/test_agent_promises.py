"""What becomes of an environment with several agents that fails, or does not keep the promises of its interface."""

import re

import pytest
from conftest import compose
from test_agents import walk

from rlrun.config.run import type_config
from rlrun.core.errors import EnvError, UserError
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


@pytest.mark.parametrize("reader", STATES)
@pytest.mark.parametrize("kind", ["not there", "data"])
def test_a_wrapper_around_what_has_no_state_has_none(reader, kind):
    env = made("zoo:Stateful", f"+env.kwargs.kind='{kind}'", algo=STATES[reader], **{reader: True})
    assert "has no state of its own" in env.spec.notes[-1]


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("shows b nothing in reset", "showed nothing to the agent 'b' in reset: "),
        ("shows b nothing", "showed nothing to the agent 'b' in step 2: "),
        ("pays b nothing", "returned no reward for the agent 'b' in step 2: "),
        ("keeps a", "ended the agent 'a' in step 3, which is still there: "),
    ],
)
def test_a_broken_promise_is_named(fault, said):
    """Rows of zeros would hide it, and the agent would learn from them."""
    env = made("zoo:Careless", f"+env.kwargs.fault='{fault}'")
    with pytest.raises(EnvError, match=rf"env 0 \(seed \d+\) {said}.*rlrun check-env zoo:Careless"):
        list(walk(env, 7))


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("lost", "lost the agent 'player_0' in step 3 without saying that it ended"),
        ("stuck", r"failed in step 3 on .*not taken out by step\(None\): begin step\(\) with: if self.terminations"),
    ],
)
def test_players_that_cannot_be_taken_out_are_named(how, said):
    """The game would never move on, or an episode would be over without an end."""
    env = made("turns:Survivor", f"+env.kwargs.how={how}", count=1)
    with pytest.raises(EnvError, match=rf"env 0 \(seed \d+\) {said}"):
        list(walk(env, 4))


@pytest.mark.parametrize("limit", ["truncation", "termination"])
def test_a_truncated_agent_without_a_last_observation_is_told(limit):
    """The run goes on. An agent that was terminated needs none, because nothing is bootstrapped from it."""
    env = made("zoo:Careless", "+env.kwargs.fault='shows no end'", f"env.time_limit={limit}")
    for t, (_, _, step) in enumerate(walk(env, 14)):
        told = [(number, one.made_anew, one.broken_off) for number, one in step.failed.items()]
        assert told == [(number, False, False) for number in range(2) if t % 7 == 5 and limit == "truncation"]
        assert all("truncated the agent 'b' without a last observation" in one.sentence for one in step.failed.values())
        assert step.valid.any() == (t % 7 != 6)
