"""What every algorithm must do, found by the folder listing."""

import copy

import pytest
import torch
from conftest import SMALL

from rlrun.core.schedule import Clock
from rlrun.paths import options
from rlrun.samplers.serial import SerialSampler
from rlrun.wiring import Wiring

CASES = {
    "discrete": ["env=CartPole-v1"],
    "box": ["env=Pendulum-v1"],
    "lstm": ["env=CartPole-v1", "model=lstm", "model.memory.size=4"],
    "gru, two trunks": ["env=CartPole-v1", "model=gru", "model.memory.size=4", "model.share_value=false"],
}


def start(typed, algo, *words):
    wiring = Wiring(typed(f"algo={algo}", *SMALL, *words))
    made, sampler = wiring.algorithm(), wiring.sampler(0)
    assert isinstance(sampler, SerialSampler)
    sampler.publish(made.policy, Clock())
    return wiring, made, sampler


def batches(wiring, sampler, count):
    from rlrun.core.batch import stack_columns

    taken = []
    for _ in range(count):
        fragments = sampler.take(wiring.needs.columns // sampler.columns)
        taken.append(stack_columns([f.batch for f in fragments]).clone())
        sampler.free(fragments)
    return taken


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True))


@pytest.mark.parametrize("algo", options("algo"))
@pytest.mark.parametrize("case", CASES)
def test_the_same_seed_gives_the_same_weights_and_a_restored_one_the_next_update(typed, algo, case):
    wiring, first, sampler = start(typed, algo, *CASES[case])
    data = batches(wiring, sampler, 3)
    _, second, _ = start(typed, algo, *CASES[case])
    initial = {k: v.clone() for k, v in first.state_dict().items()}
    for made in (first, second):
        for number, batch in enumerate(data[:2]):
            metrics = made.update(batch, Clock(100 * number, number)).metrics
            assert all(torch.isfinite(torch.as_tensor(float(v))) for v in metrics.values())
    assert same(first, second) and any(not torch.equal(initial[k], v) for k, v in first.state_dict().items())
    _, third, _ = start(typed, algo, *CASES[case], "seed=9")
    assert not same(first, third)
    third.load_state(copy.deepcopy(first.state()))  # as a file would: no memory shared
    for made in (first, third):
        made.update(data[2], Clock(200, 2))
    assert same(first, third)


@pytest.mark.parametrize("algo", options("algo"))
@pytest.mark.parametrize("case", ["discrete", "box"])
def test_what_stands_in_dead_rows_changes_nothing(typed, algo, case):
    wiring, _, sampler = start(typed, algo, *CASES[case])
    batch = batches(wiring, sampler, 1)[0]
    valid = batch.valid.clone()
    valid[2] = False
    batch = batch.replace(valid=valid)
    dirty = {
        "reward": torch.where(valid, batch.reward, 1e6),
        "log_prob": torch.where(valid, batch.log_prob, torch.nan),
        "action": torch.where(valid if batch.action.ndim == 2 else valid[..., None], batch.action, torch.ones_like(batch.action)),
        "terminated": torch.where(valid, batch.terminated, True),
    }
    results = []
    for changed in (batch, batch.replace(**dirty)):
        _, made, _ = start(typed, algo, *CASES[case])
        made.update(changed, Clock())
        results.append(made)
    assert same(*results)
    seen = batch.obs.observation.clone()
    seen[2] += 1.0
    _, other, _ = start(typed, algo, *CASES[case])
    other.update(batch.replace(obs=batch.obs.replace(observation=seen)), Clock())
    assert not same(results[0], other), "rows before a dead one bootstrap from its observation"


@pytest.mark.parametrize("algo", options("algo"))
def test_everything_that_changes_is_saved(typed, algo):
    """Parameters, buffers, Optimizers and Generators only: anything else would be lost in a checkpoint."""
    wiring, made, sampler = start(typed, algo, "env=CartPole-v1")
    before = {k: repr(v) for k, v in vars(made).items() if not k.startswith("_")}
    made.update(batches(wiring, sampler, 1)[0], Clock())
    after = {k: repr(v) for k, v in vars(made).items() if not k.startswith("_")}
    assert before == after


@pytest.mark.parametrize("algo", options("algo"))
def test_recurrent_state_is_what_unrolling_reproduces(typed, algo):
    wiring, made, sampler = start(typed, algo, "env=CartPole-v1", "model=lstm", "model.memory.size=4")
    for batch in batches(wiring, sampler, 4):
        dist, _ = made.policy.unroll(batch)[:2]
        torch.testing.assert_close(dist[:-1].log_prob(batch.action)[batch.valid], batch.log_prob[batch.valid], atol=1e-5, rtol=1e-5)
