"""Environments with several agents by their names: PettingZoo's parallel and turn-based (AEC) ones, Gymnasium
environments whose observations and actions are tuples over agents, and rlrun's own games. envs/agents.py makes columns
of their agents."""

from __future__ import annotations

import functools
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, Protocol

import gymnasium
import numpy as np

from rlrun.core.conditions import EACH_AGENT, REWARDS, OnlyFor
from rlrun.core.errors import FAILURES, UserError, told
from rlrun.core.plugins import import_named, load_object
from rlrun.core.ranges import Count
from rlrun.envs.arguments import mending
from rlrun.envs.games import GAMES, Together
from rlrun.envs.gym_spaces import MASK, UNTOLD, masks_of_agents
from rlrun.envs.limits import TimeLimits
from rlrun.envs.names import check_present, over_agents, petting_zoo

# What an AEC environment does wrong whose step(None) does nothing, and how to mend it.
LEFT_IN = "agents that have ended are not taken out by step(None)"
TAKE_OUT = (
    "begin step() with: if self.terminations[agent] or self.truncations[agent]: self._was_dead_step(action); return"
)


@dataclass(frozen=True, kw_only=True)
class AgentsConfig(TimeLimits):
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
    out: frozenset[str] = frozenset()  # agents that have terminated and wait until the game takes them out


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
        obs, reward, terminated, truncated, info = self.env.step(actions)
        self.present = tuple(self.env.agents)
        return AgentsStep(obs, reward, terminated, truncated, info)

    def render(self) -> Any:
        try:
            return self.env.render()
        except NotImplementedError:  # as PettingZoo's classes raise where a subclass does not draw
            said = f"{type(self.env).__name__} has no render(), which returns a picture, [height, width, 3] of uint8"
            raise UserError(f"this environment cannot draw itself: {said}") from None

    def close(self) -> None:
        self.env.close()


class TurnsGame(ParallelGame):
    """An environment with PettingZoo's AEC interface: one agent moves at a time, and the others wait.

    An env step is one move. Every agent is paid what the move brought it, also while it waits. One that is out waits
    until the game takes it out, because the interface may pay it until then, and is told of its end in that step."""

    turns = True

    @property
    def deciding(self) -> Sequence[str]:
        return (self.env.agent_selection,) if self.env.agents else ()

    def _seen(self, agents: Sequence[str]) -> dict[str, Any]:
        return {agent: self.env.observe(agent) for agent in agents}

    def reset(self, seed: int | None) -> tuple[dict[str, Any], dict[str, Any]]:
        self.env.reset(seed=seed)
        for _ in self._bury():
            pass
        self.present = tuple(self.env.agents)
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
        obs, buried = self._seen(there), False
        for paid in self._bury():  # which may pay and end others too, such as the last one who is left
            buried = True
            reward |= {agent: reward[agent] + more for agent, more in paid.items() if agent in reward}
            going = [agent for agent in there if agent in env.agents and not (terminated[agent] or truncated[agent])]
            ended = [agent for agent in going if self._has_ended(agent)]
            obs |= self._seen(ended)
            for ends, ended_by in ((terminated, env.terminations), (truncated, env.truncations)):
                ends |= {agent: ended_by.get(agent, False) for agent in ended}
        self.present = tuple(env.agents)
        lost = [a for a in there if a not in self.present and not (terminated[a] or truncated[a])]
        for ends in (terminated, truncated):
            ends.update(dict.fromkeys(set(there).intersection(self.present), False))
        # Only now is it known who moves next, which masks of legal actions may depend on.
        again = [agent for agent in self.present if buried or agent not in there]
        obs |= self._seen(again)
        info |= {agent: env.infos.get(agent, {}) for agent in again}
        # Who is gone without an end is shown nothing, so that AgentsEnv says that it was lost.
        obs = {agent: seen for agent, seen in obs.items() if agent not in lost}
        out = frozenset(agent for agent in self.present if env.terminations.get(agent))
        return AgentsStep(obs, reward, terminated, truncated, info, out)

    def _has_ended(self, agent: str) -> bool:
        return bool(self.env.terminations.get(agent) or self.env.truncations.get(agent))

    def _bury(self) -> Iterator[dict[str, float]]:
        """Takes out agents that have ended: the interface asks for a step with None for each. Yields what each of these
        steps paid the others. Raises TypeError if the game does not take them out."""
        env = self.env
        for _ in range(2 * len(self.agents) + 2):
            if not env.agents or not self._has_ended(env.agent_selection):
                return
            others, before = [agent for agent in env.agents if agent != env.agent_selection], self._paid()
            env.step(None)
            after = self._paid()
            yield {agent: after[agent] - before[agent] for agent in others if agent in before and agent in after}
        raise TypeError(f"{LEFT_IN}: {TAKE_OUT}")

    def _paid(self) -> dict[str, float]:
        """What agents have been paid since their last moves. `rewards` would not do, because not every game clears them
        in a step that takes an agent out."""
        return dict(getattr(self.env, "_cumulative_rewards", {}))


