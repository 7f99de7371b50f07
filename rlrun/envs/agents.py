"""Environments with several agents: PettingZoo's parallel and turn-based (AEC) ones, Gymnasium environments whose
observations and actions are tuples over agents, and rlrun's own games.

Every agent is a column of its own (EnvSpec.agents). Where an agent is not there, because it has died or has not
appeared yet, its rows are dead and its observation is 0. An agent that waits for its turn has a live row with one legal
action, number 0. After an end there is a row that is dead for all, and in which the environment is reset.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal, NamedTuple, Protocol

import gymnasium
import numpy as np

from rlrun.core.conditions import EACH_AGENT, REWARDS, OnlyFor
from rlrun.core.env import Rows, Step, map_rows
from rlrun.core.errors import EnvError, UserError, closest, told
from rlrun.core.plugins import import_named, load_object
from rlrun.core.ranges import Count
from rlrun.core.seeding import Seeds
from rlrun.core.specs import Agents, Box, Discrete, EnvSpec, MultiBinary, Nested, Space, leaves, mask_size
from rlrun.envs.games import GAMES, Together
from rlrun.envs.gym import MASK, observation_spaces, to_space
from rlrun.envs.names import check_present, numbered, petting_zoo

GROUP = "agents"  # the name of the group of all agents, which share one policy


@dataclass(frozen=True, kw_only=True)
class AgentsConfig:
    family: Literal["agents"]
    name: str
    kwargs: dict[str, Any]
    return_of: tuple[str, ...]
    agent_id: Annotated[bool, OnlyFor(EACH_AGENT)]
    stack: Annotated[int, Count, OnlyFor(EACH_AGENT)]
    max_episode_steps: Annotated[int, Count] | None
    time_limit: Literal["truncation", "termination"]
    reward_clip: Annotated[Literal["none", "sign"] | float, OnlyFor(REWARDS)]


class AgentsStep(NamedTuple):
    """What a step of one environment led to, by the names of the agents that took part in it."""

    obs: dict[str, Any]  # also of agents that have just appeared
    reward: dict[str, float]
    terminated: dict[str, bool]
    truncated: dict[str, bool]
    info: dict[str, Any]


class Game(Protocol):
    """One environment with several agents."""

    agents: tuple[str, ...]  # all that may take part
    present: Sequence[str]  # those that are there now
    deciding: Sequence[str]  # those of them that choose the next action; the others wait for their turn

    def spaces(self, agent: str) -> tuple[gymnasium.Space, gymnasium.Space]:
        """The observation and action spaces of an agent."""
        ...

    def reset(self, seed: int | None) -> tuple[dict[str, Any], dict[str, Any]]:
        """Begins an episode and returns observations and infos by agent."""
        ...

    def step(self, actions: dict[str, Any]) -> AgentsStep: ...

    def render(self) -> Any: ...

    def close(self) -> None: ...


class ParallelGame:
    """An environment with PettingZoo's parallel interface: all agents that are there act at the same time."""

    turns = False

    def __init__(self, env: Any):
        self.env, self.agents = env, tuple(env.possible_agents)
        self.present: Sequence[str] = ()

    @property
    def deciding(self) -> Sequence[str]:
        return self.present

    def spaces(self, agent: str) -> tuple[gymnasium.Space, gymnasium.Space]:
        return self.env.observation_space(agent), self.env.action_space(agent)

    def reset(self, seed: int | None) -> tuple[dict[str, Any], dict[str, Any]]:
        obs, info = self.env.reset(seed=seed)
        self.present = tuple(self.env.agents)
        return obs, info

    def step(self, actions: dict[str, Any]) -> AgentsStep:
        outcome = AgentsStep(*self.env.step(actions))
        self.present = tuple(self.env.agents)
        return outcome

    def render(self) -> Any:
        return self.env.render()

    def close(self) -> None:
        self.env.close()


