"""Columns: the environments' side of a fragment.

It writes observation, reward and ends of every row; the one who acts writes action and records.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence

import numpy as np
import torch

from rlrun.core.callbacks import EnvCallback, call, call_for_numbers
from rlrun.core.env import Failure, Rows, Step, VectorEnv, map_rows, paid, write_rows
from rlrun.core.moments import Moments
from rlrun.dataflow.slots import Episode

# The info entry whose last value in an episode counts (so named by Stable-Baselines3 and Gymnasium-Robotics).
SUCCESS = "is_success"
# Names of numeric info entries that are counted. An environment that makes new names all the time, as with the number
# of an episode in them, would make its process larger and every episode slower.
MOST_NAMES = 1000


def own(rows: Rows) -> Rows:
    return map_rows(rows, np.array)


class Columns:
    """Steps a VectorEnv through the rows of fragments and keeps statistics of its episodes."""

    def __init__(
        self,
        env: VectorEnv,
        first_env: int,
        generation: int,
        return_discount: float | None = None,
        whole_after: int | None = None,
        callbacks: Sequence[EnvCallback] = (),
    ):
        """first_env: the number of the first environment among all of the run. whole_after: if given, every fragment
        begins with new episodes, and a column is over when an episode ends after at least this many rows."""
        self.whole_after, self.generation, self.fragments = whole_after, generation, 0
        self.callbacks = callbacks
        for callback in callbacks:
            callback.columns = range(first_env, first_env + env.count // env.spec.columns_per_env)
        self.agents = env.spec.columns_per_env  # columns of one environment
        self.over = np.zeros(env.count, dtype=bool)
        self.env, self.first_env, self.return_discount = env, first_env, return_discount
        self.discounted = np.zeros(env.count)  # running sum of rewards, with older ones discounted
        self.seen: list[np.ndarray] = []  # values of self.discounted in this fragment
        self.obs: Rows = own(env.reset(generation))
        self.is_first = np.ones(env.count, dtype=bool)
        self.fresh: Rows | None = None  # after restart(): the first observations, which follow a dead row
        self.returns = np.zeros(env.count)
        agents = env.spec.agents
        # The returns of an environment's agents where they share one column [E, N].
        self.of_agents = np.zeros((env.count, len(agents.names))) if env.spec.joint and agents is not None else None
        self.lengths = np.zeros(env.count // self.agents, dtype=np.int64)  # of environments
        # For unfinished episodes: sum and count [2, B] of every numeric info entry; for SUCCESS its last value and 1.
        self.info: dict[str, np.ndarray] = {}
        self.too_many = False  # whether it has been said that there are more than MOST_NAMES
        self.row = 0  # absolute number of the next row
        self.live = 0  # env steps of this fragment so far
        self.agent_steps = 0  # decisions of this fragment so far, where an environment has several agents
        self.episodes: list[Episode] = []
        self.failures: list[Failure] = []  # of this fragment

    def begin(self, view: dict) -> None:
        """Begins a new fragment (view: its Batch.numpy()) by writing the observation of row 0."""
        if self.whole_after is not None:
            self.obs, self.fresh = own(self.env.reset((self.generation << 32) + self.fragments)), None
            self.is_first, self.over = np.ones(self.env.count, dtype=bool), np.zeros(self.env.count, dtype=bool)
            self._forget()
            self.fragments += 1
        self._observe(view, 0)
        self.live, self.agent_steps, self.episodes, self.seen, self.failures = 0, 0, [], [], []

    def step(self, view: dict, t: int) -> None:
        """Steps with the action of row t; writes the results into row t and the observation into row t + 1."""
        self.row += 1
        if self.fresh is not None:
            self._dead(view, t)
            self.obs, self.fresh = self.fresh, None
            self.is_first = np.ones(self.env.count, dtype=bool)
            self._observe(view, t + 1)
            return
        if self.over.all():
            self._dead(view, t)
            self._observe(view, t + 1)
            return
        action = map_rows(view["action"], lambda value: value[t])
        if self.callbacks:
            self._tell_starts()
        step = self.env.step(action)
        if self.whole_after is not None:
            step = self._without_those_over(step, t)
        for callback in self.callbacks:
            call(callback, "on_step", action, step)
        if step.executed is not None:  # such as FIRE in a dead row, for which recorded rows are asked later on
            np.copyto(view["action"][t], step.executed, where=~step.valid)
        view["reward"][t], view["valid"][t] = step.reward, step.valid
        view["terminated"][t], view["truncated"][t] = step.terminated, step.truncated
        self.obs, self.is_first = step.obs, step.is_first
        self._observe(view, t + 1)
        self.returns += paid(self.env.spec, step)
        acted = self._by_env(step.valid).any(1)
        self.lengths += acted
        self.live += int(acted.sum())
        if self.of_agents is not None:
            self.of_agents += step.reward
        if self.agents > 1 or self.of_agents is not None:
            self.agent_steps += int((step.valid if step.decided is None else step.decided).sum())
        if self.return_discount is not None:
            self.discounted = np.where(step.valid, self.return_discount * self.discounted, self.discounted) + step.paid
            self.seen.append(self.discounted[step.valid])
            self.discounted[step.is_first | step.terminated] = 0.0  # ends as learning sees them, lost lives included
        if step.info:
            self._note(step)
        if step.failed:
            self.failures += step.failed.values()
        if step.is_first.any():
            begun = self._by_env(step.is_first).all(1)
            for number in np.flatnonzero(begun).tolist():
                failure = step.failed.get(number)
                if failure is None or not failure.broken_off:
                    self._end(number)
            columns = np.repeat(begun, self.agents)
            for kept in self.info.values():
                kept[:, columns] = 0.0
            self.returns[columns], self.lengths[begun] = 0.0, 0
            if self.of_agents is not None:
                self.of_agents[begun] = 0.0

    def _by_env(self, values: np.ndarray) -> np.ndarray:
        """[B] values of columns -> those of environments [E, N]."""
        return values.reshape(-1, self.agents)

    def _end(self, number: int) -> None:
        """Records the episode that has ended in this environment."""
        columns = slice(number * self.agents, (number + 1) * self.agents)
        info = {
            name: float(total[columns].sum() / count[columns].sum())
            for name, (total, count) in self.info.items()
            if count[columns].any()
        }
        ret, length = float(self.returns[columns][self.env.spec.counts].sum()), int(self.lengths[number])
        if self.agents > 1 or self.of_agents is not None:
            each = self.returns[columns] if self.of_agents is None else self.of_agents[number]
            info |= self._returns_of_agents(each)
        for callback in self.callbacks:
            info |= call_for_numbers(callback, "on_episode_end", number, ret, length)
        self.episodes.append(Episode(self.first_env + number, ret, length, info))

    def _returns_of_agents(self, returns: np.ndarray) -> dict[str, float]:
        """The returns [N] of agents and the sums over groups and teams, by the names under which they are logged."""
        agents = self.env.spec.agents
        assert agents is not None
        by_name = dict(zip(agents.names, returns.tolist(), strict=True))
        sets = (*(agents.groups if len(agents.groups) > 1 else ()), *agents.teams)
        sums = {name: sum(by_name[member] for member in members) for name, members in sets}
        return {f"return/{name}": value for name, value in (sums | by_name).items()}

    def _tell_starts(self) -> None:
        """Tells callbacks of the environments whose current observation begins an episode. The observation of one with
        several agents has an axis over them."""
        begun = self._by_env(self.is_first & ~self.over).all(1)
        for number in np.flatnonzero(begun).tolist():
            place = number if self.agents == 1 else slice(number * self.agents, (number + 1) * self.agents)
            obs = map_rows(self.obs, operator.itemgetter(place))
            for callback in self.callbacks:
                call(callback, "on_episode_start", number, obs)

    def _without_those_over(self, step: Step, t: int) -> Step:
        """Masks columns that are over. They are stepped with the others, but their rows are dead and their episodes do
        not count."""
        assert self.whole_after is not None
        playing = ~self.over

        def theirs(values: np.ndarray) -> np.ndarray:
            return values * playing.reshape(-1, *[1] * (values.ndim - 1))

        step = step._replace(
            reward=theirs(step.reward),
            valid=step.valid & playing,
            terminated=step.terminated & playing,
            truncated=step.truncated & playing,
            is_first=step.is_first & playing,
            decided=None if step.decided is None else theirs(step.decided),
        )
        if t + 1 >= self.whole_after:
            self.over |= np.repeat(self._by_env(step.is_first).all(1), self.agents)
        return step

    def _note(self, step: Step) -> None:
        """Adds a row's numeric info entries to the statistics."""
        for name, value in step.info.items():
            kept = self.info.get(name)
            if kept is None:
                if len(self.info) >= MOST_NAMES:
                    self._leave_out(name)
                    continue
                kept = self.info[name] = np.zeros((2, self.env.count))
            seen = step.valid & np.isfinite(value)
            if name == SUCCESS:
                kept[0, seen], kept[1, seen] = value[seen], 1.0
            else:
                kept[0, seen] += value[seen]
                kept[1, seen] += 1.0

    def _leave_out(self, name: str) -> None:
        """Says once that names of info entries are not counted."""
        if not self.too_many:
            self.too_many = True
            said = f"{self.env.spec.name} has told {MOST_NAMES:,} numbers of different names in its infos"
            self.failures.append(
                Failure(f"{said}; new names, such as {name[:60]!r}, are not logged", False, made_anew=False)
            )

    def skip(self, view: dict, t: int, blank: bool = False) -> None:
        """Makes row t a dead row of a cut fragment. The pending observation is written into rows t and t + 1.

        blank: nobody has acted on row t, so its other fields are zeroed; otherwise NaN or an action outside the space
        could be read from old contents.
        """
        self.row += 1
        if blank:
            for name, value in view.items():
                if name not in ("obs", "is_first", "core"):
                    map_rows(value, lambda part: part[t].fill(0))
        self._dead(view, t)
        self._observe(view, t + 1)

    @staticmethod
    def _dead(view: dict, t: int) -> None:
        view["reward"][t] = 0.0
        for name in ("valid", "terminated", "truncated"):
            view[name][t] = False

    def _observe(self, view: dict, t: int) -> None:
        write_rows(view["obs"], self.obs, t)
        view["is_first"][t] = self.is_first

    def restart(self, generation: int) -> None:
        """Breaks every column: its next row is dead, and the one after begins an episode with seeds of this generation.

        Unfinished episodes are not counted. Bit-exact resume relies on this, because then no environment's state has to
        be saved.
        """
        self.generation = generation
        self.obs = own(self.obs)  # a copy, because reset() would overwrite it in environments that reuse memory
        self.fresh = own(self.env.reset(generation))
        self._forget()

    def _forget(self) -> None:
        """Drops the statistics of unfinished episodes."""
        self.returns[:], self.lengths[:], self.discounted[:], self.info = 0.0, 0, 0.0, {}
        if self.of_agents is not None:
            self.of_agents[:] = 0.0

    def return_moments(self) -> Moments | None:
        """Returns the moments of the discounted returns at the live rows of this fragment so far."""
        if self.return_discount is None:
            return None
        values = np.concatenate(self.seen) if self.seen else np.zeros(0)
        return (
            Moments(float(values.size), float(values.mean()), float(np.square(values - values.mean()).sum()))
            if values.size
            else Moments(0.0, 0.0, 0.0)
        )

    def save(self) -> dict:
        """Returns what another Columns needs to continue bit for bit, if restart() is called on both sides."""
        return {
            "obs": map_rows(self.obs, lambda value: torch.from_numpy(np.array(value))),
            "is_first": torch.from_numpy(self.is_first.copy()),
            "row": self.row,
            "fragments": self.fragments,
        }

    def load(self, saved: dict) -> None:
        self.obs = map_rows(saved["obs"], lambda value: value.numpy().copy())
        self.is_first = saved["is_first"].numpy().copy()
        self.row, self.fragments = saved["row"], saved["fragments"]
