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
