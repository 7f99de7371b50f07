"""What an algorithm that learns to adapt asks of the data flow: several tasks, and several rounds of rows of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rlrun.core.env import VectorEnv, task_env


@dataclass(frozen=True, kw_only=True)
class FromTasks:
    """In every update, environment i plays task i // envs_per_task. Each round begins new episodes, with the policies
    that Algorithm.adapt() made of the rounds before. A batch holds the rounds side by side, so that Needs.columns are
    those of all rounds together."""

    count: int  # tasks in an update
    envs_per_task: int
    rounds: int
    sampled: bool  # whether tasks are drawn from the environment; otherwise all are the environment as it is


class TaskGiver:
    """Gives the columns of one group of environments their tasks. Every group draws all tasks of an update for itself,
    from the same seed."""

    def __init__(self, env: VectorEnv, tasks: FromTasks, first_env: int, seed: Callable[[int], int]):
        """first_env: the number of the first environment among all of the run. seed(update): that of its tasks."""
        self.env, self.tasks, self.seed = task_env(env), tasks, seed
        agents = env.spec.columns_per_env
        self.places = [(first_env + column // agents) // tasks.envs_per_task for column in range(env.count)]
        self.given: int | None = None  # the update whose tasks were given last

    def give(self, update: int) -> None:
        """Sets the tasks of an update, once. The environments must be reset afterwards."""
        if update != self.given:
            drawn = self.env.sample_tasks(self.tasks.count, self.seed(update))
            self.env.set_tasks([drawn[place] for place in self.places])
            self.given = update
