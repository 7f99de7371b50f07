"""rlrun.load(RUN_DIR) returns a trained policy with its preprocessing, ready to act."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch

from rlrun.config.run import Typed, type_config
from rlrun.config.saved import ReadConfig, read_config, saved_config
from rlrun.config.signature import guarded
from rlrun.config.words import at_home
from rlrun.core.batch import Batch
from rlrun.core.env import Rows, map_rows
from rlrun.core.errors import UserError
from rlrun.core.games import STATE as GAME_STATE
from rlrun.core.policy import Mode, Policy
from rlrun.core.schedule import Clock
from rlrun.core.seeding import Seeds
from rlrun.core.specs import Discrete, EnvSpec, MultiBinary, MultiDiscrete, Nested, described, executed, leaves
from rlrun.envs import registry
from rlrun.envs.agent_games import turns_inside
from rlrun.envs.agent_rows import action_of, agent_rows, write_agent, write_id
from rlrun.envs.agents import AgentsSpec
from rlrun.envs.atari import AtariConfig, ScreenStack
from rlrun.envs.gym_spaces import MASK, to_rows
from rlrun.envs.joint import JointSpec, together
from rlrun.envs.simulated import StatesPlayed
from rlrun.envs.single import make_single
from rlrun.envs.stacked import LastFrames, without_stack
from rlrun.loggers.jsonl import read
from rlrun.models.model import Model
from rlrun.runtime.fitting import make_spec
from rlrun.runtime.rundir import RunDir, checkpoints_of
from rlrun.samplers.evaluator import to_torch

NO_REWARD = "this policy is told the last reward: act(obs, reward=...)"


class Trained:
    """A policy of a run, on the CPU in float32.

    act() takes one observation or a batch of them; of an environment with several agents, it takes a dictionary of
    observations by agent and returns one of actions. Between calls it keeps recurrent state, and the last frames if it
    is given raw Atari screens or if env.stack stacks observations; reset() forgets them. make_env() makes the
    environment of the run, including its preprocessing. rows and summary are what the run has logged. own: whether the
    run was made here, or is trusted.
    """

    def __init__(self, run_dir: Path, config: Typed, spec: EnvSpec, policy: Policy, clock: Clock, own: bool = False):
        self.run_dir, self.config, self.spec, self.policy, self.clock = run_dir, config, spec, policy, clock
        self.own = own
        self.rng = torch.Generator().manual_seed(config.run.seed)
        self.screens = ScreenStack(config.env) if isinstance(config.env, AtariConfig) else None
        # What act() is given of a Gymnasium environment, whose observations are stacked here.
        self.one = spec if self.screens is not None else without_stack(spec)
        self.last = LastFrames(spec.stack) if self.one.stack < spec.stack else None
        self.agents = dict(spec.own) if isinstance(spec, AgentsSpec) else {}  # the spaces of every agent
        self.there: tuple[str, ...] = ()  # the agents that act() was given last
        self.played = None if spec.game is None else StatesPlayed(spec)
        self.reset()

    @property
    def summary(self) -> dict[str, Any]:
        """What summary.json of the run says: status, reason, env_steps, return_mean, versions and so on."""
        return RunDir(self.run_dir).known

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows that the run has logged, as dictionaries: `pandas.DataFrame(trained.rows)` is a table of them."""
        return read(self.run_dir / "progress.jsonl")

    def make_env(self, seed: int = 0) -> Any:
        """Makes the run's environment with the preprocessing of training, for full games. One with several agents is
        made as its package makes it.

        reset() and step(action) are those of Gymnasium, with the observations and actions of act(). Its seeds are never
        those of training.
        """
        return make_single(
            registry.Factory(cfg=self.config.env, spec=self.spec, seeds=Seeds(seed), stream="user", learning=False)
        )

    def reset(self, is_first: np.ndarray | None = None) -> None:
        """Begins new episodes in the whole batch, or where is_first [B] is true."""
        if is_first is None or self._state is None:
            self._state: Batch | None = None
            self._action: Any = None
            self._first: torch.Tensor | None = None
            self.there = ()
            if self.played is not None:
                self.played.reset()
            for frames in (self.screens, self.last):
                if frames is not None:
                    frames.reset()
        else:
            first = torch.from_numpy(np.asarray(is_first, dtype=bool).copy())
            held = self._first  # what an earlier call told, and act() has not seen
            self._first = first if held is None or held.shape != first.shape else first | held

    def act(self, obs: Any, mode: Mode = "greedy", reward: Any = None, env: Any = None) -> Any:
        """Returns the action, as the environment takes it, for an observation as the environment gives it.

        obs: one observation or a batch (every part [...] or [B, ...]). For an Atari game it can also be the raw screen
        of every decision, [H, W, 3] uint8, or its last two frames [2, H, W, 3], which are merged as in training; the
        stack of frames is then kept here. So are the last observations of other environments with env.stack: each call
        gets the newest one alone. reward: one or [B] rewards of the last action, for models with
        model.memory.prev_reward. env: the environment that showed the observation (or one for each of a batch), for
        policies that try moves before they make one (alphazero), and for agents that take turns and remember what they
        did. Raises ValueError when a shape or dtype does not fit, when a mask of legal actions is missing, or when the
        number of observations changes without reset().
        """
        if env is not None and self.played is None and not getattr(self.spec, "turns", False):
            raise ValueError(f"a policy of {self.config.algo.name} tries no moves, so that act() takes no env")
        if mode not in get_args(Mode):
            raise ValueError(f"the mode of act() is {' or '.join(map(repr, get_args(Mode)))}, not {mode!r}")
        if self.agents:
            return self._act_together(obs, mode, reward, env)
        if self.spec.agents is not None and isinstance(obs, Mapping) and set(obs) <= set(self.spec.agents.names):
            raise ValueError(
                "this run learnt from data, which do not say what each agent sees and does:"
                " rlrun.evaluate(RUN, env=...) plays it, and act() takes observations of one agent, or a batch of"
                " them, as the data have them"
            )
        if self.screens is not None:
            obs = self._screens(np.asarray(obs))
        count = fitting(self.one, obs)
        single, count = count is None, count or 1
        self._check_call(count, mode, reward)
        rows = to_rows(self.one, _each(obs, lambda part: np.asarray(part)[None]) if single else obs)
        if self.last is not None:
            rows["observation"] = self._stacked(self.last, rows["observation"], count)
        if self.played is not None:
            begun = np.full(count, self._state is None) if self._first is None else self._first.numpy()
            rows[GAME_STATE] = self.played.rows(env, rows, begun, reward)
        action = self.spec.action.to_env(self.policy_action(rows, mode, reward))
        if self.played is not None:
            self.played.forget(rows[GAME_STATE])
        return _each(action, lambda part: part[0]) if single else action

    def _check_call(self, count: int, mode: Mode, reward: Any) -> None:
        """Raises ValueError if what act() is given does not fit what earlier calls told, before anything is
        remembered of it, so that the call can be made again."""
        if self._first is not None and len(self._first) != count:
            raise ValueError(f"reset() was told of {len(self._first)} episodes, and act() is given {count}")
        self._remembered(count, mode)
        begun = self._state is None if self._first is None else bool(self._first.all())
        if reward is None and not begun and self.own_reward:
            raise ValueError(NO_REWARD)

    @property
    def own_reward(self) -> bool:
        """Whether the caller must tell the last reward. Self-play is told it in training alone, where it counts
        games."""
        return "prev_reward" in self.spec.obs and self.config.run.model.memory.previous[1]

    def _act_together(self, obs: Any, mode: Mode, reward: Any, env: Any) -> dict[str, Any]:
        """Returns the actions of the agents that are in `obs`, by name. An agent that was not in the last call has a
        new memory. reward: the last rewards by agent."""
        if not isinstance(obs, Mapping) or not obs or not set(obs) <= set(self.agents):
            raise ValueError(f"observations are a dictionary by agent, of {', '.join(self.agents)}")
        names, joint = list(self.agents), self.spec if isinstance(self.spec, JointSpec) else None
        self._check_call(len(names) if joint is None else 1, mode, reward)
        rows = agent_rows(self.one if joint is None else joint.agent, len(names))
        deciding = self._deciding(obs, env)
        for agent, seen in obs.items():
            if agent in deciding:
                self._check_mask(agent, seen, alone=len(deciding) == 1)
            write_agent(rows, names.index(agent), self.agents[agent], seen, agent in deciding)
            if isinstance(self.one, AgentsSpec) and self.one.agent_id:
                write_id(rows, names.index(agent), names.index(agent), len(names))
        # A search is asked for one of two players at a time, and both go on with the game.
        if self.there and self._first is None and self.played is None:
            came = np.array([agent in obs and agent not in self.there for agent in names])
            self.reset(came if joint is None else came[:1] & False)
        self.there = tuple(obs)
        if self.last is not None:
            rows["observation"] = self._stacked(self.last, rows["observation"], len(names))
        paid = None if reward is None else [float(reward.get(agent, 0.0)) for agent in names]
        if self.played is not None:
            rows[GAME_STATE] = self.played.rows_of_two(env, names, list(obs))
        if joint is None:
            action = self.policy_action(rows, mode, paid)
        else:
            alive = np.array([[agent in obs for agent in names]])
            action = map_rows(self.policy_action(together(joint, rows, alive), mode), lambda part: part[0])
        one = [map_rows(action, lambda part, i=i: part[i : i + 1]) for i in range(len(names))]  # type: ignore[misc]
        return {agent: action_of(self.agents[agent], one[names.index(agent)]) for agent in obs}

    def _deciding(self, obs: Mapping[str, Any], env: Any) -> Collection[str]:
        """The agents that choose the next action, as in training. Where they take turns, the others have one legal
        action, which a policy that is told its last action must be told as well."""
        if not getattr(self.spec, "turns", False):
            return obs
        if env is not None:
            return (turns_inside(env).agent_selection,)
        if "prev_action" in self.spec.obs and len(obs) > 1:
            raise ValueError("this policy is told the last actions of agents that take turns: act(obs, env=env)")
        return obs

    def _check_mask(self, agent: str, seen: Any, alone: bool) -> None:
        """Raises ValueError where an agent's legal actions are missing, since it would play illegal ones. alone:
        whether no other agent may be the one that decides. Infos of a game of turns tell it of that one only."""
        told = isinstance(self.spec, AgentsSpec) and agent in self.spec.told_in_info and (alone or not self.spec.turns)
        if (told or MASK in self.agents[agent].obs) and not (isinstance(seen, Mapping) and MASK in seen):
            where = "its info" if told else "what the environment shows"
            raise ValueError(
                f"the {MASK} of {agent} is missing, which is in {where}: give"
                f" {{{agent!r}: {{'observation': ..., {MASK!r}: ...}}}}"
            )

    def _stacked(self, last: LastFrames, obs: Any, count: int) -> Any:
        """Adds the newest observations of `count` episodes to the earlier ones, and returns the stacks."""
        if last.columns not in (None, count):
            raise ValueError(f"the policy remembers {last.columns} episodes and is given {count}: call reset() first")
        begun = np.full(count, last.columns is None) if self._first is None else self._first.numpy()
        return last.push(obs, begun)

    def _screens(self, given: np.ndarray) -> np.ndarray:
        """Turns an Atari observation given to act() into the stack of frames that the policy takes."""
        assert self.screens is not None
        if given.dtype != np.uint8:
            raise ValueError(f"an observation of {self.spec.name} is uint8, 0 to 255, not {given.dtype}")
        shape = self.spec.observation.field.shape  # type: ignore[union-attr]
        if self._first is not None and self._first.all():
            self.screens.reset()
        if given.ndim in (3, 4) and given.shape[-1] == 3 and given.shape[-len(shape) :] != shape:
            if given.ndim == 4 and len(given) != 2:
                raise ValueError(f"raw screens are [H, W, 3] or [2, H, W, 3], not {given.shape}")
            if self._first is not None and len(self._first) != 1:
                raise ValueError(f"a raw screen is of one game, and reset() was told of {len(self._first)}")
            return self.screens.push(given)
        return given

    def policy_action(self, rows: Rows, mode: Mode = "greedy", reward: Any = None) -> Any:
        """Returns actions for observations [B, ...], both in the form of rows, which rlrun's own environments use."""
        obs = to_torch(rows).clone()
        count = len(next(obs.leaves()))
        obs = self._told(obs, count, reward)
        state = self._remembered(count, mode)
        first = self._first
        if first is None:
            first = torch.full((count,), self._state is None)
        with torch.inference_mode():
            act = self.policy.act(obs, first, state, self.clock, mode, self.rng)
        self._state, self._first, self._action = act.state, None, act.action
        return act.action.numpy()

    def memory(self, count: int) -> Batch:
        """The recurrent state of `count` episodes before the next observation, without what exploring needs."""
        state: Batch = self.policy.initial_state(count) if self._state is None else self._state
        return Batch({name: state[name] for name in self.policy.core_spec()})

    def _remembered(self, count: int, mode: Mode) -> Batch:
        """Returns the state of `count` episodes. Greedy acting without memory may change their number at every call."""
        if self._state is not None and len(self._state):
            held = len(next(self._state.leaves()))
            if held == count:
                return self._state
            if mode == "explore" or self.policy.core_spec():
                raise ValueError(f"the policy remembers {held} episodes and is given {count}: call reset() first")
        return self.policy.initial_state(count)

    def _told(self, obs: Batch, count: int, reward: Any) -> Batch:
        """Adds the previous action and reward where the model takes them; they are 0 where an episode begins."""
        fresh = torch.zeros(count, dtype=torch.bool) if self._state is not None else torch.ones(count, dtype=torch.bool)
        fresh = fresh if self._first is None else self._first
        if "prev_action" in self.spec.obs and "prev_action" not in obs:
            nothing = to_torch(
                {"action": map_rows(self.spec.action.sample(np.random.default_rng(0), count), np.zeros_like)}
            )
            done = None if self._state is None else executed(self.spec.action, self._action)
            action: Any = nothing if done is None else Batch(action=done)
            action = action.map(lambda x: x.masked_fill(fresh.view(-1, *[1] * (x.ndim - 1)), 0))
            obs = obs.replace(prev_action=action["action"])
        if "prev_reward" in self.spec.obs and "prev_reward" not in obs:
            if reward is None and not fresh.all() and self.own_reward:
                raise ValueError(NO_REWARD)
            last = (
                torch.zeros(count)
                if reward is None
                else torch.as_tensor(np.asarray(reward, dtype=np.float32)).reshape(count)
            )
            obs = obs.replace(prev_reward=last.masked_fill(fresh, 0.0).unsqueeze(1))
        return obs


