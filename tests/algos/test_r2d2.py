"""Checks R2D2's targets by hand, and unrolling from stored state against the values recorded while acting."""

import pytest
import torch
from conftest import SMALL
from test_all import start
from wired import Wired

from rlrun.core.batch import Batch
from rlrun.core.schedule import Clock
from rlrun.ops.td import signed_hyperbolic, signed_parabolic

WORDS = [
    "algo.num_envs=2",
    "algo.learning_starts=40",
    "replay.capacity=600",
    "algo.sequence_stride=5",
    "algo.fragment_length=10",
    "model.memory.size=4",
]


def test_sequences_from_stored_state_reproduce_what_acted(typed):
    """This holds for any burn-in and across ends of episodes, with a network whose past matters."""
    for burn_in in (0, 7):
        words = [
            *WORDS,
            f"algo.burn_in={burn_in}",
            "algo.sequence_length=8",
            "algo.input_priorities=true",
            "algo.exploration.epsilon=0.5",
        ]
        wiring, made, sampler = start(typed, "r2d2", "env=CartPole-v1", *words)
        for parameter in made.policy.parameters():
            torch.nn.init.normal_(parameter, 0.0, 0.5, generator=torch.Generator().manual_seed(parameter.numel()))
        replay = wiring.replay(0)
        for _ in range(50):
            fragments = sampler.take(1)
            replay.add(fragments[0])
            sampler.free(fragments)
        batch = replay.sample(32, Clock())
        assert (~batch.valid).any() and batch.is_first[1:].any()
        with torch.no_grad():
            q = made.unroll(made.policy, batch)[:-1]
        valid = batch.valid[burn_in:]
        torch.testing.assert_close(q.max(-1).values[valid], batch.q_max[burn_in:][valid], atol=1e-4, rtol=1e-4)
        made.cfg = type(made.cfg)(**{**vars(made.cfg), "zero_init_state": True})
        with torch.no_grad():
            zero = made.unroll(made.policy, batch)[:-1]
        assert not torch.allclose(zero[valid], q[valid], atol=1e-4), "the stored state matters"


@pytest.mark.parametrize(
    "choice", [["algo.double=true"], ["algo.double=true", "algo.head.noisy=true"], ["algo.double=false"]]
)
@pytest.mark.parametrize("n", [1, 2])
def test_targets_and_priorities_by_hand(typed, n, choice):
    made = Wired(typed("algo=r2d2", "env=CartPole-v1", *SMALL, *WORDS, "algo.fragment_length=10", "algo.burn_in=0", "algo.sequence_length=3",
                        "algo.discount=0.5", f"algo.n_step={n}", "algo.batch_size=1", "algo.priority_eta=0.75", *choice)).algorithm()  # fmt: skip
    q = torch.tensor([[1.0, 2.0], [3.0, 0.0], [0.5, 0.0], [0.0, 4.0]]).unsqueeze(1)  # [T + 1, B = 1, A]
    other = torch.tensor([[9.0, 9.0], [1.0, 7.0], [2.0, 9.0], [9.0, 3.0]]).unsqueeze(1)
    made.unroll = lambda policy, batch: (q if policy is made.policy else other).clone()
    column = lambda *x: torch.tensor(x).unsqueeze(1)  # noqa: E731
    batch = Batch(action=column(0, 1, 1), reward=column(1.0, 2.0, 4.0), terminated=column(False, False, False), valid=column(True, True, True),
                  weight=torch.tensor([0.5]), is_first=column(False, False, False, False))  # fmt: skip
    h, inverse = signed_hyperbolic, signed_parabolic
    # The online network chooses 0, 0, 1 at rows 1, 2, 3, for which the target network's values are 1, 2, 3. The target
    # network would choose 1, 1, 0.
    best = (7.0, 9.0, 9.0) if "algo.double=false" in choice else (1.0, 2.0, 3.0)
    v = [inverse(torch.tensor(x)) for x in best]
    if n == 1:
        target = [h(1 + 0.5 * v[0]), h(2 + 0.5 * v[1]), h(4 + 0.5 * v[2])]
    else:
        # The last return stops at the sequence's end.
        target = [h(1 + 0.5 * 2 + 0.25 * v[1]), h(2 + 0.5 * 4 + 0.25 * v[2]), h(4 + 0.5 * v[2])]
    error = torch.stack(target) - torch.tensor([1.0, 0.0, 0.0])
    loss, priority, _ = made.loss(batch)
    assert loss.item() == pytest.approx(float(0.5 * (0.5 * error**2).mean()), rel=1e-4)
    assert priority.item() == pytest.approx(float(0.75 * error.abs().max() + 0.25 * error.abs().mean()), rel=1e-4)
    # The same from values that a sampler recorded; of the row behind the sequence only they count.
    ahead = {name: torch.cat([batch[name], batch[name][-1:]]) for name in ("reward", "terminated", "valid")}
    recorded = Batch(ahead, q_taken=column(1.0, 0.0, 0.0, 8.0), q_max=column(5.0, *best))
    assert made.first_priority(made.cfg, recorded).item() == pytest.approx(priority.item(), rel=1e-4)


def test_dead_rows_of_a_sequence_count_for_nothing(typed):
    wiring, made, sampler = start(typed, "r2d2", "env=CartPole-v1", *WORDS, "algo.burn_in=5", "algo.sequence_length=10")
    replay = wiring.replay(0)
    for _ in range(30):
        fragments = sampler.take(1)
        replay.add(fragments[0])
        sampler.free(fragments)
    batch = replay.sample(8, Clock())
    assert (~batch.valid[5:]).any()
    dirty = batch.replace(reward=torch.where(batch.valid, batch.reward, 1e6), action=torch.where(batch.valid, batch.action, 1 - batch.action),
                          terminated=batch.terminated | ~batch.valid)  # fmt: skip
    for a, b in zip(made.loss(batch), made.loss(dirty), strict=True):
        if isinstance(a, torch.Tensor):
            torch.testing.assert_close(a, b)
