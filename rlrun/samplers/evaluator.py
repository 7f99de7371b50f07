"""Evaluator: plays full games on its own environments with its own seeds."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch

from rlrun.core.batch import Batch
from rlrun.core.env import EnvFactory, Rows, Step, paid
from rlrun.core.errors import RunFailed
from rlrun.core.long_games import LongGames, warn
from rlrun.core.policy import Mode, Policy
from rlrun.core.pulse import STEP, doing
from rlrun.core.schedule import Clock
from rlrun.core.seeding import Seeds
from rlrun.core.specs import EnvSpec

ENDLESS = 100_000  # steps after which an episode without a time limit is thought to have no end
TOGETHER, SEARCHED = 8, 64  # environments that a process steps together; those of a game that is searched


def together(spec: EnvSpec, games: int) -> int:
    """Returns the number of environments for so many games. A search takes hardly longer for many games at once than
    for one, if the game's rules step many states at once."""
    searched = spec.game is not None and not spec.game.copies
    return min(games, SEARCHED if searched else TOGETHER)


def to_torch(rows: Rows) -> Batch:
    return Batch(
        {
            name: to_torch(value) if isinstance(value, dict) else torch.from_numpy(np.ascontiguousarray(value))
            for name, value in rows.items()
        }
    )


def check_end(spec: EnvSpec, lengths: np.ndarray, why: str) -> None:
    """Raises RunFailed if an episode is so long that it seems to have no end. lengths: env steps of those that go on.
    why: a clause about what whole episodes are for."""
    if spec.max_episode_steps is None and lengths.max(initial=0) >= ENDLESS:
        raise RunFailed(
            f"an episode of {spec.name} has no limit, and has not ended after {ENDLESS:,} steps; {why}: set"
            f" {spec.limit_option}"
        )


class FullGame(NamedTuple):
    """A full game."""

    ret: float  # unclipped return, summed over the agents that count
    length: int  # env steps
    each: np.ndarray  # the agents' own returns [N]
    discounted: float = math.nan  # as ret, with the discount that was asked for
    truncated: bool = False  # whether it was broken off, as by a time limit, and did not come to an end of its own


class RunningGames:
    """What the games that are being played have paid so far."""

    def __init__(self, spec: EnvSpec, envs: int, discount: float):
        self.spec, self.discount = spec, discount
        self.returns, self.lengths = np.zeros(envs), np.zeros(envs, dtype=np.int64)
        self.each = np.zeros((envs, 1 if spec.agents is None else len(spec.agents.names)))
        self.discounted, self.factor = np.zeros(envs), np.ones(envs)
        self.truncated = np.zeros(envs, dtype=bool)  # by their last step in which an agent decided

    def add(self, step: Step) -> None:
        shape = (len(self.lengths), self.spec.columns_per_env)
        reward = paid(self.spec, step).reshape(shape)
        counting = reward[:, self.spec.counts].sum(1)
        self.returns += counting
        self.each += step.reward if self.spec.joint else reward
        lived = step.valid.reshape(shape).any(1)
        self.lengths += lived
        broken_off = (step.truncated & ~step.terminated).reshape(shape).any(1)
        self.truncated = np.where(lived, broken_off, self.truncated)
        self.discounted += self.factor * counting
        self.factor[lived] *= self.discount

    def end(self, number: int) -> FullGame:
        """The game of this environment, which has ended. Its next one begins."""
        game = FullGame(
            float(self.returns[number]),
            int(self.lengths[number]),
            self.each[number].copy(),
            float(self.discounted[number]),
            bool(self.truncated[number]),
        )
        self.returns[number], self.lengths[number], self.each[number] = 0.0, 0, 0.0
        self.discounted[number], self.factor[number], self.truncated[number] = 0.0, 1.0, False
        return game


class Evaluator:
    """Plays on `envs` environments at once. Each one plays a fixed number of episodes, or of env steps, because
    otherwise short episodes would be counted more often."""

    def __init__(
        self, make_env: EnvFactory, envs: int, seeds: Seeds, number: int = 0, say: Callable[[str], None] = warn
    ):
        """number: that of this process among those that evaluate together. Each has seeds of its own. say: is told of
        games that go on for long."""
        self.make_env, self.seeds, self.number = make_env, seeds, number
        self.env = make_env(number, envs)
        self.long = LongGames(self.env.spec, say)

    def play(
        self,
        policy: Policy,
        episodes: int,
        mode: Mode,
        clock: Clock,
        round_: int = 0,
        stop: Callable[[], bool] = lambda: False,
        env_steps: int | None = None,
        agent: int | None = None,
    ) -> list[tuple[float, int]]:
        """Returns (unclipped return, length) of `episodes` full games, summed over the agents that count. With
        env_steps, it plays so many in place of `episodes`, and then the games that have begun to their ends. With
        agent, returns are those of the agent with this number.

        Everything else is as in games()."""
        played = self.games(policy, episodes, mode, clock, round_, stop, env_steps)
        return [(game.ret if agent is None else float(game.each[agent]), game.length) for game in played]

    def games(
        self,
        policy: Policy,
        episodes: int,
        mode: Mode,
        clock: Clock,
        round_: int = 0,
        stop: Callable[[], bool] = lambda: False,
        env_steps: int | None = None,
        discount: float = 1.0,
    ) -> list[FullGame]:
        """Plays as play() does, and tells the returns of all agents, and those with a discount.

        The seeds depend on `round_`, so that each evaluation of a run has its own. When stop() returns true, only the
        games that have been finished by then are returned.
        """
        spec, columns = self.env.spec, self.env.count
        envs = columns // spec.columns_per_env
        quota = np.full(envs, episodes // envs)  # of games
        quota[: episodes % envs] += 1
        if env_steps is not None:
            quota = np.full(envs, -(-env_steps // envs))
        counted = np.zeros(envs, dtype=np.int64)  # games or env steps
        device = next(policy.parameters(), torch.zeros(())).device  # players by rule have no parameters
        rng = self.seeds.generator("eval-policy", round_, *([self.number] if self.number else []), device=str(device))
        obs = self.env.reset(round_)
        is_first = np.ones(columns, dtype=bool)
        state: Batch = policy.initial_state(columns)
        running = RunningGames(spec, envs, discount)
        done: list[list[FullGame]] = [[] for _ in range(envs)]
        self.long.ended()
        with torch.inference_mode():
            while not stop() and (counted < quota).any():
                act = policy.act(
                    to_torch(obs).to(device), torch.from_numpy(is_first).to(device), state, clock, mode, rng
                )
                state = act.state
                with doing(STEP, longest=True):
                    step = self.env.step(act.action.to("cpu").numpy())
                obs, is_first = step.obs, step.is_first
                running.add(step)
                check_end(spec, running.lengths[counted < quota], "a score is the return of a whole episode")
                for number in np.flatnonzero(is_first.reshape(envs, -1).all(1)):
                    game = running.end(int(number))
                    if counted[number] < quota[number]:
                        done[number].append(game)
                        counted[number] += 1 if env_steps is None else game.length
                        self.long.ended()
                longest = int(running.lengths[counted < quota].max(initial=0))
                self.long.look(f"evaluating at {clock.env_steps:,} env steps", longest)
        return [game for games in done for game in games]

    def close(self) -> None:
        self.env.close()