def fitting(spec: EnvSpec, obs: Any) -> int | None:
    """How many observations these are; None: one, without an axis of observations. Raises ValueError where a part is
    missing, or has another shape, another number of observations or whole numbers that it cannot hold."""
    counts: set[int | None] = set()
    if isinstance(spec.observation, Nested) and not isinstance(obs, Mapping | tuple | list):
        raise ValueError(f"an observation of {spec.name} is {spec.observation}, and not {type(obs).__name__}")
    for path, space in leaves(spec.observation):
        shape, whole = space.field.shape, not space.field.dtype.is_floating_point
        what = f"an observation of {spec.name}"
        what = f"the part {'.'.join(path)} of {what}" if path else what
        part = obs
        try:
            for name in path:
                part = part[int(name)] if isinstance(part, tuple) else part[name]
        except (KeyError, IndexError, TypeError):
            raise ValueError(f"{what} is missing") from None
        given = np.asarray(part)
        if given.dtype.kind not in "biuf":
            raise ValueError(f"{what} holds numbers, not {given.dtype}")
        if given.shape[given.ndim - len(shape) :] != shape or given.ndim > len(shape) + 1:
            raise ValueError(f"{what} has the shape {shape}, not {given.shape}")
        if whole and given.dtype.kind == "f" and not np.array_equal(given, np.rint(given)):
            raise ValueError(f"{what} holds whole numbers, and some of those that are given are not")
        low, high = whole_bounds(space) if whole else (-np.inf, np.inf)
        if ((given < low) | (given > high)).any():
            raise ValueError(f"{what} cannot hold {given.min()} to {given.max()}: it is {described(space)}")
        counts.add(None if given.shape == shape else len(given))
    if MASK in spec.obs:
        if not isinstance(obs, Mapping) or MASK not in obs:
            raise ValueError(f"the part {MASK} of an observation of {spec.name} is missing")
        legal, wanted = np.asarray(obs[MASK]).size, int(np.prod(spec.obs[MASK].field.shape))
        if legal != wanted * max(count or 1 for count in counts):
            raise ValueError(f"the part {MASK} of an observation of {spec.name} has {wanted} numbers, not {legal}")
    if len(counts) > 1:
        raise ValueError(f"the parts of the observations of {spec.name} have different numbers of observations")
    return counts.pop()


