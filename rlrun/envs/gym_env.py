"""Gymnasium environments as columns, through their own vectorised implementation or else one after another in this
process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import iterate

from rlrun.core.env import Rows, Step, map_rows
from rlrun.core.errors import FAILURES, EnvError, told
from rlrun.core.restarts import Remade
from rlrun.core.seeding import Seeds
from rlrun.core.specs import EnvSpec, any_legal
from rlrun.envs.gym import GymConfig, SingleConfig, by_vector, make_one, make_vector
from rlrun.envs.gym_spaces import MASK, to_rows, typed_actions
from rlrun.envs.misfits import Looker
from rlrun.envs.named import NamedEnv, global_generators
from rlrun.envs.names import numbered


def numbers(info: dict[str, Any]) -> dict[str, np.ndarray]:
    """Returns the numeric scalars of a vector environment's info, each [B] float64, NaN where one gave none."""
    found = {}
    for name, value in info.items():
        given = info.get(f"_{name}") if isinstance(name, str) else None
        if given is not None and isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.kind in "biuf":
            found[name] = np.where(given, value, np.nan)
    return found


def gathered(told: Sequence[dict[str, float]]) -> dict[str, np.ndarray]:
    """The numbers that each environment has told, each [B] float64, NaN where one gave none."""
    names = dict.fromkeys(name for one in told for name in one)
    return {name: np.array([one.get(name, np.nan) for one in told]) for name in names}


