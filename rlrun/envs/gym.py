"""Gymnasium environments: their options, how one is made, and what its spaces are. envs/gym_env.py steps many."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, TypeGuard

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from rlrun.core.conditions import REWARDS, OnlyFor, OnlyWith
from rlrun.core.errors import FAILURES, UserError, closest, told
from rlrun.core.installing import install_line
from rlrun.core.plugins import import_named, lacking, load_object
from rlrun.core.ranges import Count
from rlrun.core.specs import Box, EnvSpec, any_legal, leaves
from rlrun.envs import drawing, rewards
from rlrun.envs.arguments import mending
from rlrun.envs.gym_spaces import MASK, observation_spaces, to_space
from rlrun.envs.limits import TimeLimits
from rlrun.envs.mujoco import listen, uses_mujoco
from rlrun.envs.names import absent, check_present
from rlrun.envs.wrapped import Pixels, Repeat

# Gymnasium warns of the first observations that do not fit, many times and in colour; rlrun says it once (misfits.py).
warnings.filterwarnings("ignore", category=UserWarning, module=r"gymnasium\.(utils\.passive_env_checker|spaces\.box)")

CHANGE_NOTHING = (
    gymnasium.wrappers.FilterObservation,
    gymnasium.wrappers.OrderEnforcing,
    gymnasium.wrappers.PassiveEnvChecker,
    gymnasium.wrappers.RecordEpisodeStatistics,
    gymnasium.wrappers.TimeLimit,
)


@dataclass(frozen=True, kw_only=True)
class SingleConfig(TimeLimits):
    """Options of environments with one agent that have Gymnasium's interface."""

    name: str
    max_episode_steps: Annotated[int, Count] | None
    wrappers: tuple[Any, ...]
    stack: Annotated[int, Count]
    reward_clip: Annotated[Literal["none", "sign"] | float, OnlyFor(REWARDS)]

    def __post_init__(self):
        for entry in self.wrappers:
            if not isinstance(entry, str) and not (isinstance(entry, Mapping) and isinstance(entry.get("name"), str)):
                raise ValueError(
                    f"wrappers are package.module:Name, or {{name: package.module:Name, option: value}}; not {entry!r}"
                )

    @property
    def draws(self) -> bool:
        """Whether observations hold pictures that have to be drawn."""
        raise NotImplementedError

    def make(self, render: bool) -> gymnasium.Env:
        """Makes one environment without the user's wrappers. render: whether its render() returns a picture. Raises
        UserError if that is impossible."""
        raise NotImplementedError

    def limit(self, env: gymnasium.Env) -> int | None:
        """Decisions after which an environment that make() made is truncated; None if that is unknown."""
        return self.max_episode_steps