class TurnsGame(ParallelGame):
    """An environment with PettingZoo's AEC interface: one agent moves at a time, and the others wait.

    An env step is one move. Every agent is paid what the move brought it, also while it waits."""

    turns = True

    @property
    def deciding(self) -> Sequence[str]:
        return (self.env.agent_selection,) if self.env.agents else ()

    def _seen(self, agents: Sequence[str]) -> dict[str, Any]:
        return {agent: self.env.observe(agent) for agent in agents}

    def reset(self, seed: int | None) -> tuple[dict[str, Any], dict[str, Any]]:
        self.env.reset(seed=seed)
        self._bury()
        self.present = self._alive()
        return self._seen(self.present), dict(self.env.infos)

    def step(self, actions: dict[str, Any]) -> AgentsStep:
        env, there = self.env, self.present
        env.step(actions[env.agent_selection])
        reward, terminated, truncated, info = (
            {agent: source.get(agent, nothing) for agent in there}
            for source, nothing in (
                (env.rewards, 0.0),
                (env.terminations, True),
                (env.truncations, False),
                (env.infos, {}),
            )
        )
        obs = self._seen(there)
        self._bury()
        self.present = self._alive()
        obs |= self._seen([agent for agent in self.present if agent not in obs])
        return AgentsStep(obs, reward, terminated, truncated, info)

    def _alive(self) -> tuple[str, ...]:
        """The agents that go on. One that has ended stays in the environment's list until its turn comes."""
        env = self.env
        return tuple(a for a in env.agents if not (env.terminations[a] or env.truncations[a]))

    def _bury(self) -> None:
        """Takes out agents that have ended: the interface asks for a step with None for each."""
        env = self.env
        while env.agents and (env.terminations[env.agent_selection] or env.truncations[env.agent_selection]):
            env.step(None)


class TupleGame:
    """A Gymnasium environment whose spaces are tuples over agents, with one end for all (RLlib's with_agent_groups).

    Its rewards are a sequence over agents, or one number, which is divided among them."""

    turns = False

    def __init__(self, env: gymnasium.Env, limit: int | None):
        """limit: env steps at which a termination is the time limit, which the environment itself does not tell."""
        self.env, self.limit, self.taken = env, limit, 0
        obs, action = env.observation_space, env.action_space
        assert isinstance(obs, gymnasium.spaces.Tuple) and isinstance(action, gymnasium.spaces.Tuple)
        self.agents = tuple(f"agent_{number}" for number in range(len(obs.spaces)))
        self.both = dict(zip(self.agents, zip(obs.spaces, action.spaces, strict=True), strict=True))
        self.present: Sequence[str] = ()

    @property
    def deciding(self) -> Sequence[str]:
        return self.present

    def spaces(self, agent: str) -> tuple[gymnasium.Space, gymnasium.Space]:
        return self.both[agent]

    def reset(self, seed: int | None) -> tuple[dict[str, Any], dict[str, Any]]:
        obs, _ = self.env.reset(seed=seed)
        self.present, self.taken = self.agents, 0
        return dict(zip(self.agents, obs, strict=True)), {}

    def step(self, actions: dict[str, Any]) -> AgentsStep:
        obs, reward, terminated, truncated, info = self.env.step(tuple(actions[agent] for agent in self.agents))
        self.taken += 1
        if terminated and self.limit is not None and self.taken >= self.limit:
            terminated, truncated = False, True
        many = len(self.agents)
        given = np.asarray(reward, dtype=np.float64)
        paid = given.tolist() if given.ndim else [float(given) / many] * many
        if terminated or truncated:
            self.present = ()

        def each(values: Sequence[Any]) -> dict[str, Any]:
            return dict(zip(self.agents, values, strict=True))

        ended, cut = (each([bool(end)] * many) for end in (terminated, truncated))
        return AgentsStep(each(obs), each(paid), ended, cut, {self.agents[0]: info})

    def render(self) -> Any:
        return self.env.render()

    def close(self) -> None:
        self.env.close()


# -- from a name to a game ---------------------------------------------------------------------------------------------


