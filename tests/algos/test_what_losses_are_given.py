"""What A2C and PPO give to their losses: advantages and targets of the policy that acted, in plain loops."""

import numpy as np
import pytest
import torch
from conftest import SMALL
from wired import Wired

from rlrun.core.batch import Batch
from rlrun.core.moments import Moments
from rlrun.core.schedule import Clock

WORDS = ["env=CartPole-v1", *SMALL, "algo.discount=0.9", "algo.lambda_=0.7"]


def collected(typed, *words):
    """An algorithm, and a batch of 5 rows and 4 columns that its policy played, with rewards of all sizes. Column 1
    terminates, and column 2 is cut by a time limit. log_prob is the number of a row."""
    wiring = Wired(typed(*WORDS, *words))
    made, sampler = wiring.algorithm(), wiring.sampler(0)
    sampler.publish(made.policy, Clock())
    batch = sampler.take(1)[0].batch.clone()
    terminated, valid = torch.zeros(2, 5, 4, dtype=torch.bool)
    terminated[2, 1], valid[3, 1], valid[2, 2] = True, True, True
    reward = 5 * torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    batch = batch.replace(terminated=terminated, truncated=torch.zeros_like(valid), valid=~valid, reward=reward)
    return made, batch.replace(log_prob=torch.arange(20.0).view(5, 4))


def gae(reward, value, batch):
    """Schulman et al. 2016, eq. 16; a dead row cuts the sum, and the row before it bootstraps from its value."""
    advantage = np.zeros((5, 4))
    for b in range(4):
        following = 0.0
        for t in reversed(range(5)):
            discount = 0.0 if batch.terminated[t, b] else 0.9
            following = reward[t, b] + discount * (value[t + 1, b] + 0.7 * following) - value[t, b]
            following = advantage[t, b] = following if batch.valid[t, b] else 0.0
    return advantage


def acted(made, batch):
    """The values [T + 1, B] that were recorded, and that of the last observation."""
    with torch.no_grad():
        return torch.cat([batch.value, made.policy.last_value(batch)[None]]).double().numpy()


def compare(rows: Batch, live: np.ndarray, order, **expected):
    """The live rows, by their number, hold these numbers [T, B]."""
    for name, numbers in expected.items():
        got = rows[name].flatten()[order].view(5, 4)
        np.testing.assert_allclose(got[live], numbers[live], rtol=1e-4, atol=1e-4, err_msg=name)


@pytest.mark.parametrize("normalize", [False, True])
def test_a2c_learns_from_gae_of_bounded_rewards(typed, normalize):
    words = ("algo=a2c", f"algo.normalize_advantage={str(normalize).lower()}", "algo.reward_clip=2.0")
    made, batch = collected(typed, *words)
    seen, loss, value, live = [], made.loss, acted(made, batch), batch.valid.numpy()
    made.loss = lambda part, *more: seen.append(part) or loss(part, *more)
    made.update(batch, Clock())
    advantage = gae(batch.reward.clamp(-2, 2).numpy(), value, batch)
    target = advantage + value[:-1]
    if normalize:
        advantage = (advantage - advantage[live].mean()) / advantage[live].std()
    compare(seen[0], live, torch.arange(20), advantage=advantage, target=target)


CASES = {
    "as they are": ["algo.reward_clip=none"],
    "bounded rewards": ["algo.reward_clip=2.0"],
    "advantages of the batch": ["algo.reward_clip=none", "algo.normalize_advantage=batch"],
    "scaled rewards": ["algo.reward_clip=none", "algo.normalize_reward=true"],
    "scaled values": ["algo.reward_clip=none", "algo.normalize_value=true"],
}


@pytest.mark.parametrize("case", CASES)
def test_ppo_learns_from_gae(typed, case):
    fit = ["algo.minibatch_size=20", "algo.sequence_length=5", "algo.num_epochs=1", "algo.normalize_advantage=none"]
    made, batch = collected(typed, "algo=ppo", *fit, *CASES[case])
    seen, value, live = [], acted(made, batch), batch.valid.numpy()
    made.learn = lambda part, clock: seen.append(part) or ({"approx_kl": torch.zeros(())}, {})
    reward, before = batch.reward.double().numpy(), Moments(10.0, 2.0, 90.0)  # returns so far had a deviation of 3
    if case == "bounded rewards":
        reward = reward.clip(-2, 2)
    if case == "scaled rewards":
        made.reward_scale.merge(before)
        reward = reward / 3
        assert made.needs(made.cfg).return_discount == 0.9
    if case == "scaled values":
        made.value_scale.merge(before)
        value = 3 * value + 2
    made.update(batch, Clock())
    advantage = gae(reward, value, batch)
    target = advantage + value[:-1]
    if case == "advantages of the batch":
        advantage = (advantage - advantage[live].mean()) / advantage[live].std()
    old = value[:-1]
    if case == "scaled values":  # by the moments of all returns, those of this batch among them
        past = 2.0 + 3.0 * np.array([-1.0, 1.0] * 5)  # ten numbers with the moments before
        every = np.concatenate([past, target[live]])
        old, target = ((x - every.mean()) / every.std() for x in (old, target))
    (rows,) = seen
    compare(rows, live, rows.log_prob.flatten().argsort(), advantage=advantage, target=target, value=old)
