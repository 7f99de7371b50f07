"""Environments with several agents as columns.

Every agent is a column of its own (EnvSpec.agents). Where an agent is not there, because it has died or has not
appeared yet, its rows are dead and its observation is 0. An agent that waits for its turn has a live row with one legal
action, number 0. After an end there is a row that is dead for all, and in which the environment is reset.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rlrun.core.env import Rows, Step, map_rows
from rlrun.core.errors import FAILURES, EnvError, UserError, closest, told
from rlrun.core.pulse import RESET, doing, next_step
from rlrun.core.restarts import Remade
from rlrun.core.seeding import Seeds
from rlrun.core.specs import Agents, Box, Discrete, EnvSpec, MultiBinary, Space, any_legal, fits_name, leaves, mask_size
from rlrun.envs.agent_games import AgentsConfig, AgentsStep, ParallelGame, TupleGame, make_game
from rlrun.envs.agent_rows import AgentSpaces, action_of, agent_rows, blank, one_of, shows_mask, write_agent, write_id
from rlrun.envs.agent_spaces import common, spaces_of, with_id
from rlrun.envs.gym_spaces import MASK, typed_actions
from rlrun.envs.infos import numbers_of
from rlrun.envs.misfits import paid
from rlrun.envs.names import numbered
from rlrun.envs.own_state import state_of

GROUP = "agents"  # the name of the group of all agents, which share one policy


# -- the spec ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class AgentsSpec(EnvSpec):
    """An EnvSpec that knows what each agent's own spaces are."""

    own: tuple[tuple[str, AgentSpaces], ...] = field(default=(), repr=False)
    told_in_info: tuple[str, ...] = ()  # the agents whose infos say which of their actions are legal
    turns: bool = False  # one agent decides at a time
    agent_id: bool = False  # the last numbers of observations are the agent's number, one-hot


def make_spec(cfg: AgentsConfig) -> AgentsSpec:
    """Makes one environment to read its agents and spaces. Raises UserError if it fails or they are not supported."""
    game = make_game(cfg)
    try:
        own = spaces_of(game, cfg.name)
        said = []
        obs: dict[str, Space] = {}
        obs["observation"], padded = common({a: s.obs["observation"] for a, s in own.items()}, "observation", cfg.name)
        action, unlike = common({a: s.action for a, s in own.items()}, "action", cfg.name)
        said += [sentence for sentence in (padded, unlike) if sentence]
        if cfg.agent_id:
            obs["observation"] = with_id(obs["observation"], len(own), cfg.name)
        try:
            _, infos = game.reset(seed=0)
        except FAILURES as error:  # the user's own
            raise UserError(f"env={cfg.name} fails in reset: {told(error, __file__)}") from None
        told_in_info = tuple(agent for agent, info in infos.items() if isinstance(info, Mapping) and MASK in info)
        if told_in_info and game.turns:  # of the others, when their turn comes
            told_in_info = tuple(game.agents)
        masked = bool(told_in_info) or any(MASK in s.obs for s in own.values()) or game.turns
        if masked or (unlike and isinstance(action, Discrete)):
            width = mask_size(action)
            if width is None and (told_in_info or any(MASK in s.obs for s in own.values())):
                raise UserError(f"{cfg.name} masks its actions, but {action} cannot be masked")
            if width is not None:
                obs[MASK] = MultiBinary(shape=(width,))
        for _, part in leaves(action):
            if isinstance(part, Box) and part.bounded and any(a >= b for a, b in zip(part.low, part.high, strict=True)):
                raise UserError(f"{cfg.name} has an action whose lowest value is its highest: {part}")
        limit = cfg.max_episode_steps or (game.limit if isinstance(game, TupleGame) else _limit_of_zoo(game))
    finally:
        game.close()
    agents = Agents(groups=((GROUP, tuple(own)),), counted=_counted(cfg, tuple(own)))
    return AgentsSpec(
        name=cfg.name, obs=obs, action=action, agents=agents, max_episode_steps=limit, own=tuple(own.items()),
        notes=tuple(said), agent_id=cfg.agent_id, told_in_info=told_in_info, turns=game.turns,
    )  # fmt: skip


