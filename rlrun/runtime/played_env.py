"""The environment in which a trained policy can be played: evaluate, watch, record and estimate ask for it. Games can
be cut."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

from rlrun.cli import compose
from rlrun.config.run import type_config
from rlrun.config.types import plain
from rlrun.core.errors import Notice, UserError
from rlrun.core.games import STATE as GAME_STATE
from rlrun.core.specs import EnvSpec
from rlrun.envs.agent_games import AgentsConfig
from rlrun.envs.atari import AtariConfig
from rlrun.envs.joint import STATE
from rlrun.envs.names import names
from rlrun.envs.recorded import RecordedConfig, taken_options
from rlrun.envs.registry import EnvConfig, make_spec
from rlrun.runtime.trained import Trained


def environment_of(trained: Trained, name: str | None = None) -> tuple[EnvConfig, EnvSpec] | str:
    """The environment of the run or, for a run that learnt from data alone, one of this machine that has the spaces of
    that of the data, and its name or the one that is given. Otherwise why there is none, in words.

    It has the options with which the data were recorded, where the run knows them. Otherwise it has its defaults, and a
    warning says so. Raises UserError if a name is given for a run that has an environment."""
    cfg, spec = trained.config.env, trained.spec
    if not isinstance(cfg, RecordedConfig):
        if name is not None:
            raise UserError(
                f"env= is for runs that learnt from data without an environment; this one plays {spec.name}"
            )
        return cfg, spec
    none = "the run learnt from data, without an environment, and"
    if name is None and spec.name not in names():  # a name of data may not lead to a module
        if ":" in spec.name:
            return f"{none} the data call it {spec.name}, a class that is imported only where you name it"
        return f"{none} this machine has none that is called {spec.name}"
    called = spec.name if name is None else name
    made: dict[str, Any] = {}

    def take(found: Any, choices: Any) -> int:
        made.update(plain(found))
        return 0

    try:
        compose(["algo=bc", f"env={called}"], take)
        # A run's config.yaml may be a stranger's, as the data may be.
        known = taken_options(cfg.options) if called == spec.name else None
        if known is not None:
            if known.keys() - made["env"].keys():
                return f"{none} {called} has no option env.{min(known.keys() - made['env'].keys())} here"
            changed = {option: value for option, value in known.items() if value != made["env"][option]}
            made["env"].update(changed)
        cfg = type_config(made).env
        own = make_spec(cfg, *trained.config.run.model.memory.previous)
    except UserError as error:
        return f"{none} {called} cannot be made here: {error}"
    for what, one, other in (
        ("agents", own.agents and own.agents.names, spec.agents and spec.agents.names),
        ("observations", _acted_on(own), _acted_on(spec)),
        ("actions", own.action, spec.action),
        ("frames in an observation", own.stack, spec.stack),
        ("steps in an episode", own.max_episode_steps, spec.max_episode_steps),
    ):
        if one != other:
            return f"{none} {called} has other {what} here than in the data"
    if known is None:
        said = (
            f"it is not known with which options {called} was made for the data, so it is played with its defaults; a"
            " run that is trained with env=NAME and its options beside data.path= is played with them"
        )
    else:
        said = f"{called} is played with " + ", ".join(f"env.{option}={value}" for option, value in changed.items())
        said += ", as the data were recorded"
    if known is None or changed:
        warnings.warn(said, Notice, stacklevel=2)
    return cfg, own


def _acted_on(spec: EnvSpec) -> dict[str, Any]:
    """The parts of observations that acting depends on: not the state that values alone see, nor a search's."""
    return {name: space for name, space in spec.obs.items() if name not in (STATE, GAME_STATE)}


def in_environment(trained: Trained, name: str | None = None) -> Trained:
    """The same policy with the environment in which it can be played. Raises UserError if there is none, or as
    environment_of() does."""
    found = environment_of(trained, name)
    if isinstance(found, str):
        raise UserError(
            f"{found}, so that there is nothing to play; env=NAME names an environment with the spaces of the data"
        )
    cfg, spec = found
    if cfg is trained.config.env:
        return trained
    config = replace(trained.config, env=cfg)
    return Trained(trained.run_dir, config, spec, trained.policy, trained.clock, trained.own)


def cut_after(trained: Trained, steps: int | None) -> Trained:
    """The same policy, whose games are cut after so many steps; None: they are played as far as the environment lets
    them go. Raises UserError where that is impossible.

    A limit that the environment has already, and that is not longer, stays."""
    cfg, spec = trained.config.env, replace(trained.spec, limit_option="max_episode_steps")
    if isinstance(cfg, AtariConfig):
        if steps is not None:
            raise UserError(f"max_episode_steps: games of {spec.name} have the limit with which the run was trained")
        return trained
    if steps is not None and (spec.max_episode_steps is None or steps < spec.max_episode_steps):
        assert not isinstance(cfg, RecordedConfig)  # in_environment() has found another one
        spec = replace(spec, max_episode_steps=steps)
        cfg = replace(cfg, max_episode_steps=steps)
        if isinstance(cfg, AgentsConfig):
            cfg = replace(cfg, time_limit="truncation")  # what is cut is no end of the game
    config = replace(trained.config, env=cfg)
    return Trained(trained.run_dir, config, spec, trained.policy, trained.clock, trained.own)
