"""Plays with a trained policy and lets its world model imagine what was seen, a piece of an episode at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rlrun.core.algorithm import Algorithm, LearnerContext
from rlrun.core.batch import Batch
from rlrun.core.errors import UserError
from rlrun.core.open_loop import CONTEXT, Excerpt, errors, excerpt
from rlrun.core.policy import Mode
from rlrun.core.seeding import Seeds
from rlrun.envs import gym
from rlrun.envs.gym import SingleConfig
from rlrun.envs.gym_env import GymEnv
from rlrun.envs.recorded import NO_ENV, RecordedConfig
from rlrun.envs.redrawn import redrawn
from rlrun.envs.registry import Factory
from rlrun.envs.stacked import Stacked, without_stack
from rlrun.models.model import Model
from rlrun.runtime.rundir import checkpoints_of
from rlrun.runtime.trained import Trained
from rlrun.samplers.evaluator import to_torch

PIECE = 50  # rows of which the model sees the first CONTEXT (Hafner et al. 2020 have 5 and 45)


class Watched(NamedTuple):
    """T rows that were played, and the observation behind them."""

    batch: Batch  # [T, 1, ...], obs and is_first [T + 1, 1, ...]; core [T + 1, 1, ...] is the memory before every row
    frames: list[np.ndarray]  # the environment's pictures of the T + 1 observations; none where they are images
    returns: list[float]  # of finished episodes
    rate: float  # pictures per second


class Imagined(NamedTuple):
    excerpts: list[Excerpt]  # one of each piece, in the order in which they were played
    starts: list[int]  # the first row of each
    errors: dict[str, float]  # means over pieces, as core.open_loop.errors() names them


def world_model(trained: Trained) -> Algorithm:
    """Loads the learner of a trained policy, whose networks predict observations. Raises UserError if its algorithm has
    no world model or its environment several agents."""
    config = trained.config
    if not config.algorithm.has_world_model:
        raise UserError(
            f"imagine=true needs a world model, and {config.algo.name} has none: dreamer and dreamerv3 learn one"
        )
    if trained.spec.agents is not None:
        raise UserError(f"imagine=true shows environments with one agent, and {trained.spec.name} has several")
    if isinstance(config.env, RecordedConfig):
        raise UserError(NO_ENV)
    checkpoints = checkpoints_of(trained.run_dir)
    saved, _ = checkpoints.load(checkpoints.name_at(*trained.clock), parts=("algorithm",))
    with torch.random.fork_rng(devices=[]):
        policy = config.algorithm.make_policy(trained.spec, Model(config.run.model), config.algo)
        ctx = LearnerContext(torch.device("cpu"), torch.Generator(), model=Model(config.run.model))
        made = config.algorithm(policy, trained.spec, config.algo, ctx)
    try:
        made.load_state_dict(saved["algorithm"]["module"])
    except RuntimeError as error:
        raise UserError(f"the checkpoint in {trained.run_dir} does not fit its config.yaml: {error}") from None
    return made.requires_grad_(False)


def play(trained: Trained, episodes: int, max_steps: int, mode: Mode, seed: int) -> Watched:
    """Plays full games, in at most max_steps rows."""
    env, drawn = _environment(trained, Seeds(seed))
    rate = 15.0 if drawn is None else min(15.0, float(drawn.env.envs[0].metadata.get("render_fps", 15)))
    rows: dict[str, list[Any]] = {name: [] for name in ("obs", "is_first", "core", "action", "reward", "terminated")}
    rows["valid"], frames, returns, total = [], [], [], 0.0
    try:
        obs, is_first, reward = env.reset(0), np.ones(1, dtype=bool), np.zeros(1, dtype=np.float32)
        trained.reset()

        def see() -> None:
            rows["obs"].append(to_torch(obs).clone())
            rows["is_first"].append(torch.from_numpy(is_first.copy()))
            rows["core"].append(trained.memory(1))
            if drawn is not None:
                frames.append(drawn.frame())

        for _ in range(max_steps):
            see()
            trained.reset(is_first)
            action = trained.policy_action(obs, mode, reward)
            step = env.step(action)
            rows["action"].append(torch.from_numpy(np.array(action)))
            for name in ("reward", "terminated", "valid"):
                rows[name].append(torch.from_numpy(np.array(getattr(step, name))))
            obs, is_first, reward = step.obs, step.is_first, step.reward
            total += float(reward.sum())
            if (step.terminated | step.truncated).all():
                returns.append(total)
                total = 0.0
                if len(returns) == episodes:
                    break
        see()
    finally:
        env.close()
    return Watched(Batch({name: stacked(parts) for name, parts in rows.items()}), frames, returns, rate)


def _environment(trained: Trained, seeds: Seeds) -> tuple[Any, GymEnv | None]:
    """The environment, and the part of it that draws frames: none if observations are images or cannot be drawn."""
    cfg, spec = trained.config.env, trained.spec
    if spec.image or not isinstance(cfg, SingleConfig) or "rgb_array" not in gym.render_modes(cfg):
        return Factory(cfg=cfg, spec=spec, seeds=seeds, stream="watch", learning=False)(0, 1), None
    drawn = GymEnv(cfg, without_stack(spec), seeds, "watch", 0, 1, render=True)
    return Stacked(drawn, spec) if spec.stack > 1 else drawn, drawn


def stacked(parts: Sequence[Any]) -> Any:
    """Rows [1, ...] or Batches of them -> [T, 1, ...]."""
    if isinstance(parts[0], Batch):
        return Batch({name: stacked([part[name] for part in parts]) for name in parts[0]})
    return torch.stack(list(parts))


def imagine(model: Algorithm, batch: Batch, seed: int) -> Imagined:
    """Cuts what was played into pieces, and lets the model see the first observations of each, with the memory that the
    policy had there. A piece has PIECE rows, or fewer where an episode or another break of the column ends it."""
    rows = len(batch.reward)
    starts, ends = [0], []
    for row in range(1, rows + 1):
        broken = bool(batch.is_first[row]) or (not bool(batch.valid[row - 1]))
        if broken or row - starts[-1] == PIECE:
            ends.append(row)
            starts.append(row)
    ends.append(rows + 1)
    place = torch.tensor(starts) + torch.arange(PIECE).unsqueeze(1)  # [PIECE, pieces]
    inside = place < torch.tensor(ends)
    last = place.clamp(max=rows)

    def pieces(values: Tensor, at: Tensor) -> Tensor:
        return values[at.clamp(max=len(values) - 1), 0]

    made = Batch(
        {
            name: values.map(lambda x, at=at: pieces(x, at)) if isinstance(values, Batch) else pieces(values, at)  # type: ignore[misc]
            for name, values in batch.items()
            for at in (last if name in ("obs", "is_first") else last[:1] if name == "core" else last[:-1],)
        }
    )
    made = made.replace(valid=made.valid & inside[1:])  # type: ignore[operator]
    predicted = model.open_loop(made, CONTEXT, torch.Generator().manual_seed(seed))
    found = {name: float(value) for name, value in errors(predicted, made).items()}
    counts = inside.sum(0).tolist()
    return Imagined([excerpt(predicted, made, n, count) for n, count in enumerate(counts)], starts, found)


def pictures(trained: Trained, played: Watched, shown: Imagined) -> list[list[list[np.ndarray]]]:
    """The environment's pictures of every row of every excerpt: of the true observation and, where the environment can
    show any state, of the imagined one."""
    if not played.frames:
        return [[[] for _ in one.seen] for one in shown.excerpts]
    drawer, made = redrawn(trained.config.env), []
    try:
        for start, one in zip(shown.starts, shown.excerpts, strict=True):
            own = [[played.frames[start + row]] for row in range(len(one.seen))]
            if drawer is not None:
                for row, images in enumerate(own):
                    images.append(drawer.frame(one.said["observation"][row]))
            made.append(own)
    finally:
        if drawer is not None:
            drawer.close()
    return made
