"""Checks of environments with Gymnasium's interface: one agent, or tuples over agents.

They call the environment as it is, without the wrappers with which Gymnasium looks for mistakes itself, since those
raise at the first one and do not say how to mend it."""

from __future__ import annotations

import copy
import dataclasses
import random
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

import gymnasium
import numpy as np

from rlrun.envs import gym
from rlrun.envs.arguments import mending
from rlrun.envs.check_pace import CheckPace
from rlrun.envs.check_report import OURS, Findings, Stop, copied, raised, same, shown
from rlrun.envs.check_values import (
    Infos,
    check_end,
    check_mask,
    check_reward,
    check_space,
    check_supported,
    draw,
    mask_of,
)
from rlrun.envs.gym import GymConfig
from rlrun.envs.gym_spaces import MASK, UNTOLD, masks_of_agents
from rlrun.envs.misfits import misfit
from rlrun.envs.named import global_generators

OURS += [__file__, gym.__file__]
RESET = "def reset(self, *, seed=None, options=None): super().reset(seed=seed); ...; return observation, info"
STEP = "return observation, reward, terminated, truncated, info; truncated is for time limits"
COMPARED = 40  # steps of the episodes that are compared
LEAST_LIMIT = 5  # shorter episodes are too often of one length for other reasons
# Attributes in which environments often keep their time limit.
LIMITS = ("_max_episode_steps", "max_episode_steps", "max_steps", "episode_length", "horizon", "time_limit")


class Unchecked(GymConfig):
    """An environment's options, made without Gymnasium's wrappers that check how it is used."""

    @classmethod
    def of(cls, cfg: GymConfig) -> Unchecked:
        return cls(**{field.name: getattr(cfg, field.name) for field in dataclasses.fields(cfg)})

    def registered(self) -> gymnasium.envs.registration.EnvSpec:
        spec = copy.copy(super().registered())
        spec.disable_env_checker, spec.order_enforce = True, False
        return spec


class ComparedEpisode(NamedTuple):
    """What a few steps of an episode led to."""

    first: Any  # the observation of reset()
    steps: list[tuple]  # (observation, reward, terminated, truncated)

    def equals(self, other: ComparedEpisode) -> str | None:
        """Returns where the two differ; None if they are equal to the bit."""
        if not same(self.first, other.first):
            return "the observation of reset()"
        for number, (mine, theirs) in enumerate(zip(self.steps, other.steps, strict=False), 1):
            for name, one, two in zip(("observation", "reward", "terminated", "truncated"), mine, theirs, strict=True):
                if not same(one, two):
                    return f"the {name} of step {number}"
        return None if len(self.steps) == len(other.steps) else "the number of steps"


