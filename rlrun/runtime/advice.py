"""Notes that can be given before a run: on the scale of its observations, on its data, on what its checkpoints leave
out, on games that may have no end, and on learning rates that have reached their end."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from typing import Any

import numpy as np

from rlrun.core.algorithm import Inner
from rlrun.core.env import Rows
from rlrun.core.errors import FAILURES, EnvError
from rlrun.core.health import LARGE_OBSERVATION
from rlrun.core.pulse import STEP, doing
from rlrun.core.schedule import Schedule
from rlrun.core.specs import random_actions
from rlrun.core.watchdog import watched
from rlrun.envs.agent_games import AgentsConfig, own_limit
from rlrun.envs.gym import SingleConfig, make_one
from rlrun.families.bandits import BanditConfig
from rlrun.loggers.mlflow import other_address
from rlrun.models.world_model import OwnNetworks, WorldModelConfig
from rlrun.runtime.plan import Plan

PROBE_STEPS, PROBE_SEC = 200, 0.5  # how long random actions are tried, at most


def notes(plan: Plan) -> list[str]:
    """Returns the notes on a run, in whole sentences."""
    found = [
        _on_observations(plan),
        _on_endless_games(plan),
        _on_single_steps(plan),
        _on_mlflow(plan),
        *(plan.data.notes if plan.data is not None else []),
    ]
    if plan.replay is not None:
        found += plan.replay.notes(plan.config.run.env_steps)
    return [note for note in found if note]


def _on_endless_games(plan: Plan) -> str | None:
    """Evaluations play games to their ends, which a policy may never reach where nothing limits their length.

    Games whose agents take turns, those with a simulator and rlrun's own of several agents end by their rules."""
    cfg, spec = plan.config.env, plan.spec
    if not plan.evaluates or spec.max_episode_steps is not None:
        return None
    by_rules = spec.game is not None or getattr(spec, "turns", False)
    by_rules = by_rules or (isinstance(cfg, AgentsConfig) and ":" not in spec.name)
    if by_rules or (isinstance(cfg, SingleConfig) and _limits_itself(cfg)):
        return None
    return (
        f"rlrun knows of nothing that limits the length of a game of {spec.name}, and evaluations play games to their"
        f" ends, however late these come; {spec.limit_option}=N is a limit"
    )


def _on_mlflow(plan: Plan) -> str | None:
    mlflow = plan.config.run.logger.get("mlflow") or {}
    return other_address(mlflow["uri"]) if mlflow.get("enabled") else None


def _on_single_steps(plan: Plan) -> str | None:
    """With one step for each batch, PPO's ratio is 1 and its values are those of acting."""
    algo = plan.config.algo
    algo = algo.inner.cfg if isinstance(getattr(algo, "inner", None), Inner) else algo
    if algo.name != "ppo" or algo.num_epochs > 1 or algo.minibatch_size < algo.batch_size:
        return None
    if plan.config.run.model.observation_filter != "none":  # whose moments have changed since acting
        return None
    return (
        "every batch is learnt from in one step, before the policy has changed, so that algo.clip, algo.value_clip and"
        " algo.kl_coef have no effect; more passes (algo.num_epochs) or smaller minibatches (algo.minibatch_size) give"
        " them one"
    )


def _limits_itself(cfg: SingleConfig) -> bool:
    """Whether an environment tells of a limit of its own, which it has not registered."""
    try:
        env = make_one(cfg)
    except FAILURES:
        return True  # the run itself reports it
    try:
        return own_limit(env) is not None
    finally:
        with contextlib.suppress(*FAILURES):  # it is the user's code
            env.close()


def ended_rates(cfg: Any, env_steps: int, path: str = "algo") -> list[str]:
    """Returns the paths of the learning rates of an algorithm's config that are 0 from now on."""
    found: list[str] = []
    for field in dataclasses.fields(cfg):
        value, place = getattr(cfg, field.name), f"{path}.{field.name}"
        if dataclasses.is_dataclass(value) and not isinstance(value, Schedule):
            found += ended_rates(value.cfg if hasattr(value, "cfg") else value, env_steps, place)
        elif isinstance(value, Schedule) and field.name.split("_")[-1] == "lr" and len(value.points) > 1:
            last, rate = value.points[-1]
            if rate == 0 and last <= env_steps:
                found.append(place)
    return found


def _on_observations(plan: Plan) -> str | None:
    """Tries random actions in one environment, unless observations are filtered, squashed or images whose encoder
    divides pixels by 255."""
    model = plan.config.run.model
    squashed = isinstance(model, WorldModelConfig) and model.symlog
    divided = plan.spec.image and model.encoder != "mlp"
    if model.observation_filter != "none" or squashed or divided or plan.config.runner.name == "offline":
        return None
    try:
        with watched(plan.limits()):
            largest = largest_observation(plan)
    except EnvError:
        return None  # the run itself reports it
    if largest <= LARGE_OBSERVATION:
        return None
    # Agents that learn together and bandits refuse the filter, and networks of one's own have none.
    refused = plan.needs.joint or isinstance(plan.config.algo, BanditConfig) or isinstance(model, OwnNetworks)
    how = "a wrapper (env.wrappers) can scale them" if refused else "model.observation_filter=mean_std normalises them"
    return (
        f"observations of {plan.spec.name} reach {largest:.3g}, and networks learn best from values of about 1; {how}"
    )


def largest_observation(plan: Plan) -> float:
    """Returns the largest absolute value of observations that are floats or bytes, under random actions."""
    env, rng, begun = plan.make_env()(0, 1), np.random.default_rng(0), time.monotonic()
    try:
        obs = env.reset(0)
        largest = _largest(obs)
        for _ in range(PROBE_STEPS):
            if time.monotonic() - begun > PROBE_SEC:
                break
            action = random_actions(env.spec, obs, env.count, rng)
            with doing(STEP):
                obs = env.step(action).obs
            largest = max(largest, _largest(obs))
        return largest
    finally:
        env.close()


def _largest(obs: Rows) -> float:
    if isinstance(obs, dict):
        return max((_largest(part) for part in obs.values()), default=0.0)
    return float(np.abs(obs).max()) if obs.size and obs.dtype in (np.float32, np.uint8) else 0.0