class TupleGame:
    """A Gymnasium environment whose spaces are tuples over agents, with one end for all (RLlib's with_agent_groups).

    Its rewards are a sequence over agents, or one number, which is divided among them. The action_mask in its info is a
    sequence over agents; the rest of an info belongs to the first agent."""

    turns = False

    def __init__(self, env: gymnasium.Env, limit: int | None):
        """limit: env steps at which a termination is the time limit, unless the environment tells truncations."""
        self.env, self.limit, self.taken = env, limit, 0
        self.tells = False  # whether it has ever told a truncation
        obs, action = env.observation_space, env.action_space
        assert isinstance(obs, gymnasium.spaces.Tuple) and isinstance(action, gymnasium.spaces.Tuple)
        self.agents = tuple(f"agent_{number}" for number in range(len(obs.spaces)))
        self.both = dict(zip(self.agents, zip(obs.spaces, action.spaces, strict=True), strict=True))
        self.present: Sequence[str] = ()
        self.masked = False  # whether it has told what is legal

    @property
    def deciding(self) -> Sequence[str]:
        return self.present

    def spaces(self, agent: str) -> tuple[gymnasium.Space, gymnasium.Space]:
        return self.both[agent]

    def reset(self, seed: int | None) -> tuple[dict[str, Any], dict[str, Any]]:
        obs, info = self.env.reset(seed=seed)
        self.present, self.taken = self.agents, 0
        masks = masks_of_agents(info, len(self.agents))
        self._check_told(masks)
        return dict(zip(self.agents, obs, strict=True)), self._infos(info, masks)

    def _check_told(self, masks: Sequence[Any]) -> None:
        """Raises TypeError for an info without masks after one with them: every action would count as legal."""
        if self.masked and not masks:
            raise TypeError(UNTOLD)
        self.masked = bool(masks)

    def _infos(self, info: Any, masks: Sequence[Any]) -> dict[str, Any]:
        """An info by agent."""
        infos = {agent: {MASK: mask} for agent, mask in zip(self.agents, masks, strict=False)}
        return infos | {self.agents[0]: {**info, MASK: masks[0]} if masks else info}

    def step(self, actions: dict[str, Any]) -> AgentsStep:
        obs, reward, terminated, truncated, info = self.env.step(tuple(actions[agent] for agent in self.agents))
        for name, end in (("terminated", terminated), ("truncated", truncated)):
            one = np.asarray(end)
            if one.ndim or one.dtype.kind not in "biu":  # a list or a dictionary counts as true, whatever it holds
                raise TypeError(
                    f"it returned {' '.join(repr(end).split())} as {name}, and an environment over tuples has one end"
                    " for all agents: return a bool, such as all(...) of theirs"
                )
        self.taken += 1
        self.tells = self.tells or bool(truncated)
        if terminated and not self.tells and self.limit is not None and self.taken >= self.limit:
            terminated, truncated = False, True
        many = len(self.agents)
        masks = masks_of_agents(info, many)
        if not (terminated or truncated):
            self._check_told(masks)
        given = np.asarray(reward, dtype=np.float64)
        paid = given.tolist() if given.ndim else [float(given) / many] * many
        if terminated or truncated:
            self.present = ()

        def each(values: Sequence[Any]) -> dict[str, Any]:
            return dict(zip(self.agents, values, strict=True))

        ended, cut = (each([bool(end)] * many) for end in (terminated, truncated))
        return AgentsStep(each(obs), each(paid), ended, cut, self._infos(info, masks))

    def render(self) -> Any:
        return self.env.render()

    def close(self) -> None:
        self.env.close()


# -- from a name to a game ---------------------------------------------------------------------------------------------


