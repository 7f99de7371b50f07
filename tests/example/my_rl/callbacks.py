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


class Walked(rlrun.EnvCallback):
    """Counts the steps to the right in every episode, where the environment is stepped."""

    def __init__(self):
        self.right, self.first = {}, {}

    def on_episode_start(self, column, obs):
        self.right[column], self.first[column] = 0, int(obs["observation"])

    def on_step(self, action, step):
        for column, (chosen, decided) in enumerate(zip(action, step.valid)):
            if decided:
                self.right[column] += int(chosen)

    def on_episode_end(self, column, ret, length):
        return {
            "right_share": self.right[column] / length,
            "first_cell": self.first[column],
            "env": self.columns[column],
        }


class Seen(rlrun.Callback):
    """Looks at the batch that is learnt from."""

    def before_learning(self, batch, clock):
        return {"mean_reward": batch.reward[batch.valid].mean(), "updates_before": clock.updates}
