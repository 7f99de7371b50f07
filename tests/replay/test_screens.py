"""Screens that are stored once are read as the same stacks that the emulator returned."""

import pytest
import torch
from conftest import SMALL
from wired import Wired

from rlrun.core.schedule import Clock


@pytest.mark.parametrize(
    "game, more",
    [
        ("Breakout", ["env.size=42"]),
        ("Pong", ["env.size=42", "env.max_frames=400"]),
        ("Breakout", ["env.size=18", "env.grayscale=false"]),
    ],
)
@pytest.mark.parametrize("compress", [False, True])
def test_replayed_screens_are_those_that_were_seen(typed, game, more, compress):
    words = ["algo.num_envs=2", "algo.n_step=3", "algo.learning_starts=100", "algo.exploration.epsilon=1.0"]
    wiring = Wired(
        typed("algo=dqn", f"env={game}", *more, *SMALL, *words, "replay.capacity=600", f"replay.compress={compress}")
    )
    made, sampler, replay = wiring.algorithm(), wiring.sampler(0), wiring.replay(0)
    assert replay.layout.stack == 4
    sampler.publish(made.policy, Clock())
    seen: list[torch.Tensor] = []  # the observation [2, 4, 42, 42] of every row, in colour [2, 4, 18, 18, 3]
    firsts = 0
    for _ in range(160):
        (fragment,) = sampler.take(1)
        seen += list(fragment.batch.obs.observation[:-1].clone())
        last = fragment.batch.obs.observation[-1].clone()
        firsts += int(fragment.batch.is_first[:-1].sum())
        replay.add(fragment)
        sampler.free([fragment])
    assert firsts >= 6, "several games began"
    replay.check_valid()
    ahead = [*seen, last]
    for _ in range(12):
        batch = replay.sample(64, Clock())
        for i, key in enumerate(batch.key.tolist()):
            column, row = key % 2, key // 2
            end = int((~batch.valid[:, i]).long().argmax()) if not batch.valid[:, i].all() else 3
            assert torch.equal(batch.obs.observation[0, i], ahead[row][column]) and torch.equal(
                batch.obs.observation[1, i], ahead[row + end][column]
            )