def make_game(cfg: AgentsConfig, render: bool = False) -> ParallelGame | TupleGame:
    """Makes one environment. Raises UserError if it cannot be made or is none with several agents."""
    try:
        made = _made(cfg, {"render_mode": "rgb_array"} if render else {})
    except UserError:
        raise
    except Exception as error:  # the user's own constructor may raise anything
        raise UserError(f"env={cfg.name} cannot be made: {type(error).__name__}: {error}") from None
    if hasattr(made, "possible_agents"):
        return (
            TurnsGame(made) if hasattr(made, "agent_selection") or hasattr(made, "agent_iter") else ParallelGame(made)
        )
    if isinstance(made, gymnasium.Env):
        tuples = [isinstance(s, gymnasium.spaces.Tuple) for s in (made.observation_space, made.action_space)]
        if all(tuples):
            return TupleGame(made, _limit(made))
    raise UserError(
        f"env={cfg.name} makes {type(made).__name__}, which is no environment with several agents: neither PettingZoo's"
        " (parallel or AEC) nor a Gymnasium environment whose observations and actions are tuples over agents"
    )


def _made(cfg: AgentsConfig, more: dict[str, Any]) -> Any:
    options = dict(cfg.kwargs) | more
    if cfg.name in GAMES:
        return GAMES[cfg.name](**options)
    module, _, name = cfg.name.rpartition(":")
    if cfg.name in gymnasium.registry:  # with env.family=agents
        return gymnasium.make(cfg.name, disable_env_checker=True, **options)
    if not module:
        zoo = petting_zoo(cfg.name)
        try:
            made = import_named(zoo, f"env={cfg.name}")
        except ImportError as error:
            needs = f"{zoo.rpartition('.')[0].replace('.', '[', 1)}]" if zoo.startswith("pettingzoo.") else "mpe2"
            raise UserError(
                f"env={cfg.name} needs a package that is not installed ({error}): pip install '{needs}'"
            ) from None
        return (made.parallel_env if hasattr(made, "parallel_env") else made.env)(**options)
    check_present(module, cfg.name)
    import_named(module, f"env={cfg.name}")
    if name in gymnasium.registry:
        return gymnasium.make(name, disable_env_checker=True, **options)  # the checker refuses lists of rewards
    return load_object(cfg.name, "env", _bases())(**options)


def _bases() -> tuple[type, ...]:
    """The classes from which environments with several agents derive."""
    if importlib.util.find_spec("pettingzoo") is None:
        return (gymnasium.Env, Together)
    from pettingzoo import AECEnv, ParallelEnv

    return (gymnasium.Env, Together, ParallelEnv, AECEnv)


def _limit(env: gymnasium.Env) -> int | None:
    """The number of env steps after which an environment ends episodes by itself, if it tells."""
    for name in ("_max_episode_steps", "max_episode_steps", "max_steps"):
        value = getattr(env.unwrapped, name, None)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None


# -- spaces ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AgentSpaces:
    """The spaces of one agent, as the environment has them."""

    obs: dict[str, Space]  # "observation", and "action_mask" if observations hold one
    action: Space


def spaces_of(game: ParallelGame | TupleGame, name: str) -> dict[str, AgentSpaces]:
    """The spaces of all agents. Raises UserError for spaces that rlrun does not support."""
    made = {}
    for agent in game.agents:
        obs, action = game.spaces(agent)
        what = f"{name} ({agent})"
        taken = to_space(action, "action", what)
        made[agent] = AgentSpaces(_observation(obs, taken, what), taken)
    return made


def _observation(space: gymnasium.Space, action: Space, name: str) -> dict[str, Space]:
    found = observation_spaces(space, action, name)
    inside = found["observation"]
    # Classic games show {"observation", "action_mask"}: what is left is the observation itself.
    if MASK in found and isinstance(inside, Nested) and [key for key, _ in inside.spaces] == ["observation"]:
        found["observation"] = inside.spaces[0][1]
    return found