@dataclass(frozen=True, kw_only=True)
class GymConfig(SingleConfig):
    family: Literal["gym"]
    kwargs: dict[str, Any]
    observation: Literal["own", "pixels"]
    size: Annotated[int, Count, OnlyWith("observation", "pixels")]
    action_repeat: Annotated[int, Count]

    def __post_init__(self):
        super().__post_init__()
        if "max_episode_steps" in self.kwargs:  # gymnasium.make takes it for itself, and rlrun would not know it
            raise ValueError(
                "kwargs cannot hold max_episode_steps: the time limit is env.max_episode_steps=N, and an argument of"
                " your class needs another name"
            )

    @property
    def draws(self) -> bool:
        return self.observation == "pixels"

    @property
    def untouched(self) -> bool:
        """Whether rlrun changes nothing of the environment."""
        return not (self.wrappers or self.draws or self.action_repeat > 1)

    @property
    def vectorised(self) -> bool:
        """Whether a vectorised implementation of the environment's own can step it in training."""
        return self.untouched and self.registered().vector_entry_point is not None

    def registered(self) -> gymnasium.envs.registration.EnvSpec:
        """What Gymnasium makes the environment from."""
        return find(self.name)

    def make(self, render: bool) -> gymnasium.Env:
        spec = self.registered()
        listen(spec)
        more: dict[str, Any] = {}
        if render or self.draws:
            more = {"render_mode": "rgb_array"}
            drawing.without_screen()
            if uses_mujoco(spec):
                drawing.check(self.name)
        env: gymnasium.Env = gymnasium.make(spec, **(overrides(self) | more))
        env = Repeat(env, self.action_repeat) if self.action_repeat > 1 else env
        return Pixels(env, self.size) if self.draws else env

    def limit(self, env: gymnasium.Env) -> int | None:
        own = find(self.name).max_episode_steps
        return self.max_episode_steps or (None if own is None else -(-own // self.action_repeat))


def find(name: str) -> gymnasium.envs.registration.EnvSpec:
    """Returns the registered spec of `CartPole-v1`, `ALE/Pong-v5` or `my_package:MyEnv-v0`, or one for the class
    `my_package:MyEnv`.

    my_package is imported. Raises UserError if the import fails or the id is not registered.
    """
    import rlrun.envs.own  # noqa: F401  registers rlrun's own ids

    module, _, name_only = name.rpartition(":")
    if module:
        try:
            import_named(module, f"env={name}")
        except ImportError as error:
            raise UserError(f"env={name}: cannot import {module}: {lacking(error, module)}") from None
        found = getattr(sys.modules[module], name_only, None)
        if isinstance(found, type) and issubclass(found, gymnasium.Env):
            return gymnasium.envs.registration.EnvSpec(name_only, entry_point=found)  # type: ignore[arg-type]
    try:
        return gymnasium.spec(name_only)
    except gymnasium.error.Error:
        if module and found is None:
            raise UserError(f"env={name}: {absent(module, name_only)}") from None
        raise UserError(
            f"env={name} is neither a registered Gymnasium id nor an Atari"
            f" game.{closest(name_only, gymnasium.registry)}"
        ) from None


def make_spec(cfg: SingleConfig) -> EnvSpec:
    """Makes one environment to read its spaces. Raises UserError if it fails, its spaces are not supported, or it
    cannot draw the pictures that observations hold."""
    if isinstance(cfg, GymConfig) and cfg.draws and "rgb_array" not in _made(cfg, lambda: render_modes(cfg)):
        raise UserError(
            f"env.observation=pixels: {cfg.name} draws no pictures (rgb_array is not one of its render_modes)"
        )
    env = _made(cfg, lambda: make_one(cfg))
    try:
        action = to_space(env.action_space, "action", cfg.name)
        obs = observation_spaces(env.observation_space, action, cfg.name)
        if MASK in obs and not any_legal(action, np.ravel(_first(env, cfg.name)[MASK])):
            raise UserError(f"{cfg.name} begins with an action_mask that leaves no legal action")
        if cfg.draws:
            own = env.unwrapped.observation_space
            if isinstance(own, gymnasium.spaces.Dict) and MASK in own.spaces and MASK not in obs:
                raise UserError(f"env.observation=pixels: pictures would leave out the action_mask of {cfg.name}")
            _check_drawing(env, cfg.name)
        limit = cfg.limit(env)
        kwargs = dict(cfg.kwargs) if isinstance(cfg, GymConfig) else {}
        repeats = isinstance(cfg, GymConfig) and cfg.action_repeat > 1  # a step pays for several of the environment's
        # A step then shows or pays something else than a step of the environment's own class.
        differs = cfg.draws or cfg.wrappers or repeats or wrapped_by(env)
        pays = None if differs else rewards.reward_of(cfg.name, env.unwrapped, kwargs)
        if pays is not None and isinstance(cfg, GymConfig):
            kwargs = dict(find(cfg.name).kwargs) | kwargs
        tasks = all(env.has_wrapper_attr(name) for name in ("sample_tasks", "set_task"))
        notes = _left_out(env)
    finally:
        env.close()
    for _, part in leaves(action):
        if (
            isinstance(part, Box)
            and part.bounded
            and any(low >= high for low, high in zip(part.low, part.high, strict=True))
        ):
            raise UserError(f"{cfg.name} has an action whose lowest value is its highest: {env.action_space}")
    return EnvSpec(
        name=cfg.name,
        obs=obs,
        action=action,
        max_episode_steps=limit,
        tasks=tasks,
        notes=notes,
        reward_class=pays,
        reward_kwargs={} if pays is None or pays.startswith(f"{rewards.__name__}:") else kwargs,
    )


def _left_out(env: gymnasium.Env) -> tuple[str, ...]:
    """Returns a sentence about text that make_one() left out of the observations, if there was any."""
    if not isinstance(env, gymnasium.wrappers.FilterObservation):
        return ()
    lost = texts(env.env)
    if not lost:
        return ()
    return (
        f"the observation's text ({', '.join(lost)}) is left out; a wrapper of env.wrappers can make numbers of it",
    )


def _made(cfg: SingleConfig, make: Callable[[], Any], how: str = "") -> Any:
    """What make() returns. how: words for the error that say by what it is made."""
    try:
        return make()
    except UserError:
        raise
    except FAILURES as error:  # the user's own constructor may raise anything
        if isinstance(error, gymnasium.error.DependencyNotInstalled | ImportError):
            check_present("gym", cfg.name)  # names rlrun's extra; a tuned file's env was not looked at before
        why = told(error, __file__, gymnasium.envs.registration.__file__)
        mend = mending(cfg.name, error, getattr(cfg, "kwargs", None))
        raise UserError(f"env={cfg.name} cannot be made{how}: {why}{mend and f'; {mend}'}") from None


def _first(env: gymnasium.Env, name: str) -> Any:
    try:
        return env.reset(seed=0)[0]
    except FAILURES as error:  # the user's own
        raise UserError(f"env={name} fails in reset: {told(error, __file__)}") from None


def _check_drawing(env: gymnasium.Env, name: str) -> None:
    """Raises UserError if an environment cannot draw its first picture."""
    try:
        env.reset(seed=0)
    except FAILURES as error:  # of any library that draws
        why = f"{type(error).__name__}: {error}"
        if isinstance(error, gymnasium.error.DependencyNotInstalled) and "pygame" in str(error):
            why = f"pygame is not installed: {install_line('video')}"
        raise UserError(f"env={name} cannot be drawn: {why}") from None


def make_one(cfg: SingleConfig, render: bool = False) -> gymnasium.Env:
    """Makes one environment with the user's wrappers, the first one innermost. Raises UserError for a bad wrapper."""
    env = cfg.make(render)
    for entry in cfg.wrappers:
        options = {"name": entry} if isinstance(entry, str) else dict(entry)
        name = options.pop("name")
        wrap = load_object(name, "env.wrappers", gymnasium.Env)
        try:
            wrapped = wrap(env, **options)
        except FAILURES as error:  # the user's own constructor may raise anything
            raise UserError(f"env.wrappers={name} cannot be made: {told(error, __file__)}") from None
        if not isinstance(wrapped, gymnasium.Env):
            raise UserError(f"env.wrappers={name} makes {type(wrapped).__name__}, which is not a gymnasium.Env")
        env = wrapped
    kept = [] if not texts(env) else [key for key in env.observation_space.spaces if key not in texts(env)]  # type: ignore[attr-defined]
    return gymnasium.wrappers.FilterObservation(env, kept) if kept else env


def make_vector(cfg: GymConfig, count: int) -> VectorEnv:
    """Makes `count` environments as their own vectorised implementation. Raises UserError if that fails, or if it does
    not say that it begins new episodes as AutoresetMode.NEXT_STEP."""
    spec = cfg.registered()

    def make() -> VectorEnv:
        with warnings.catch_warnings():  # Gymnasium warns of what is refused or understood below
            warnings.filterwarnings("ignore", "(?s).*AutoresetMode")
            return gymnasium.make_vec(spec, count, vectorization_mode="vector_entry_point", **overrides(cfg))

    env = _made(cfg, make, " by its vector_entry_point")
    said = env.metadata.get("autoreset_mode")
    if said not in (AutoresetMode.NEXT_STEP, AutoresetMode.NEXT_STEP.value):
        env.close()
        how = "does not say how it resets" if said is None else f"resets by {said}"
        raise UserError(
            f"env={cfg.name}: its vectorised implementation {how}; let it begin a new episode in the step after an end,"
            " and say metadata['autoreset_mode'] = AutoresetMode.NEXT_STEP"
        )
    return env


def by_vector(cfg: object, spec: EnvSpec) -> TypeGuard[GymConfig]:
    """Whether the environment's own vectorised implementation steps it where nothing is drawn. A search needs single
    environments."""
    return isinstance(cfg, GymConfig) and spec.game is None and cfg.vectorised


def wrapped_by(env: gymnasium.Env) -> str | None:
    """The name of a wrapper that may change what an environment shows or pays, or None if there is none. Those of
    CHANGE_NOTHING do neither."""
    while isinstance(env, gymnasium.Wrapper):
        if type(env) not in CHANGE_NOTHING:
            return type(env).__name__
        env = env.env
    return None


def texts(env: gymnasium.Env) -> tuple[str, ...]:
    """Returns the names of the parts of a Dict observation that are text, which networks cannot read.

    They are spaces of Text, and others of strings, such as MiniGrid's missions."""
    space = env.observation_space
    parts = space.spaces if isinstance(space, gymnasium.spaces.Dict) else {}
    return tuple(
        key
        for key, part in parts.items()
        if isinstance(part, gymnasium.spaces.Text) or (part.dtype is not None and np.dtype(part.dtype).kind == "U")
    )


def overrides(cfg: GymConfig) -> dict[str, Any]:
    """What gymnasium.make is given beside the environment's name. A limit counts the environment's own steps."""
    limit = cfg.max_episode_steps
    return dict(cfg.kwargs) | ({} if limit is None else {"max_episode_steps": limit * cfg.action_repeat})


def render_modes(cfg: SingleConfig) -> list[str]:
    """Render modes that the environment declares."""
    if isinstance(cfg, GymConfig) and cfg.draws:
        cfg = replace(cfg, observation="own", wrappers=())
    env = make_one(cfg)
    try:
        return list(env.metadata.get("render_modes", []))
    finally:
        env.close()
