"""Callbacks, distributions and layers that fail, for the tests."""

import numpy as np
import torch
from torch import nn

import rlrun
from my_rl.distributions import Laplace


class Unmade(rlrun.Callback):
    def __init__(self):
        raise ValueError("no")


class Raising(rlrun.Callback):
    def on_update(self, clock, metrics):
        metrics["nothing"]


class Misspelt(rlrun.Callback):
    def on_epsiode(self, ret, length, info): ...


class Nothing(rlrun.Evaluation):
    def evaluat(self, games): ...


class Adding(rlrun.Callback):
    """Puts numbers of every library into a row, which are fine."""

    def on_log(self, row):
        row |= {"mine/numpy": np.float32(1.5), "mine/whole": np.int64(2), "mine/tensor": torch.tensor(3.0)}


class Listing(rlrun.Callback):
    def on_log(self, row):
        row["mine/list"] = [1, 2]


class Stumbling(rlrun.EnvCallback):
    def on_step(self, action, step):
        raise KeyError("nothing")


class Wordy(rlrun.EnvCallback):
    def on_episode_end(self, column, ret, length):
        return {"said": "many words"}


class Blind(rlrun.Callback):
    def before_learning(self, batch, clock):
        return batch.nothing


class Flat(Laplace):
    """Its actions have no shape of their own."""

    def mode(self):
        return self.mean.sum(-1)


class Unmoved(Laplace):
    """It cannot say how an action depends on its numbers."""

    rsample = rlrun.ActionDistribution.rsample

    def sample(self, rng):
        return self._shaped(self.mean + torch.randn(self.mean.shape, generator=rng))


class Narrow(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.net = nn.Linear(inputs, outputs + 1)

    def forward(self, x):
        return self.net(x)


class Silent(rlrun.Exploration):
    """Does not say how likely its actions are."""

    def choose(self, wanted, obs, is_first, state, clock, rng):
        return rlrun.Chosen(wanted.sample(rng))


class Wide(rlrun.Exploration):
    def choose(self, wanted, obs, is_first, state, clock, rng):
        return rlrun.Chosen(wanted.sample(rng).unsqueeze(1).expand(-1, 2), wanted.log_prob(wanted.mode()))


class Growing(rlrun.Exploration):
    def choose(self, wanted, obs, is_first, state, clock, rng):
        action = wanted.sample(rng)
        return rlrun.Chosen(action, wanted.log_prob(action), {"last": action})
