"""ActingCopy gives the same values recorded or not and padded or not, and acts with the weights that were published."""

import pytest
import torch
from conftest import small
from families import simple
from tape import Tapes
from wired import Wired

from rlrun.config.paths import options
from rlrun.core.batch import Batch
from rlrun.core.schedule import Clock
from rlrun.machine.graphs import WARM_UP
from rlrun.samplers.acting import ActingCopy

COLUMNS, GROUPS = 2, 3
CASES = {
    "impala": (["algo=impala", "env=CartPole-v1"], ("log_prob",)),
    "ppo with memory": (["algo=ppo", "env=CartPole-v1", "model=lstm", "model.memory.size=4"], ("value",)),
    "dqn": (
        [
            "algo=dqn",
            "env=CartPole-v1",
            "algo.exploration.epsilon=1 to 0 over 100",
            "algo.exploration.epsilon_min=0.01",
        ],
        ("q_taken", "q_max"),
    ),
}


def copy_of(wiring, record, recorder):
    policy = wiring.policy_factory(acting=True)()
    return ActingCopy(policy, torch.device("cpu"), torch.Generator().manual_seed(1), record, COLUMNS, GROUPS, recorder)


def rows_of(count, seed):
    rng = torch.Generator().manual_seed(seed)
    return [
        Batch(
            obs=Batch(observation=torch.randn(COLUMNS, 4, generator=rng)),
            is_first=torch.zeros(COLUMNS, dtype=torch.bool),
        )
        for _ in range(count)
    ]


@torch.inference_mode()
@pytest.mark.parametrize("case", CASES)
def test_recorded_acting_is_plain_acting(typed, case):
    words, record = CASES[case]
    wiring, tapes = Wired(typed("resources=debug", "model.hidden=[8]", "logger=[]", *words)), Tapes()
    plain, recorded = copy_of(wiring, record, None), copy_of(wiring, record, tapes)
    states = {
        copy: [plain.policy.initial_state(COLUMNS, torch.full((COLUMNS,), g / GROUPS)) for g in range(GROUPS)]
        for copy in (plain, recorded)
    }
    for i in range(WARM_UP + 3):
        rows, made = rows_of(2, i), {}
        for copy in (plain, recorded):
            copy.publish(None, Clock(env_steps=10 * i))
            copy.refresh()
            action, told, after = copy.act(rows, states[copy][:2])
            made[copy] = action, told
            states[copy][:2] = [after[:COLUMNS], after[COLUMNS:]]
        (action, told), (wanted, expected) = made[recorded], made[plain]
        assert torch.equal(action, wanted) and action.shape == (2 * COLUMNS,)
        for name in record:
            torch.testing.assert_close(told[name], expected[name])
    assert tapes.recordings == 1 and tapes.replayed == 3
    for one, other in zip(states[plain], states[recorded], strict=True):
        for a, b in zip(one.leaves(), other.leaves(), strict=True):
            torch.testing.assert_close(a, b)


@torch.inference_mode()
@pytest.mark.parametrize("algo", options("algo"))
def test_every_policy_acts_as_it_says(typed, algo):
    """A policy that says that its acting can be recorded reads nothing back, and acts as without a recording. Others are
    not recorded."""
    wiring = Wired(typed(*small(algo, "tiny"), f"env={simple(algo)}", "resources=debug", "logger=[]"))
    policy = wiring.policy_factory(acting=True)()
    recorded = policy.recordable("acting")
    sampler = wiring.sampler(0)
    sampler.publish(policy, Clock())
    (fragment,) = sampler.take(1)
    columns, record, tapes = sampler.columns, wiring.needs.record, Tapes()
    if hasattr(policy, "fixed_kernels"):
        policy.fixed_kernels = True  # on a CPU, the others look for beginnings of episodes
    copies = [
        ActingCopy(policy, torch.device("cpu"), torch.Generator().manual_seed(1), record, columns, 1, recorder)
        for recorder in (None, tapes)
    ]
    states = [policy.initial_state(columns)] * 2
    for i in range(WARM_UP + 2):
        row = i % len(fragment.batch.reward)
        obs = fragment.batch.obs.map(lambda x, row=row: x[row])
        rows = Batch(obs=obs, is_first=torch.full((columns,), i == 0))
        made = [copy.act([rows], [state]) for copy, state in zip(copies, states, strict=True)]
        states = [after for *_, after in made]
        for wanted, got in zip(leaves(made[0]), leaves(made[1]), strict=True):
            torch.testing.assert_close(got, wanted)
    sampler.close()
    assert (tapes.recordings, tapes.replayed) == ((1, 2) if recorded else (0, 0))


def leaves(made):
    return [leaf for part in made for leaf in (part.leaves() if isinstance(part, Batch) else [part])]


def test_rows_that_pad_a_recording_reach_nobody(typed):
    words, _ = CASES["impala"]
    wiring = Wired(typed("resources=debug", "model.hidden=[8]", "logger=[]", *words))
    wiring_rows, tapes = rows_of(GROUPS, 5), Tapes()
    plain, recorded = copy_of(wiring, ("value",), None), copy_of(wiring, ("value",), tapes)
    for _ in range(WARM_UP + 2):
        for count in (1, 2, 3):
            states = [plain.policy.initial_state(COLUMNS)] * count
            action, told, _ = recorded.act(wiring_rows[:count], states)
            _, expected, _ = plain.act(wiring_rows[:count], states)
            assert len(action) == count * COLUMNS
            torch.testing.assert_close(told["value"], expected["value"])
    assert tapes.recordings == 3  # for 1, 2 and all 3 groups


def test_weights_act_once_they_are_taken(typed):
    words, _ = CASES["impala"]
    wiring = Wired(typed("resources=debug", "model.hidden=[8]", "logger=[]", *words))
    learner, copy, rows = wiring.algorithm().policy, copy_of(wiring, ("value",), Tapes()), rows_of(1, 3)
    state = [learner.initial_state(COLUMNS)]
    for i in range(WARM_UP + 2):
        with torch.no_grad():
            learner.value_head.bias.fill_(float(i))
        copy.publish(learner, Clock(updates=i))
        copy.refresh()
        _, told, _ = copy.act(rows, state)
        expected = learner.act(
            rows[0].obs, rows[0].is_first, state[0], Clock(), "explore", torch.Generator(), ("value",)
        ).record
        torch.testing.assert_close(told["value"], expected["value"].detach())
        assert (copy.version, copy.clock.updates) == (i + 1, i)


def test_policies_that_read_numbers_back_are_not_recorded(typed):
    wiring, tapes = (
        Wired(typed("resources=debug", "algo=dqn", "env=CartPole-v1", "logger=[]", "algo.exploration.kind=soft_q")),
        Tapes(),
    )
    copy, states = copy_of(wiring, (), tapes), None
    states = [copy.policy.initial_state(COLUMNS)]
    for i in range(WARM_UP + 2):
        copy.act(rows_of(1, i), states)
    assert tapes.recordings == 0
