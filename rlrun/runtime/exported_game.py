"""Games that a run's own policy plays, with which its exported files are compared."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from rlrun.core.env import map_rows
from rlrun.core.seeding import Seeds
from rlrun.core.specs import Box, Nested, Space
from rlrun.envs.agent_rows import AgentSpaces, action_of
from rlrun.envs.recorded import RecordedConfig
from rlrun.envs.registry import Factory
from rlrun.runtime.exported_policy import Part, Tensors, as_shown, flat, nested
from rlrun.runtime.trained import Trained
from rlrun.samplers.evaluator import to_torch

Game = list[tuple[Tensors, Tensors]]  # observation [B, ...] and action of every step, as the environment took it


def observed(trained: Trained, steps: int) -> Game:
    """Plays the first `steps` steps of a game with the run's own policy.

    Returns (observation [1, ...], action) of every step, both as the environment has them.
    """
    if isinstance(trained.config.env, RecordedConfig):
        return imagined(trained, steps)
    if trained.agents:
        return observed_together(trained, steps)
    env = trained.make_env(seed=0)
    trained.reset()
    made: Game = []
    kept: list[Tensors] = []
    own = trained.policy_action

    def watched(rows: Any, *args: Any, **options: Any) -> Any:
        kept.append(
            flat(trained._told(to_torch(rows).clone(), 1, options.get("reward", args[1] if len(args) > 1 else None)))
        )
        return own(rows, *args, **options)

    try:
        obs, _ = env.reset()
        reward = None
        trained.policy_action = watched  # type: ignore[method-assign]
        for _ in range(steps):
            action = trained.act(obs, reward=reward, env=None if trained.played is None else env)
            seen = as_shown(trained.spec.observation, kept[-1])
            for name, value in flat_action(trained.one.observation, obs, "observation").items():
                # Files are given what the environment itself shows.
                (seen[name] if trained.last is None else seen[name][:, -1]).copy_(value)
            made.append((seen, flat_action(trained.spec.action, action)))
            obs, reward, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                break
    finally:
        trained.policy_action = own  # type: ignore[method-assign]
        trained.reset()
        env.close()
    return made


def observed_together(trained: Trained, steps: int) -> Game:
    """The same for an environment with N agents: observations and actions are [N, ...], or [1, N, ...] if a row holds
    them all. Actions are in the form of rows; rows_of() converts them."""
    seeds = Seeds(0)
    factory = Factory(cfg=trained.config.env, spec=trained.spec, seeds=seeds, stream="user", learning=False)
    env = factory(0, 1)
    made: Game = []
    trained.reset()
    obs, reward, first = env.reset(0), np.zeros(env.count), np.ones(env.count, dtype=bool)
    for _ in range(steps):
        if made and first.any():
            break  # what follows would need the places where episodes begin
        rows = trained._told(to_torch(obs).clone(), env.count, reward)
        action = trained.policy_action(obs, reward=reward)
        made.append((as_shown(trained.spec.observation, flat(rows)), flat(to_torch({"action": action}))))
        step = env.step(action)
        obs, reward, first = step.obs, step.reward, step.is_first
    trained.reset()
    env.close()
    return made


def imagined(trained: Trained, steps: int) -> Game:
    """The same for a run that learnt from data, without an environment to play: observations are random. Actions of
    several agents are in the form of rows."""
    rng, count, told = np.random.default_rng(0), trained.spec.columns_per_env, ("prev_action", "prev_reward")
    made: Game = []
    trained.reset()
    for _ in range(steps):
        obs = {name: drawn(space, rng, count) for name, space in trained.spec.obs.items() if name not in told}
        if "action_mask" in obs:
            obs["action_mask"] = np.ones_like(obs["action_mask"])
        rows, reward = trained._told(to_torch(obs).clone(), count, np.zeros(count)), np.zeros(count)
        action = trained.policy_action(obs, reward=reward)
        if trained.spec.agents is None:
            done = flat_actions(trained.spec.action, trained.spec.action.to_env(action))
        else:
            done = flat(to_torch({"action": action}))
        made.append((as_shown(trained.spec.observation, flat(rows)), done))
    trained.reset()
    return made


def drawn(space: Space, rng: np.random.Generator, count: int) -> Any:
    """[count, ...] random observations in the form that rows have."""
    if isinstance(space, Nested):
        return {name: drawn(part, rng, count) for name, part in space.spaces}
    if isinstance(space, Box) and space.dtype == "uint8":
        return rng.integers(256, size=(count, *space.shape), dtype=np.uint8)
    made = space.sample(rng, count)
    return made.astype(space.dtype) if isinstance(space, Box) else made


def flat_actions(space: Space, action: Any, name: str = "action") -> Tensors:
    """Actions [B, ...], as the environment takes them, by path."""
    if isinstance(space, Nested):
        made: Tensors = {}
        for index, (part, inner) in enumerate(space.spaces):
            made |= flat_actions(inner, action[index] if space.ordered else action[part], f"{name}.{part}")
        return made
    return {name: torch.as_tensor(np.asarray(action))}


def flat_action(space: Space, action: Any, name: str = "action") -> Tensors:
    """Converts one action, as the environment takes it, to tensors [1, ...] by path."""
    return {path: value[None] for path, value in flat_actions(space, action, name).items()}


def rows_of(part: Part, game: Game) -> Game:
    """What the agents of one policy saw and did in a game of all, with actions as its files give them."""
    if part.trained.spec.agents is None:
        return game
    if part.numbers is not None:
        numbers = list(part.numbers)
        game = [({n: x[numbers] for n, x in obs.items()}, {n: x[numbers] for n, x in act.items()}) for obs, act in game]
    return [(obs, taken(part, action)) for obs, action in game]


def taken(part: Part, action: Tensors) -> Tensors:
    """The actions of a policy's agents in the form of rows -> as the environment takes them, converted agent by agent
    as Trained.act() does it; or as bounded rows, if its files give these."""
    spec, rows = part.trained.spec, nested(action, {"action": part.trained.spec.action_row}).numpy()["action"]
    if not part.as_taken or not part.agents:  # without names, all agents have one space
        return flat_actions(spec.action, spec.action.to_env(rows))
    made = []
    for number, own in enumerate(part.own):
        one = map_rows(rows, lambda x, i=number: x[:, i] if spec.joint else x[i : i + 1])  # type: ignore[misc]
        made.append(flat_action(own, action_of(AgentSpaces({}, own), one)))
    together = {name: torch.cat([one[name] for one in made]) for name in made[0]}
    return {name: x.unsqueeze(0) for name, x in together.items()} if spec.joint else together