def whole_bounds(space: Any) -> tuple[Any, Any]:
    """The lowest and the highest whole number that a space's rows can hold, as the environment counts them; arrays
    where its numbers differ in that."""
    if isinstance(space, Discrete):
        return space.start, space.start + space.n - 1
    if isinstance(space, MultiDiscrete):
        low = np.reshape(space.starts, space.shape)
        return low, low + np.reshape(space.sizes, space.shape) - 1
    if isinstance(space, MultiBinary) or space.dtype == "bool":
        return 0, 1
    return np.iinfo(space.dtype).min, np.iinfo(space.dtype).max


def _each(value: Any, function: Callable[[Any], Any]) -> Any:
    """Applies `function` to every part of nested dictionaries and tuples, or to the value itself."""
    if isinstance(value, Mapping):
        return {name: _each(part, function) for name, part in value.items()}
    return tuple(_each(part, function) for part in value) if isinstance(value, tuple) else function(value)


def load(run_dir: str | Path, checkpoint: str | int = "last", trust: bool = False) -> Trained:
    """Loads the policy of a run directory.

    checkpoint: "last", "best", or a number of env steps. trust: whether a run from elsewhere may name modules that no
    installed package contains; they are imported. Raises UserError when the directory holds no run, or when the
    checkpoint is missing, damaged or does not fit the config.
    """
    try:
        path = Path(at_home(os.fspath(run_dir)))
    except TypeError:
        raise UserError(f"a run is given by its directory, not by {run_dir!r}") from None
    return loaded(path, checkpoint, trust)


def loaded(path: Path, checkpoint: str | int = "last", trust: bool = False, said: Collection[str] = ()) -> Trained:
    """Loads a policy as load() does. said: options, by path, that the user's own words set in this run."""
    found = read_config(path, trust)
    with guarded(found.own):
        return _loaded(path, checkpoint, found, {*said, "resources.ray.address"})  # no cluster is joined


def _loaded(path: Path, checkpoint: str | int, found: ReadConfig, unused: Collection[str]) -> Trained:
    config = type_config(saved_config(path, unused=unused, found=found))
    tensors, run = checkpoints_of(path).load(checkpoint, parts=("policy",))
    spec = make_spec(config, config.algorithm.needs(config.algo))
    policy = config.algorithm.make_policy(spec, Model(config.run.model), config.algo)
    try:
        policy.load_state_dict(tensors["policy"])
    except RuntimeError as error:
        raise UserError(f"the checkpoint in {path} does not fit its config.yaml: {error}") from None
    policy.requires_grad_(False)
    return Trained(path, config, spec, policy, Clock(run["env_steps"], run["updates"]), found.own)
