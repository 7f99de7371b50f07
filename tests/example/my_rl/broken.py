"""Callbacks that fail, for the tests."""

import rlrun


class Unmade(rlrun.Callback):
    def __init__(self):
        raise ValueError("no")


class Raising(rlrun.Callback):
    def on_update(self, clock, metrics):
        metrics["nothing"]