class GymChecks:
    """All checks of one environment. `agents`: whether it is one over tuples, whose rewards may be a sequence."""

    def __init__(
        self, report: Findings, make: Callable[[], gymnasium.Env], name: str, pace: CheckPace, agents: bool = False
    ):
        self.report, self.make, self.name, self.pace, self.agents = report, make, name, pace, agents
        self.made: list[gymnasium.Env] = []
        self.infos = Infos(report)
        self.deterministic = True
        self.legal = 0  # masks that were seen

    def run(self) -> None:
        """Makes all checks. Raises Stop where what was found makes the rest impossible."""
        try:
            env = self.new("makes the environment")
            self.spaces(env)
            self.interface(env)
            env = self.new("makes it again")
            self.play(env)
            self.seeding(env)
            self.shared()
            self.pace.measure(self.report, self.loop(env))
        finally:
            for one in self.made:
                try:
                    one.close()
                except Exception as error:  # the user's own
                    self.report.warning("close", f"close() fails: {raised(error)}", "let close() work at any time")

    def new(self, why: str) -> gymnasium.Env:
        with self.report.starting(why):
            try:
                made = self.make()
            except Exception as error:  # the user's own constructor may raise anything
                what = str(error) if type(error).__name__ == "UserError" else f"it cannot be made: {raised(error)}"
                mend = mending(self.name, error)
                mend = mend or "make it in Python alone first; env.kwargs={name: value} gives arguments"
                lacks = getattr(error, "name", None) if isinstance(error, AttributeError) else None
                if lacks in ("observation_space", "action_space"):
                    what = f"it has no {lacks}"
                    mend = "set self.observation_space and self.action_space in __init__()"
                self.report.error("make", what, mend)
                raise Stop from None
        self.made.append(made)
        return made

    # -- spaces and interface ------------------------------------------------------------------------------------------

    def spaces(self, env: gymnasium.Env) -> None:
        fit = True
        for name in ("observation_space", "action_space"):
            try:
                space = getattr(env, name)
            except Exception as error:
                if isinstance(error, AttributeError):
                    what = f"it has no {name}"
                else:
                    what = f"{name} cannot be read: {raised(error)}"
                self.report.error(name.replace("_", "-"), what, f"set self.{name} in __init__")
                fit = False
                continue
            fit &= check_space(self.report, space, name, name == "action_space", f"self.{name}")
            if fit and getattr(env, name) != space:
                self.report.error(f"{name}-changes", f"{name} is another one each time it is read", "make it once")
        if not fit:
            raise Stop
        if not self.agents:
            check_supported(self.report, env.observation_space, env.action_space, self.name)

    def interface(self, whole: gymnasium.Env) -> None:
        """Calls reset and step of the innermost environment, whose answers no wrapper has taken apart yet."""
        env, report = whole.unwrapped, self.report
        report.tell(("doing", "is reset and stepped for the first time"))
        old = "this is the interface of Gym before 0.26"
        with report.resetting():
            try:
                first = env.reset(seed=0)
            except TypeError as error:
                if "seed" not in str(error):
                    self._raises("reset(seed=0)", error)
                report.error("reset-seed", "reset() takes no seed", RESET, "reset(seed=0)")
                first = self._call("reset()", env.reset)
            except Exception as error:
                self._raises("reset(seed=0)", error)
        if not (isinstance(first, tuple) and len(first) == 2 and isinstance(first[1], dict)):
            told = f"{len(first)} values" if isinstance(first, tuple) else f"a {type(first).__name__} alone"
            if isinstance(first, tuple) and len(first) == 2:
                told = f"a {type(first[1]).__name__} as info, which must be a dict"
            what = f"reset() returns {told}" + ("" if "info" in told else f"; {old}")
            report.error(
                "reset-returns", what, "return observation, info from reset(); info may be {}", "reset(seed=0)"
            )
        else:
            self._options(env)
        obs, info = first if isinstance(first, tuple) and len(first) == 2 else (first, {})
        action = draw(env.action_space, self._mask(env, obs, info), self._rng(0))
        with report.stepping():
            outcome = self._call(f"step({shown(action)}) after reset(seed=0)", lambda: env.step(action))
        where = f"step({shown(action)}) after reset(seed=0)"
        if not isinstance(outcome, tuple):
            report.error("step-returns", f"step() returns a {type(outcome).__name__} and no tuple", STEP, where)
        elif len(outcome) == 4:
            what = f"step() returns 4 values with one `done`; {old}"
            report.error("step-returns", what, STEP, where)
        elif len(outcome) != 5:
            report.error("step-returns", f"step() returns {len(outcome)} values and not 5", STEP, where)
        if {"reset-returns", "step-returns", "reset-seed"} & report.seen.keys():
            raise Stop

    def _options(self, env: gymnasium.Env) -> None:
        """Whether reset() can be given options, as Gymnasium's wrappers do."""
        with self.report.resetting():
            try:
                env.reset(seed=0, options=None)
            except TypeError as error:
                if "options" in str(error):
                    self.report.error("reset-seed", "reset() takes no options", RESET, "reset(seed=0, options=None)")
            except Exception as error:
                self._raises("a second reset(seed=0)", error)

    def _call(self, where: str, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except Exception as error:
            return self._raises(where, error)

    def _raises(self, where: str, error: Exception) -> Any:
        self.report.error("raises", f"it raises {raised(error)}", "mend the line that is named", where)
        raise Stop from error

    def _rng(self, seed: int) -> np.random.Generator:
        return np.random.default_rng([seed, 4711])

    # -- episodes ------------------------------------------------------------------------------------------------------

    def _reset(self, env: gymnasium.Env, seed: int | None, where: str) -> tuple[Any, dict]:
        with self.report.resetting():
            made = self._call(where, lambda: env.reset(seed=seed))
        if not (isinstance(made, tuple) and len(made) == 2):
            self.report.error(
                "reset-returns", f"reset() returns {shown(made)} and not (observation, info)", RESET, where
            )
            raise Stop
        return made

    def _step(self, env: gymnasium.Env, action: Any, where: str) -> tuple:
        with self.report.stepping():
            made = self._call(where, lambda: env.step(action))
        if not (isinstance(made, tuple) and len(made) == 5):
            self.report.error("step-returns", f"step() returns {shown(made)} and not five values", STEP, where)
            raise Stop
        return made

    def _seen(self, space: gymnasium.Space, obs: Any, where: str) -> None:
        found = misfit(space, obs, "the observation")
        if found is not None:
            tell = self.report.error if found.serious else self.report.warning
            tell("observation" if found.serious else "observation-type", found.what, found.mend, where)

    def play(self, env: gymnasium.Env) -> None:
        """Plays episodes with random actions for a while and looks at everything that the environment returns."""
        report, rng = self.report, self._rng(1)
        report.tell(("doing", "plays episodes with random actions"))
        spaces = {name: getattr(env, name) for name in ("observation_space", "action_space")}
        before = copied(repr(spaces))
        lengths: list[int] = []
        ended = {"terminated": 0, "truncated": 0}
        began = time.monotonic()
        episode = taken = 0
        while self.pace.plays(began, taken):
            episode += 1
            seed = episode if episode < 3 else None
            where = f"reset(seed={seed})"
            obs, info = self._reset(env, seed, where)
            self._look(env, obs, info, False, where)
            if episode <= 3 and repr({name: getattr(env, name) for name in spaces}) != before:
                what = "its spaces are others after reset() than before it"
                report.error(
                    "space-changes", what, "make both spaces in __init__, and let no other method change them", where
                )
                raise Stop
            length, over = 0, False
            while not over and self.pace.plays(began, taken):
                length += 1
                taken += 1
                action = draw(env.action_space, self._mask(env, obs, info), rng)
                where = f"step {length} after reset(seed={seed}), with the action {shown(action)}"
                held, kept, given = obs, copied(obs), copied(action)
                obs, reward, terminated, truncated, info = self._step(env, action, where)
                if not same(action, given):
                    report.warning("action-changed", "step() changes the array of the action in place",
                                   "begin with action = np.array(action)", where)  # fmt: skip
                if not same(held, kept):
                    what = "step() changes the observation that it returned before in place"
                    mend = (
                        "return a copy, such as self.state.copy(); rlrun copies it at once, but your own code may not"
                    )
                    report.warning("observation-shared", what, mend, where)
                check_reward(report, reward, where, self._agents(env))
                check_end(report, "terminated", terminated, where)
                check_end(report, "truncated", truncated, where)
                over = bool(terminated) or bool(truncated)
                self._look(env, obs, info, over, where)
                if over:
                    lengths.append(length)
                    ended["terminated" if bool(terminated) else "truncated"] += 1
                    self._after_the_end(env, action)
        if report.errors and {"observation", "reward", "terminated-type", "truncated-type"} & report.seen.keys():
            raise Stop  # what follows would only repeat it
        report.fact("episodes", len(lengths))
        self._lengths(env, lengths, ended, taken)

    def _agents(self, env: gymnasium.Env) -> int | None:
        space = env.observation_space
        return len(space.spaces) if self.agents and isinstance(space, gymnasium.spaces.Tuple) else None

    def _mask(self, env: gymnasium.Env, obs: Any, info: Any, where: str = "") -> Any:
        """The mask of legal actions, or those of all agents in a list. Raises Stop where agents' are no sequence."""
        many = self._agents(env)
        if many is None:
            return mask_of(obs, info)
        try:
            told = masks_of_agents(info, many) or [None] * many
        except TypeError as error:
            self._masks_wrong(str(error), where)
        seen = obs if isinstance(obs, tuple) and len(obs) == many else (None,) * many
        return [mask_of(one, {} if mask is None else {MASK: mask}) for one, mask in zip(seen, told, strict=True)]

    def _masks_wrong(self, sentence: str, where: str) -> NoReturn:
        what, _, mend = sentence.rpartition(": ")
        self.report.error("action-mask", what, mend, where)
        raise Stop from None

    def _look_at_agents(self, env: gymnasium.Env, obs: Any, info: Any, over: bool, where: str) -> None:
        """Looks at the masks of agents."""
        assert isinstance(env.action_space, gymnasium.spaces.Tuple)
        for mask, space in zip(self._mask(env, obs, info, where), env.action_space.spaces, strict=True):
            if mask is not None:
                check_mask(self.report, mask, space, over, where)
        told = mask_of(None, info) is not None
        self.legal += told
        if self.legal and not told and not over:
            self._masks_wrong(UNTOLD, where)

    def _look(self, env: gymnasium.Env, obs: Any, info: Any, over: bool, where: str) -> None:
        self._seen(env.observation_space, obs, where)
        self.infos.check(info, where)
        if self._agents(env) is not None:
            return self._look_at_agents(env, obs, info, over, where)
        mask = mask_of(obs)
        if mask is not None:
            self.legal += 1
            check_mask(self.report, mask, env.action_space, over, where)
        elif mask_of(info) is not None:
            self.report.note("action-mask-place", "the action_mask is in info, where rlrun does not look for it",
                                "make it a part of a Dict observation, observation['action_mask']", where)  # fmt: skip

    def _after_the_end(self, env: gymnasium.Env, action: Any) -> None:
        """Steps once after an end, which may raise, but must not break the next reset(); seeding() sees whether it
        did."""
        with self.report.stepping():
            try:
                with np.errstate(all="ignore"), warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    env.step(action)
            except Exception:  # an environment may refuse it
                pass

    def _lengths(self, env: gymnasium.Env, lengths: list[int], ended: dict[str, int], taken: int) -> None:
        if not lengths:
            self.report.note("endless", f"no episode ended within {taken:,} random steps",
                             "give a time limit, env.max_episode_steps=N, if episodes can be endless")  # fmt: skip
            return
        if len(lengths) >= 3 and len(set(lengths)) == 1 and lengths[0] >= LEAST_LIMIT and not ended["truncated"]:
            names = [n for n in LIMITS if getattr(env.unwrapped, n, None) in (lengths[0], lengths[0] - 1)]
            own = f", which is the environment's {names[0]}" if names else ""
            what = f"all {len(lengths)} episodes ended with terminated=True after exactly {lengths[0]} steps{own}"
            mend = (
                "if this is a time limit, return terminated=False, truncated=True there; otherwise the policy learns"
                " that nothing comes after it"
            )
            # Of an environment over tuples, rlrun itself takes its limit for a truncation (envs/agent_games.py).
            tell = self.report.warning if names and not self.agents else self.report.note
            tell("time-limit", what, mend, f"step {lengths[0]} of every episode")
        if set(lengths) == {1} and len(lengths) > 20:
            self.report.note("one-step", "every episode is over after one step")

    # -- seeds and states ----------------------------------------------------------------------------------------------

    def actions(self, env: gymnasium.Env, seed: int = 2) -> Callable[[Any, Any], Any]:
        """Random actions that depend on the seed and on the masks alone."""
        rng = self._rng(seed)
        return lambda obs, info: draw(env.action_space, self._mask(env, obs, info), rng)

    def episode(self, env: gymnasium.Env, seed: int, act: Callable[[Any, Any], Any] | None = None) -> ComparedEpisode:
        obs, info = self._reset(env, seed, f"reset(seed={seed})")
        act = act or self.actions(env)
        made = ComparedEpisode(copied(obs), [])
        for number in range(1, COMPARED + 1):
            action = act(obs, info)
            obs, reward, terminated, truncated, info = self._step(
                env, action, f"step {number} after reset(seed={seed})"
            )
            made.steps.append((copied(obs), copied(reward), bool(terminated), bool(truncated)))
            if terminated or truncated:
                break
        return made

    def seeding(self, used: gymnasium.Env) -> None:
        report = self.report
        report.tell(("doing", "plays the same episode several times"))
        one, two = self.new("makes a second one"), self.new("makes a third one")
        with global_generators(1):
            first = self.episode(one, 5)
        with global_generators(2):
            second = self.episode(two, 5)
        differs = first.equals(second)
        where = "reset(seed=5), with the same actions"
        if differs is not None:
            self.deterministic = False
            with global_generators(1):
                third = self.episode(self.new("makes a fourth one"), 5)
            if first.equals(third) is None:
                what = f"the same seed does not give the same episode: {differs} differs, because it draws from the"
                what += f" global {self._drawn_from(one)}"
                mend = "draw from self.np_random, which super().reset(seed=seed) seeds, as in self.np_random.random()"
            else:
                what = f"the same seed does not give the same episode: {differs} differs"
                mend = (
                    "call super().reset(seed=seed) and draw from self.np_random alone; spaces, which have generators"
                    " of their own, time, hashes and state that instances share make episodes differ too"
                )
            report.error("seeding", what, mend, where)
        else:
            with global_generators(3):
                again = self.episode(used, 5)
            left = first.equals(again)
            if left is not None:
                what = (
                    f"reset() does not put everything back: {left} differs from that of a new instance with this seed"
                )
                mend = (
                    "set every attribute that step() changes in reset(), also those that only an end changes, unless"
                    " this is meant, as in a curriculum that counts its episodes"
                )
                report.warning(
                    "reset-leaves", what, mend, "reset(seed=5) after other episodes and a step() after the end"
                )
        with global_generators(1):
            others = [self.episode(one, seed) for seed in (6, 7, 8)]
        if all(first.equals(other) is None for other in others):
            report.note("seeds-alike", "different seeds give the same episode where the actions are the same",
                        "if it draws random numbers, seed them from reset's seed: super().reset(seed=seed) and"
                        " self.np_random")  # fmt: skip
        with report.resetting():
            unseeded = self._call("reset() without a seed", lambda: one.reset())
        if not (isinstance(unseeded, tuple) and len(unseeded) == 2):
            report.error("reset-returns", f"reset() without a seed returns {shown(unseeded)}", RESET, "reset()")

    def _drawn_from(self, env: gymnasium.Env) -> str:
        """Which global generators an episode changes."""
        with global_generators(1):
            before = random.getstate(), np.random.get_state()[1].tolist(), np.random.get_state()[2]  # type: ignore[index]
            self.episode(env, 5)
            after = random.getstate(), np.random.get_state()[1].tolist(), np.random.get_state()[2]  # type: ignore[index]
        names = ["random"] * (before[0] != after[0]) + ["np.random"] * (before[1:] != after[1:])
        return " and ".join(f"generator of {name}" for name in names) or "generators of Python or NumPy"

    def shared(self) -> None:
        """Whether instances in one process disturb each other, as those of one sampler would."""
        if not self.deterministic:
            return
        report = self.report
        report.tell(("doing", "steps two instances in turn"))
        alone = self.episode(self.new("makes one that is stepped alone"), 9)
        one, two = self.new("makes one of two"), self.new("makes the other of two")
        act, other = self.actions(one), self.actions(two, 3)
        obs, info = self._reset(one, 9, "reset(seed=9)")
        beside = self._reset(two, 10, "reset(seed=10)")
        held = ComparedEpisode(copied(obs), [])
        for number in range(1, len(alone.steps) + 1):
            beside_outcome = self._step(two, other(*beside), f"step {number} of a second instance")
            beside = (beside_outcome[0], beside_outcome[4])
            if bool(beside_outcome[2]) or bool(beside_outcome[3]):
                beside = self._reset(two, number, f"reset(seed={number}) of a second instance")
            obs, reward, terminated, truncated, info = self._step(one, act(obs, info), f"step {number} of an instance")
            held.steps.append((copied(obs), copied(reward), bool(terminated), bool(truncated)))
            if terminated or truncated:
                break
        differs = alone.equals(held)
        if differs is not None:
            what = f"instances in one process share state: {differs} differs when a second one is stepped in between"
            mend = "keep state in self and not in the class, the module or a default argument such as x=[]"
            report.error("shared-state", what, mend, "two instances, stepped in turn")

    # -- speed ---------------------------------------------------------------------------------------------------------

    def loop(self, env: gymnasium.Env) -> Callable[[], tuple[float, float, bool]]:
        """Returns a function that takes one step and resets where that is needed: (seconds of the step, of the reset,
        whether there was a reset)."""
        act = self.actions(env, 4)
        held: list[Any] = [*self._reset(env, 11, "reset(seed=11)"), False]

        def one() -> tuple[float, float, bool]:
            reset_sec = 0.0
            began = time.perf_counter()
            new = held[2]
            if new:
                held[0], held[1] = self._reset(env, None, "reset() after an end")
                reset_sec = time.perf_counter() - began
            action = act(held[0], held[1])
            began = time.perf_counter()
            obs, _, terminated, truncated, info = self._step(env, action, "a step while the speed is measured")
            step_sec = time.perf_counter() - began
            held[:] = [obs, info, bool(terminated) or bool(truncated)]
            return step_sec, reset_sec, new

        return one
