"""Callbacks that fail, for the tests."""

import rlrun


class Unmade(rlrun.Callback):
    def __init__(self):
        raise ValueError("no")


class Raising(rlrun.Callback):
    def on_update(self, clock, metrics):
        metrics["nothing"]


class Stumbling(rlrun.EnvCallback):
    def on_step(self, action, step):
        raise KeyError("nothing")


class Wordy(rlrun.EnvCallback):
    def on_episode_end(self, column, ret, length):
        return {"said": "many words"}


class Blind(rlrun.Callback):
    def before_learning(self, batch, clock):
        return batch.nothing


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