def common(spaces: Mapping[str, Space], what: str, name: str) -> tuple[Space, str | None]:
    """One space for all agents of a group, and a sentence if some of theirs are padded. Raises UserError if they are of
    unlike kinds."""
    first = next(iter(spaces.values()))
    if all(space == first for space in spaces.values()):
        return first, None
    kinds = list(spaces.values())
    widest: Space | None = None
    if all(isinstance(space, Discrete) for space in kinds):
        widest = Discrete(n=max(space.n for space in kinds))  # type: ignore[union-attr]
    elif all(isinstance(space, Box) and len(space.shape) == 1 and space.dtype == first.dtype for space in kinds) and (  # type: ignore[union-attr]
        what == "observation" or len({space.bounded for space in kinds}) == 1  # type: ignore[union-attr]
    ):
        widest = max(kinds, key=lambda space: space.size)  # type: ignore[union-attr]
        if what == "observation":
            low, high = (f(getattr(space, end)[0] for space in kinds) for f, end in ((min, "low"), (max, "high")))
            widest = replace(widest, low=(low,), high=(high,))  # type: ignore[arg-type]
    if widest is None:
        other = next(agent for agent, space in spaces.items() if space != first)
        raise UserError(
            f"the agents {next(iter(spaces))} and {other} of {name} have the {what} spaces {first} and"
            f" {spaces[other]}. rlrun pads choices of unlike number and vectors of unlike length; other agents of one"
            " environment need equal spaces, also where each has a policy of its own"
        )
    sizes = ", ".join(dict.fromkeys(str(space) for space in kinds))
    return widest, f"agents have the {what} spaces {sizes}; smaller ones are padded to {widest}"


@dataclass(frozen=True, kw_only=True)
class AgentsSpec(EnvSpec):
    """An EnvSpec that knows what each agent's own spaces are."""

    own: tuple[tuple[str, AgentSpaces], ...] = field(default=(), repr=False)
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
            obs["observation"] = _with_id(obs["observation"], len(own), cfg.name)
        try:
            _, infos = game.reset(seed=0)
        except Exception as error:  # the user's own
            raise UserError(f"env={cfg.name} fails in reset: {type(error).__name__}: {error}") from None
        told_in_info = any(isinstance(info, Mapping) and MASK in info for info in infos.values())
        masked = told_in_info or any(MASK in s.obs for s in own.values()) or game.turns
        if masked or (unlike and isinstance(action, Discrete)):
            width = mask_size(action)
            if width is None and (told_in_info or any(MASK in s.obs for s in own.values())):
                raise UserError(f"{cfg.name} masks its actions, but {action} cannot be masked")
            if width is not None:
                obs[MASK] = MultiBinary(shape=(width,))
        for _, part in leaves(action):
            if isinstance(part, Box) and part.bounded and any(a >= b for a, b in zip(part.low, part.high, strict=True)):
                raise UserError(f"{cfg.name} has an action whose lowest value is its highest: {part}")
        limit = cfg.max_episode_steps or (game.limit if isinstance(game, TupleGame) else _limit_of_zoo(game.env))
    finally:
        game.close()
    agents = Agents(groups=((GROUP, tuple(own)),), counted=_counted(cfg, tuple(own)))
    return AgentsSpec(
        name=cfg.name, obs=obs, action=action, agents=agents, max_episode_steps=limit, own=tuple(own.items()),
        notes=tuple(said), agent_id=cfg.agent_id,
    )  # fmt: skip


def _counted(cfg: AgentsConfig, names: tuple[str, ...]) -> tuple[str, ...]:
    """The agents that env.return_of names. Raises UserError for a pattern that no agent's name matches."""
    for pattern in cfg.return_of:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise UserError(
                f"env.return_of: {pattern!r} matches no agent of {cfg.name}.{closest(pattern, names)} There are"
                f" {', '.join(names)}"
            )
    return tuple(name for name in names if any(fnmatchcase(name, pattern) for pattern in cfg.return_of))