def make_game(cfg: AgentsConfig, render: bool = False) -> ParallelGame | TupleGame:
    """Makes one environment. Raises UserError if it cannot be made or is none with several agents."""
    try:
        made = turns_inside(_made(cfg, render))
    except UserError:
        raise
    except FAILURES as error:  # the user's own constructor may raise anything
        mend = mending(cfg.name, error, cfg.kwargs)
        raise UserError(f"env={cfg.name} cannot be made: {told(error, __file__)}{mend and f'; {mend}'}") from None
    if hasattr(made, "possible_agents"):
        return (
            TurnsGame(made) if hasattr(made, "agent_selection") or hasattr(made, "agent_iter") else ParallelGame(made)
        )
    if isinstance(made, gymnasium.Env) and over_agents(made):
        return TupleGame(made, own_limit(made))
    one = isinstance(made, gymnasium.Env)
    if not one:
        raise UserError(
            f"env={cfg.name} makes {type(made).__name__}, which is no environment: it derives neither from"
            " gymnasium.Env nor, for several agents, from pettingzoo.ParallelEnv or AECEnv; `rlrun check-env"
            f" {cfg.name}` says how to mend it"
        )
    raise UserError(
        f"env={cfg.name} makes {type(made).__name__}, which is no environment with several agents: neither PettingZoo's"
        " (parallel or AEC) nor a Gymnasium environment whose observations and actions are tuples over the same agents"
        ". For one agent, name its class, env=my_package:MyEnv, or register an id for it"
    )


def _made(cfg: AgentsConfig, render: bool) -> Any:
    def called(make: Callable[..., Any], maker: Callable[..., Any] | None = None) -> Any:
        """maker: what make() hands its options to, if it is not the maker itself."""
        mode = {"render_mode": "rgb_array"} if render and takes_render_mode(maker or make) else {}
        return make(**dict(cfg.kwargs) | mode)

    def registered(name: str) -> Any:
        entry = gymnasium.registry[name].entry_point
        # The checker refuses lists of rewards.
        make = functools.partial(gymnasium.make, name, disable_env_checker=True)
        return called(make, gymnasium.envs.registration.load_env_creator(entry) if isinstance(entry, str) else entry)

    if cfg.name in GAMES:
        return called(GAMES[cfg.name])
    module, _, name = cfg.name.rpartition(":")
    if cfg.name in gymnasium.registry:  # with env.family=agents
        return registered(cfg.name)
    if not module:
        zoo = petting_zoo(cfg.name)
        try:
            made = import_named(zoo, f"env={cfg.name}")
        except ImportError as error:
            needs = f"{zoo.rpartition('.')[0].replace('.', '[', 1)}]" if zoo.startswith("pettingzoo.") else "mpe2"
            raise UserError(
                f"env={cfg.name} needs a package that is not installed ({error}): pip install '{needs}'"
            ) from None
        return called(made.parallel_env if hasattr(made, "parallel_env") else made.env)
    check_present(module, cfg.name)
    import_named(module, f"env={cfg.name}")
    if name in gymnasium.registry:
        return registered(name)
    return called(load_object(cfg.name, "env", bases()))


def turns_inside(env: Any) -> Any:
    """The turn-based (AEC) environment inside of PettingZoo's turn_based_aec_to_parallel(), or any other as it is.

    That wrapper keeps an agent that is out in `agents` until its turn, which only the AEC interface allows."""
    conversions = sys.modules.get("pettingzoo.utils.conversions")  # whoever has wrapped one has imported it
    wrapper = getattr(conversions, "turn_based_aec_to_parallel_wrapper", None)
    return env.aec_env if type(env) is wrapper else env


def takes_render_mode(make: Callable[..., Any]) -> bool:
    """Whether what makes an environment takes render_mode. Others draw without being told, or draw nothing."""
    try:
        taken = inspect.signature(make).parameters.values()
    except ValueError:  # written in another language, without a signature
        return False
    return any(one.name == "render_mode" or one.kind is one.VAR_KEYWORD for one in taken)


def bases() -> tuple[type, ...]:
    """The classes from which environments with several agents derive."""
    if importlib.util.find_spec("pettingzoo") is None:
        return (gymnasium.Env, Together)
    from pettingzoo import AECEnv, ParallelEnv

    return (gymnasium.Env, Together, ParallelEnv, AECEnv)


def own_limit(env: gymnasium.Env) -> int | None:
    """The number of env steps after which an environment ends episodes by itself, if it tells."""
    for name in ("_max_episode_steps", "max_episode_steps", "max_steps"):
        value = getattr(env.unwrapped, name, None)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None