class GymEnv:
    """`count` environments with Gymnasium's NEXT_STEP autoreset: the row after an end is dead and only resets."""

    def __init__(
        self,
        cfg: SingleConfig,
        spec: EnvSpec,
        seeds: Seeds,
        stream: str,
        worker: int,
        count: int,
        render: bool = False,
        new_tasks: bool = False,
        restarts: bool = False,
    ):
        """new_tasks: whether every episode has a new task; otherwise tasks are set by set_tasks(). restarts: whether an
        environment that raises is made anew."""
        self.cfg, self.spec, self.count, self.new_tasks = cfg, spec, count, new_tasks
        self.seeds, self.stream, self.worker = seeds, stream, worker
        self.name, self.numbers = numbered(cfg.name, stream, worker, count)
        self.env: Any
        self.remade = Remade(count, restarts)
        self.tasks: list[Any] | None = None
        self.drawer: gymnasium.Env | None = None  # draws tasks while the others play
        self.draws = 0  # of the drawer since reset()
        self.native = not render and by_vector(cfg, spec)
        if isinstance(cfg, GymConfig) and self.native:
            self.env = make_vector(cfg, count)
            self.look = Looker(self.env.single_observation_space)
        else:

            def one(index: int):
                return lambda: NamedEnv(
                    lambda: make_one(cfg, render), self.name, self.numbers[index], index, self.remade, self._new
                )

            self.env = SyncVectorEnv(
                [one(index) for index in range(count)], copy=False, autoreset_mode=AutoresetMode.NEXT_STEP
            )
        self.ended = np.zeros(count, dtype=bool)
        self.generation = 0

    def _new(self, named: NamedEnv) -> int:
        """Prepares an environment that was made anew, and returns its seed, which no other has."""
        slot, times = named.slot, self.remade.times[named.slot]
        if self.tasks is not None:
            named.get_wrapper_attr("set_task")(self.tasks[slot])
        seed = self.seeds.integer(f"{self.stream}-anew", self.worker, slot, self.generation, times)
        self.env_seeds[slot] = seed
        return seed

    def reset(self, generation: int) -> Rows:
        self.generation, self.draws = generation, 0
        if self.new_tasks:
            self.set_tasks(
                self.sample_tasks(self.count, self.seeds.integer(f"{self.stream}-tasks", self.worker, generation))
            )
        self.env_seeds = [self.seeds.integer(self.stream, self.worker, slot, generation) for slot in range(self.count)]
        obs, _ = self._call("reset", lambda: self.env.reset(seed=self.env_seeds[0] if self.native else self.env_seeds))
        self.ended = np.zeros(self.count, dtype=bool)
        self._look(obs)
        self.remade.keep()
        return self._checked(to_rows(self.spec, obs), self.ended)

    def step(self, action: Any) -> Step:
        taken = typed_actions(self.env.action_space, self.spec.action.to_env(action))
        if self.new_tasks and self.ended.any():
            self._renew_tasks(np.flatnonzero(self.ended))
        obs, reward, terminated, truncated, info = self._call("step", lambda: self.env.step(taken))
        self._look(obs)
        began, failed = self.ended, self.remade.take(self.ended)
        if failed:  # their rows are dead, as those of an environment that is reset
            began = began.copy()
            began[list(failed)] = True
        reward = np.asarray(reward, dtype=np.float32)
        if not np.isfinite(reward).all():
            raise self._bad(
                int(np.argmin(np.isfinite(reward))), f"the reward {reward[~np.isfinite(reward)][0]}", action
            )
        over = terminated | truncated
        if self.native:  # SyncVectorEnv only resets in that step
            if (twice := self.ended & over).any():
                what = "an end in the step after an end, where NEXT_STEP only begins the next episode,"
                raise self._bad(int(np.argmax(twice)), what, action)
            reward = np.where(self.ended, np.float32(0.0), reward)  # Gymnasium's phys2d pays there too
        self.ended = over
        return Step(
            self._checked(to_rows(self.spec, obs), self.ended, action),
            reward,
            terminated.copy(),
            truncated.copy(),
            ~began,
            began,
            numbers(info) if self.native else gathered([one.told for one in self.env.envs]),
            failed=self.remade.told(failed),
        )

    def _look(self, obs: Any) -> None:
        """Looks at what an environment's own vectorised implementation shows of the first one; NamedEnv looks at
        others."""
        if not self.native or not self.look.left:
            return
        if (wrong := self.look(next(iter(iterate(self.env.observation_space, obs))))) is not None:
            said = f"{self.name}, env {self.numbers[0]}: {wrong}; `rlrun check-env {self.name}` says how to mend it"
            self.remade.odd(0, said)

    def sample_tasks(self, count: int, seed: int) -> list[Any]:
        return self._drawn(self.env if self.native else self.env.envs[0], count, seed)

    def _drawn(self, one: Any, count: int, seed: int) -> list[Any]:
        """Tasks that an environment, or a vector of them, draws after a reset."""

        def sample() -> Any:
            with global_generators(seed):  # RLlib's examples draw from NumPy's global generator
                one.reset(seed=seed)
                draw = one.get_wrapper_attr("sample_tasks") if isinstance(one, gymnasium.Env) else one.sample_tasks
                return draw(count)

        tasks = self._call("sample_tasks", sample)
        try:
            made = list(tasks)
        except TypeError:
            made = []
        if len(made) != count:
            what = f"returned {' '.join(repr(tasks).split())} from sample_tasks({count}), which are not {count} tasks"
            raise EnvError(self.name, self.numbers[:1], seed, what)
        return made

    def set_tasks(self, tasks: Sequence[Any]) -> None:
        self.tasks = list(tasks)
        self._give_tasks(range(self.count))

    def _give_tasks(self, columns: Iterable[int]) -> None:
        """Tells the environments of these columns, which are not in the middle of an episode, their tasks."""
        tasks = self.tasks
        assert tasks is not None and len(tasks) == self.count

        def give() -> None:
            if self.native:
                self.env.set_tasks(tasks)
                return
            for column in columns:
                self.env.envs[column].get_wrapper_attr("set_task")(tasks[column])

        self._call("set_task", give)

    def _renew_tasks(self, columns: Sequence[int] | np.ndarray) -> None:
        """Gives columns whose episodes have ended new tasks, before the step that resets them."""
        assert self.tasks is not None
        if self.drawer is None:
            self.drawer = self._call("sample_tasks", lambda: make_one(self.cfg))
        self.draws += 1
        seed = self.seeds.integer(f"{self.stream}-tasks", self.worker, self.generation, self.draws)
        drawn = self._drawn(self.drawer, self.count, seed)  # for all, because some draw kinds of tasks in equal numbers
        for column in columns:
            self.tasks[column] = drawn[column]
        self._give_tasks(columns)

    def _call(self, doing: str, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except EnvError:
            raise
        except FAILURES as error:  # for example, observations outside their space cannot be stacked
            what = (
                f"failed in {doing} (does what it returns fit {self.spec.observation}? rlrun check-env {self.name}"
                f" looks for such mistakes): {told(error, __file__)}"
            )
            raise EnvError(self.name, self.numbers, None, what) from error

    def _checked(self, rows: Rows, ended: np.ndarray, action: Any = None) -> Rows:
        def check(part: np.ndarray) -> None:
            if part.dtype.kind == "f" and not np.isfinite(part).all():
                raise self._bad(
                    int(np.argmin(np.isfinite(part.reshape(self.count, -1)).all(1))),
                    "an observation that is not finite",
                    action,
                )

        map_rows(rows["observation"], check)
        if MASK in rows:
            stuck = ~any_legal(self.spec.action, rows[MASK]) & ~ended
            if stuck.any():
                raise self._bad(int(np.argmax(stuck)), "an action_mask that leaves no legal action", action)
        return rows

    def _bad(self, index: int, what: str, action: Any) -> EnvError:
        seed = self.env_seeds[0 if self.native else index]
        last = None if action is None else map_rows(action, lambda value: value[index].tolist())
        one = self.numbers[index : index + 1]
        return EnvError(self.name, one, seed, f"returned {what} after the action {last}")

    def frame(self) -> np.ndarray:
        """Renders the first environment: [H, W, 3] uint8. It needs render=True."""
        return self.env.envs[0].render()

    def close(self) -> None:
        self.env.close()
        if self.drawer is not None:
            self.drawer.close()