def _with_id(space: Space, agents: int, name: str) -> Space:
    """A space of vectors with the agent's number, one-hot, behind the numbers of `space`."""
    if not isinstance(space, Box) or len(space.shape) != 1 or space.dtype != "float32":
        raise UserError(
            f"env.agent_id=true is for observations that are vectors of float32 numbers; {name} has {space}. algo=multi"
            " gives every agent a policy of its own"
        )
    return replace(space, shape=(space.shape[0] + agents,), low=(min(0.0, *space.low),), high=(max(1.0, *space.high),))


def _limit_of_zoo(env: Any) -> int | None:
    value = getattr(env.unwrapped, "max_cycles", None)
    return value if isinstance(value, int) and value > 0 else None


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
    ):
        """count: number of environments."""
        assert spec.agents is not None
        self.cfg, self.spec, self.seeds, self.stream, self.worker = cfg, spec, seeds, stream, worker
        self.names = spec.agents.names
        self.index = {name: number for number, name in enumerate(self.names)}
        self.envs, self.count = count, count * len(self.names)
        self.name, self.numbers = numbered(cfg.name, stream, worker, count)
        self.games = [make_game(cfg, render) for _ in range(count)]
        own = dict(spec.own) if isinstance(spec, AgentsSpec) else spaces_of(self.games[0], cfg.name)
        self.own = [own[name] for name in self.names]
        self.alike = all(one.action == spec.action for one in self.own)
        self.rows = agent_rows(spec, self.count)
        self.ended = np.zeros(count, dtype=bool)
        self.there = np.zeros(self.count, dtype=bool)  # agents that are in the game
        self.taken = np.zeros(count, dtype=np.int64)  # env steps of the episode
        self.env_seeds: list[int | None] = [None] * count

    # -- observations --------------------------------------------------------------------------------------------------

    def _write(self, game: ParallelGame | TupleGame, env: int, obs: dict[str, Any], infos: Mapping[str, Any]) -> None:
        """Writes the observations of one environment into its rows. Agents without one have zeros."""
        first, waiting = env * len(self.names), set(game.present) - set(game.deciding)
        for agent, seen in obs.items():
            number = self._number(agent, env)
            info = infos.get(agent)
            mask = info.get(MASK) if isinstance(info, Mapping) else None
            write_agent(
                self.rows, first + number, self.own[number], seen, agent not in waiting, mask, agent in game.present
            )
            if self.cfg.agent_id:
                write_id(self.rows, first + number, number, len(self.names))

    def _number(self, agent: str, env: int) -> int:
        number = self.index.get(agent)
        if number is None:
            raise self._error(
                env, f"returned something for the agent {agent!r}, which is not one of its possible_agents"
            )
        return number

    def _blank(self, columns: Any) -> None:
        blank(self.rows, columns)

    def _error(self, env: int, what: str) -> EnvError:
        return EnvError(self.name, self.numbers[env : env + 1], self.env_seeds[env], what)

    # -- VectorEnv -----------------------------------------------------------------------------------------------------

    def reset(self, generation: int) -> Rows:
        self._blank(slice(None))
        for env in range(self.envs):
            self.env_seeds[env] = self.seeds.integer(self.stream, self.worker, env, generation)
            self._reset(env, self.env_seeds[env])
        self._check(None)
        return self.rows

    def _reset(self, env: int, seed: int | None) -> None:
        game, many = self.games[env], len(self.names)
        try:
            obs, infos = game.reset(seed)
        except Exception as error:  # the user's own
            raise self._error(env, f"failed in reset: {told(error, __file__)}") from error
        columns = slice(env * many, (env + 1) * many)
        self._blank(columns)
        self.there[columns] = False
        for agent in game.present:
            self.there[env * many + self._number(agent, env)] = True
        if not game.present:
            raise self._error(env, "began an episode without agents")
        self._write(game, env, obs, infos)
        self.ended[env], self.taken[env] = False, 0

    def step(self, action: Any) -> Step:
        many, count = len(self.names), self.count
        reward = np.zeros(count, dtype=np.float32)
        terminated, truncated, valid, is_first, decided = (np.zeros(count, dtype=bool) for _ in range(5))
        info: dict[str, np.ndarray] = {}
        taken = self.spec.action.to_env(action) if self.alike else None
        for env, game in enumerate(self.games):
            columns = slice(env * many, (env + 1) * many)
            if self.ended[env]:
                self._reset(env, None)
                is_first[columns] = True
                continue
            before = [self.index[agent] for agent in game.present]
            there = [env * many + number for number in before]
            deciding = [env * many + self.index[agent] for agent in game.deciding]
            valid[there], decided[deciding] = True, True
            actions = {self.names[number]: self._action(taken, action, env * many + number) for number in before}
            if game.turns:
                actions = {agent: actions[agent] for agent in game.deciding}
            try:
                outcome = game.step(actions)
            except Exception as error:  # the user's own
                what = f"failed in step {self.taken[env] + 1} on the actions {actions}: {told(error, __file__)}"
                raise self._error(env, " ".join(what.split())) from error
            self.taken[env] += 1
            self._record(env, game, outcome, there, reward, terminated, truncated, is_first, info)
        self._check(action)
        self._check_rewards(reward)
        return Step(self.rows, reward, terminated, truncated, valid, is_first, info, decided)

    def _action(self, taken: Any, action: Any, column: int) -> Any:
        """The action of one column as its environment takes it."""
        if taken is not None:
            return _at(taken, column)
        one = map_rows(action, lambda part: part[column : column + 1])
        return action_of(self.own[column % len(self.names)], one)

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
            ended = bool(outcome.terminated.get(agent, False)) or bool(outcome.truncated.get(agent, False))
            if agent not in outcome.obs and not (ended or agent in present):
                raise self._error(
                    env, f"lost the agent {agent!r} in step {self.taken[env]} without saying that it ended"
                )
            terminated[column] = bool(outcome.terminated.get(agent, False))
            truncated[column] = bool(outcome.truncated.get(agent, False)) and not terminated[column]
        for agent, paid in outcome.reward.items():
            column = first + self._number(agent, env)
            if self.there[column]:  # an agent that did not take part is paid nothing
                reward[column] = paid
        over = not present
        limit = self.cfg.max_episode_steps
        if limit is not None and self.taken[env] >= limit and not over:
            over = True
            for column in there:
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
        self.there[columns] = False
        for agent in present:
            self.there[first + self.index[agent]] = True
        self.ended[env] = over
        for agent, told_of in outcome.info.items():
            for key, value in told_of.items() if isinstance(told_of, Mapping) else ():
                if isinstance(value, bool | int | float | np.number | np.bool_):
                    kept = info.setdefault(key, np.full(self.count, np.nan))
                    kept[first + self._number(agent, env)] = float(value)

    def _check(self, action: Any) -> None:
        """Raises EnvError for observations that are not finite and masks without a legal action."""

        def check(part: np.ndarray) -> None:
            if part.dtype.kind == "f" and not np.isfinite(part).all():
                column = int(np.argmin(np.isfinite(part.reshape(self.count, -1)).all(1)))
                raise self._bad(column, "an observation that is not finite")

        map_rows(self.rows["observation"], check)
        if MASK in self.rows:
            stuck = ~self.rows[MASK].any(1) & self.there & ~np.repeat(self.ended, len(self.names))
            if stuck.any():
                raise self._bad(int(np.argmax(stuck)), "an action_mask that leaves no legal action")

    def _check_rewards(self, reward: np.ndarray) -> None:
        if not np.isfinite(reward).all():
            column = int(np.argmin(np.isfinite(reward)))
            raise self._bad(column, f"the reward {reward[column]}")

    def _bad(self, column: int, what: str) -> EnvError:
        many = len(self.names)
        return self._error(column // many, f"returned {what} for the agent {self.names[column % many]!r}")

    def frame(self) -> np.ndarray:
        """Renders the first environment: [H, W, 3] uint8. It needs render=True."""
        return np.asarray(self.games[0].render())

    def close(self) -> None:
        for game in self.games:
            game.close()


def agent_rows(spec: EnvSpec, count: int) -> Rows:
    """Rows of zeros for `count` columns, in which no agent is there."""
    rows = {name: _zeros(spec.obs[name], count) for name in ("observation", MASK) if name in spec.obs}
    blank(rows, slice(None))
    return rows


def blank(rows: Rows, columns: Any) -> None:
    """Makes the rows of agents that are not there 0, with one legal action."""
    for name, part in rows.items():
        map_rows(part, lambda leaf: leaf.__setitem__(columns, 0))
        if name == MASK:
            part[columns, 0] = 1


def write_agent(
    rows: Rows,
    column: int,
    own: AgentSpaces,
    seen: Any,
    decides: bool = True,
    mask: Any = None,
    there: bool = True,
) -> None:
    """Writes what an agent sees, in the environment's form, into its row.

    decides: whether it chooses the next action, or has come to its end; one that waits has one legal action. mask: the
    legal actions, where the environment tells them in its info. there: whether the agent goes on."""
    if isinstance(seen, Mapping) and (MASK in own.obs or MASK in seen):
        mask = seen.get(MASK) if mask is None else mask
        seen = {key: part for key, part in seen.items() if key != MASK}
        if list(seen) == ["observation"] and not isinstance(own.obs["observation"], Nested):
            seen = seen["observation"]
    _put(rows["observation"], column, own.obs["observation"], seen)
    if MASK not in rows:
        return
    legal = rows[MASK][column]
    legal[:] = 0
    if not decides:
        legal[0] = 1
        return
    legal[: mask_size(own.action)] = 1
    given = np.zeros(0) if mask is None else np.asarray(mask).reshape(-1)
    if given.any() or (given.size and there):
        legal[: given.size] = given != 0  # what ends an episode may show a mask without a legal action


def write_id(rows: Rows, column: int, number: int, agents: int) -> None:
    """Writes the agent's number behind its observation."""
    rows["observation"][column, number - agents] = 1.0


def action_of(own: AgentSpaces, action: Any) -> Any:
    """An agent's action [1, ...] in the form of rows, which may be padded -> the environment's form of one action."""
    space = own.action
    if isinstance(space, Box):
        action = action[:, : space.shape[0]] if len(space.shape) == 1 else action
    elif isinstance(space, Discrete):
        action = np.minimum(action, space.n - 1)  # only agents that wait or are gone choose padded actions
    return _at(space.to_env(action), 0)


def _zeros(space: Space, count: int) -> Any:
    if isinstance(space, Nested):
        return {name: _zeros(part, count) for name, part in space.spaces}
    kind = space.dtype if isinstance(space, Box) else np.int64
    return np.zeros((count, *space.field.shape), dtype=kind)


def _put(rows: Any, column: int, space: Space, value: Any) -> None:
    """Writes an agent's own observation into its row, whose other numbers stay 0."""
    if isinstance(space, Nested):
        for name, part in space.spaces:
            _put(rows[name], column, part, value[int(name)] if space.ordered else value[name])
        return
    given = np.asarray(value) if isinstance(space, Box) else space.from_env(np.asarray(value))
    if given.shape != space.field.shape:
        raise ValueError(f"an observation of shape {given.shape}, and its space is {space}")
    if given.shape == rows.shape[1:]:
        rows[column] = given
    else:
        rows[column, : given.shape[0]] = given


def _at(actions: Any, index: int) -> Any:
    """One row of the environment's form of actions, as Gymnasium's spaces sample it."""
    if isinstance(actions, Mapping):
        return {name: _at(part, index) for name, part in actions.items()}
    if isinstance(actions, tuple):
        return tuple(_at(part, index) for part in actions)
    one = actions[index]
    return int(one) if np.ndim(one) == 0 else one