def _counted(cfg: AgentsConfig, names: tuple[str, ...]) -> tuple[str, ...]:
    """The agents that env.return_of names. Raises UserError for a pattern that no agent's name matches."""
    for pattern in cfg.return_of:
        if not any(fits_name(name, pattern) for name in names):
            raise UserError(
                f"env.return_of: {pattern!r} matches no agent of {cfg.name}.{closest(pattern, names)} There are"
                f" {', '.join(names)}"
            )
    return tuple(name for name in names if any(fits_name(name, pattern) for pattern in cfg.return_of))


def _limit_of_zoo(game: ParallelGame) -> int | None:
    """The most env steps of an episode. Where agents take turns, an env step is a move, and in a cycle each may make
    one."""
    value = getattr(getattr(game.env, "unwrapped", game.env), "max_cycles", None)
    if not isinstance(value, int) or value <= 0:
        return None
    return value * len(game.agents) if game.turns else value


# -- many environments -------------------------------------------------------------------------------------------------


class AgentsEnv:
    """Environments with several agents, one after another in this process. Column e * N + i is agent i of environment
    e, with N agents in the order of spec.agents.names."""

    def __init__(
        self,
        cfg: AgentsConfig,
        spec: EnvSpec,
        seeds: Seeds,
        stream: str,
        worker: int,
        count: int,
        render: bool = False,
        restarts: bool = False,
    ):
        """count: number of environments. restarts: whether an environment that raises is made anew."""
        assert spec.agents is not None
        self.cfg, self.spec, self.seeds, self.stream, self.worker = cfg, spec, seeds, stream, worker
        self.names = spec.agents.names
        self.index = {name: number for number, name in enumerate(self.names)}
        self.envs, self.count = count, count * len(self.names)
        self.name, self.numbers = numbered(cfg.name, stream, worker, count)
        self.render, self.remade, self.generation = render, Remade(count, restarts), 0
        self.games = [make_game(cfg, render) for _ in range(count)]
        own = dict(spec.own) if isinstance(spec, AgentsSpec) else spaces_of(self.games[0], cfg.name)
        self.own = [own[name] for name in self.names]
        self.action_spaces = [self.games[0].spaces(name)[1] for name in self.names]
        self.alike = all(one.action == spec.action for one in self.own)
        self.rows = agent_rows(spec, self.count)
        self.ended = np.zeros(count, dtype=bool)
        self.there = np.zeros(self.count, dtype=bool)  # agents that are in the game
        self.taken = np.zeros(count, dtype=np.int64)  # env steps of the episode
        self.env_seeds: list[int | None] = [None] * count
        self.told: set[str] = set()  # agents whose infos have told which of their actions are legal
        self.states: np.ndarray | None = None  # [E, D] of all environments; None: their states are not read

    def read_states(self, size: int) -> None:
        """From the next reset on, `states` [E, size] holds what each environment's own state() returns.

        It is read in the same place as observations are, so that an environment whose state() raises has failed in that
        reset or step."""
        self.states = np.zeros((self.envs, size), dtype=np.float32)

    # -- observations --------------------------------------------------------------------------------------------------

    def _write(self, game: ParallelGame | TupleGame, env: int, obs: dict[str, Any], infos: Mapping[str, Any]) -> None:
        """Writes the observations of one environment into its rows. Agents without one have zeros."""
        first, waiting = env * len(self.names), set(game.present) - set(game.deciding)
        for agent, seen in obs.items():
            number = self._number(agent, env)
            info = infos.get(agent)
            mask = info.get(MASK) if isinstance(info, Mapping) else None
            if mask is not None and MASK not in self.rows:
                what = f"told an {MASK} in the info of {agent!r}, and in none of its first reset(): tell it there too"
                raise self._error(env, what)
            if mask is not None:
                self.told.add(agent)
            elif agent in self.told and agent in game.present and agent not in waiting and not shows_mask(seen):
                what = f"told no {MASK} in the info of {agent!r}, as it did before: tell one in every info"
                raise self._error(env, what)
            try:
                write_agent(
                    self.rows, first + number, self.own[number], seen, agent not in waiting, mask, agent in game.present
                )
            except FAILURES as error:  # whatever its shape and type lead to
                what = f"returned an observation that does not fit for the agent {agent!r}"
                raise self._failed(env, what, error) from error
            if self.cfg.agent_id:
                write_id(self.rows, first + number, number, len(self.names))

    def _write_state(self, env: int) -> None:
        """Writes the own state of one environment, if it is read. Raises EnvError if it fails or has another size."""
        if self.states is None:
            return
        try:
            seen = state_of(self.games[env])
        except FAILURES as error:  # the user's own
            raise self._failed(env, "failed in state", error) from error
        size = self.states.shape[1]
        if seen is None or seen.size != size:
            found = "none" if seen is None else f"{seen.size} numbers"
            raise self._error(env, f"has a state of {found}, not of {size}")
        self.states[env] = seen

    def _number(self, agent: str, env: int) -> int:
        number = self.index.get(agent)
        if number is None:
            raise self._error(
                env, f"returned something for the agent {agent!r}, which is not one of its possible_agents"
            )
        return number

    def _blank(self, columns: Any) -> None:
        blank(self.spec.action, self.rows, columns)

    def _error(self, env: int, what: str) -> EnvError:
        return EnvError(self.name, self.numbers[env : env + 1], self.env_seeds[env], what)

    def _failed(self, env: int, what: str, error: BaseException) -> EnvError:
        """What the user's own code raised, or what followed from what it returned, with the name of the environment."""
        if isinstance(error, EnvError):
            return error
        failed = self._error(env, " ".join(f"{what}: {told(error, __file__)}".split()))
        failed.__cause__ = error
        return failed

    # -- VectorEnv -----------------------------------------------------------------------------------------------------

    def reset(self, generation: int) -> Rows:
        self._blank(slice(None))
        self.generation = generation
        for env in range(self.envs):
            self.env_seeds[env] = self.seeds.integer(self.stream, self.worker, env, generation)
            self._reset(env, self.env_seeds[env])
        self.remade.keep()
        self._check(None)
        return self.rows

    def _reset(self, env: int, seed: int | None) -> None:
        if (failed := self._tried(env, seed)) is not None:
            self._anew(env, failed)

    def _tried(self, env: int, seed: int | None) -> EnvError | None:
        """Resets an environment and returns how that failed, or None if it did not."""
        try:
            with doing(RESET):
                obs, infos = self.games[env].reset(seed)
            self._begin(env, obs, infos)
        except FAILURES as error:  # the user's own
            return self._failed(env, "failed in reset", error)
        return None

    def _begin(self, env: int, obs: dict[str, Any], infos: Mapping[str, Any]) -> None:
        """Writes what an episode of one environment begins with."""
        game, many = self.games[env], len(self.names)
        columns = slice(env * many, (env + 1) * many)
        self._blank(columns)
        self.there[columns] = False
        for agent in game.present:
            self.there[env * many + self._number(agent, env)] = True
        if not game.present:
            raise self._error(env, "began an episode without agents")
        self._write(game, env, obs, infos)
        self._check_shown(env, obs, "reset")
        self._write_state(env)
        self.ended[env], self.taken[env] = False, 0

    def _anew(self, env: int, failed: EnvError) -> None:
        """Replaces an environment that has failed, until one can be reset. Raises the last failure where it must not be
        replaced."""
        last: EnvError | None = failed
        while last is not None:
            self.remade.note(env, last)
            with contextlib.suppress(*FAILURES):  # it is broken
                self.games[env].close()
            try:
                self.games[env] = make_game(self.cfg, self.render)
            except FAILURES as again:
                what = f"could not be made anew after it {last.what}: {told(again, __file__)}"
                raise self._error(env, what) from again
            times = self.remade.times[env]
            seed = self.seeds.integer(f"{self.stream}-anew", self.worker, env, self.generation, times)
            self.env_seeds[env] = seed
            last = self._tried(env, seed)

    def step(self, action: Any) -> Step:
        many, count = len(self.names), self.count
        reward = np.zeros(count, dtype=np.float32)
        terminated, truncated, valid, is_first, decided = (np.zeros(count, dtype=bool) for _ in range(5))
        info: dict[str, np.ndarray] = {}
        taken = self.spec.action.to_env(action) if self.alike else None
        over = self.ended.copy()
        for env, game in enumerate(self.games):
            columns = slice(env * many, (env + 1) * many)
            if self.ended[env]:
                self._reset(env, None)
                is_first[columns] = True
                continue
            self.remade.stepped(env)
            before = [self.index[agent] for agent in game.present]
            there = [env * many + number for number in before]
            deciding = [env * many + self.index[agent] for agent in game.deciding]
            valid[there], decided[deciding] = True, True
            actions = {self.names[number]: self._action(taken, action, env * many + number) for number in before}
            if game.turns:
                actions = {agent: actions[agent] for agent in game.deciding}
            self.taken[env] += 1
            next_step()
            try:
                outcome = game.step(actions)
                self._record(env, game, outcome, there, reward, terminated, truncated, is_first, info)
            except FAILURES as error:  # the user's own
                what = f"failed in step {self.taken[env]} on the actions {actions}"
                self._anew(env, self._failed(env, what, error))
                for values in (reward, terminated, truncated, valid, decided):
                    values[columns] = 0
                for values in info.values():
                    values[columns] = np.nan
                is_first[columns] = True
        self._check(action)
        failed = self.remade.told(self.remade.take(over))
        return Step(self.rows, reward, terminated, truncated, valid, is_first, info, decided, failed)

    def _action(self, taken: Any, action: Any, column: int) -> Any:
        """The action of one column as its environment takes it."""
        number = column % len(self.names)
        if taken is None:
            given = action_of(self.own[number], map_rows(action, lambda part: part[column : column + 1]))
        else:
            given = one_of(taken, column)
        return typed_actions(self.action_spaces[number], given)

    def _record(
        self,
        env: int,
        game: ParallelGame | TupleGame,
        outcome: AgentsStep,
        there: list[int],
        reward: np.ndarray,
        terminated: np.ndarray,
        truncated: np.ndarray,
        is_first: np.ndarray,
        info: dict[str, np.ndarray],
    ) -> None:
        """Writes what a step of one environment led to."""
        many = len(self.names)
        first, present = env * many, set(game.present)
        columns = slice(first, first + many)
        appeared = []
        for agent in present:
            column = first + self._number(agent, env)
            if not self.there[column]:
                is_first[column] = True
                appeared.append(column)
        for column in there:
            agent = self.names[column - first]
            self._check_outcome(env, agent, outcome)
            terminated[column] = bool(outcome.terminated.get(agent, False))
            truncated[column] = bool(outcome.truncated.get(agent, False)) and not terminated[column]
        for agent, given in outcome.reward.items():
            column = first + self._number(agent, env)
            if self.there[column]:  # an agent that did not take part is paid nothing
                reward[column], what = paid(given)
                if what is not None:
                    said = f"returned for the agent {agent!r} in step {self.taken[env]} {what}"
                    raise self._promise(env, said, "return a finite number for every agent that acted")
        over = not present
        limit = self.cfg.max_episode_steps
        if limit is not None and self.taken[env] >= limit and not over:
            over = True
            for column in there:
                terminated[column] |= self.names[column - first] in outcome.out
                truncated[column] = not terminated[column]
        if self.cfg.time_limit == "termination":
            terminated[there] |= truncated[there]
            truncated[there] = False
        gone = self.there[columns].copy()
        self._blank(columns)
        self._write(
            game,
            env,
            {agent: seen for agent, seen in outcome.obs.items() if gone[self._number(agent, env)] or agent in present},
            outcome.info,
        )
        self._check_shown(env, outcome.obs, f"step {self.taken[env]}")
        for column in there:
            if truncated[column] and self.names[column - first] not in outcome.obs:
                self._note_unseen_end(env, self.names[column - first])
        self._write_state(env)
        self.there[columns] = False
        for agent in present - outcome.out if over else present:
            self.there[first + self.index[agent]] = True
        self.ended[env] = over
        for agent, told_of in outcome.info.items():
            for key, value in numbers_of(told_of).items() if isinstance(told_of, Mapping) else ():
                kept = info.setdefault(key, np.full(self.count, np.nan))
                kept[first + self._number(agent, env)] = value

    def _check_shown(self, env: int, obs: Mapping[str, Any], where: str) -> None:
        """Raises EnvError for an agent that is there without an observation, because it would act on zeros."""
        for agent in self.games[env].present:
            if agent not in obs:
                what = f"showed nothing to the agent {agent!r} in {where}"
                raise self._promise(env, what, "return an observation for each of `agents`")

    def _check_outcome(self, env: int, agent: str, outcome: AgentsStep) -> None:
        """Raises EnvError where a step does not say what became of an agent that took part in it."""
        goes_on, step = agent in self.games[env].present, f"in step {self.taken[env]}"
        ended = bool(outcome.terminated.get(agent, False)) or bool(outcome.truncated.get(agent, False))
        if agent not in outcome.obs and not (ended or goes_on):
            raise self._error(env, f"lost the agent {agent!r} {step} without saying that it ended")
        if ended and goes_on:
            what = f"ended the agent {agent!r} {step}, which is still there"
            raise self._promise(env, what, "take agents out of `agents` in the step that ends them")
        if agent not in outcome.reward:
            what = f"returned no reward for the agent {agent!r} {step}"
            raise self._promise(env, what, "return one, which may be 0, for every agent that acted")

    def _note_unseen_end(self, env: int, agent: str) -> None:
        """Notes that a truncated agent has no last observation. The run goes on with one of zeros."""
        what = f"truncated the agent {agent!r} without a last observation, so that its value is that of zeros"
        self.remade.odd(env, str(self._promise(env, what, "return the observation in which an agent ends")))

    def _promise(self, env: int, what: str, mend: str) -> EnvError:
        """What an environment does against its interface, and how to mend it."""
        return self._error(env, f"{what}: {mend} (rlrun check-env {self.cfg.name} looks for such mistakes)")

    def _check(self, action: Any) -> None:
        """Raises EnvError for observations that are not finite and masks without a legal action."""

        def check(part: np.ndarray) -> None:
            if part.dtype.kind == "f" and not np.isfinite(part).all():
                column = int(np.argmin(np.isfinite(part.reshape(self.count, -1)).all(1)))
                raise self._bad(column, "an observation that is not finite")

        map_rows(self.rows["observation"], check)
        if MASK in self.rows:
            stuck = ~any_legal(self.spec.action, self.rows[MASK]) & self.there & ~np.repeat(self.ended, len(self.names))
            if stuck.any():
                raise self._bad(int(np.argmax(stuck)), "an action_mask that leaves no legal action")

    def _bad(self, column: int, what: str) -> EnvError:
        env, agent = divmod(column, len(self.names))
        said = f"returned {what} for the agent {self.names[agent]!r} in step {self.taken[env]}"
        return self._error(env, f"{said} (rlrun check-env {self.cfg.name} looks for such mistakes)")

    def frame(self) -> np.ndarray | None:
        """Renders the first environment: [H, W, 3] uint8, or None where it draws nothing. It needs render=True."""
        picture = self.games[0].render()
        return None if picture is None else np.asarray(picture)

    def close(self) -> None:
        for game in self.games:
            game.close()
