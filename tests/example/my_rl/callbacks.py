"""A callback that counts, and adds a number to every log row."""

from __future__ import annotations

import rlrun


class Best(rlrun.Callback):
    def __init__(self):
        self.best, self.updates = float("-inf"), 0

    def on_episode(self, ret, length, info):
        self.best = max(self.best, ret)

    def on_update(self, clock, metrics):
        self.updates += 1

    def on_log(self, row):
        row["my/best_episode"] = self.best

    def on_end(self, status):
        print(f"Best: {status} after {self.updates} updates, best episode {self.best:.2f}", flush=True)
