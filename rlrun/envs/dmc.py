"""Tasks of dm-control's suite (Tassa et al. 2018, arXiv:1801.00690), as numbers or as pictures of a camera.

As in the author's code of Dreamer, a time limit is a truncation, since dm-control's discount is 1 there; hardly a task
ends in any other way. Rewards of repeated actions are summed."""

from __future__ import annotations

import importlib
import importlib.metadata
import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import gymnasium
import numpy as np

from rlrun.core.conditions import OnlyWith
from rlrun.core.errors import UserError
from rlrun.core.installing import install_line
from rlrun.core.ranges import Count, Range
from rlrun.envs import drawing
from rlrun.envs.gym import SingleConfig
from rlrun.envs.mujoco import hear
from rlrun.envs.names import DMC, check_present

PIXELS = "pixels"  # the name of the picture among the entries of env.observation=all
CAMERAS = {"quadruped": 2}  # those of the author's code; all other domains have 0
FILM = 480  # pixels of the pictures that are no observations


@dataclass(frozen=True, kw_only=True)
class DmcConfig(SingleConfig):
    family: Literal["dmc"]
    observation: Literal["entries", "vector", "pixels", "all"]
    size: Annotated[int, Count, OnlyWith("observation", "pixels", "all")]
    camera: Annotated[Literal["auto"] | Annotated[int, Range(-1)], OnlyWith("observation", "pixels", "all")]
    action_repeat: Annotated[int, Count]

    @property
    def draws(self) -> bool:
        return self.observation in ("pixels", "all")

    def make(self, render: bool) -> gymnasium.Env:
        check_present("dmc", self.name)
        if render or self.draws:
            drawing.check(self.name)
        return DmControl(self, render)

    def limit(self, env: gymnasium.Env) -> int | None:
        made = env.unwrapped
        assert isinstance(made, DmControl)
        return made.limit


def load(name: str, **options: Any) -> Any:
    """Loads a task of the suite. options: keyword arguments of the task. Raises UserError if MuJoCo's release does not
    fit dm-control's."""
    drawing.prepare()
    domain, task = DMC[name]
    try:
        suite = importlib.import_module("dm_control.suite")
        made = suite.load(domain, task, task_kwargs=options)
    except Exception as error:  # dm-control fails with an AttributeError deep inside
        release = importlib.metadata.version("mujoco")
        hint = f"; dm-control needs MuJoCo below 4: {install_line('dmc')}" if int(release.split(".")[0]) >= 4 else ""
        why = f"{type(error).__name__}: {error}"
        raise UserError(f"env={name} cannot be made with MuJoCo {release}{hint} ({why})") from None
    importlib.import_module("mujoco").set_mju_user_warning(hear)  # in place of dm-control's own, which repeats itself
    return made


class DmControl(gymnasium.Env):
    """A task of dm-control's suite with Gymnasium's interface."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}  # noqa: RUF012

    def __init__(self, cfg: DmcConfig, render: bool):
        """render: whether render() will be called, for a film. Raises UserError if there is no such camera."""
        self.cfg, self.render_mode = cfg, "rgb_array" if render else None
        domain, _ = DMC[cfg.name]
        # The first seed matters to lqr alone, which draws its bodies when it is made: all copies have the same.
        own = {} if cfg.max_episode_steps is None else {"time_limit": math.inf}
        self.env = load(cfg.name, random=0, **own)
        model, physics = self.env.physics.model, self.env.physics
        asked = CAMERAS.get(domain, 0) if cfg.camera == "auto" else cfg.camera
        if cfg.draws and asked >= model.ncam:
            raise UserError(
                f"env.camera={asked}: {cfg.name} has {model.ncam} cameras, which count from 0; -1 is a free one"
            )
        self.camera = asked
        if cfg.draws or render:  # a buffer of the pictures' own size is faster than the default of 640 x 480
            pixels = max(cfg.size if cfg.draws else 0, FILM if render else 0)
            physics.model.vis.global_.offwidth = physics.model.vis.global_.offheight = pixels
        frames = getattr(self.env, "_step_limit", math.inf)
        own_limit = None if math.isinf(frames) else -(-math.ceil(frames) // cfg.action_repeat)
        self.limit = cfg.max_episode_steps or own_limit
        action = self.env.action_spec()
        self.action_space = gymnasium.spaces.Box(
            np.broadcast_to(action.minimum, action.shape).astype(np.float32),
            np.broadcast_to(action.maximum, action.shape).astype(np.float32),
        )
        self.sizes = {name: int(np.prod(part.shape)) for name, part in self.env.observation_spec().items()}
        self.observation_space = self._space()
        self.decisions = 0

    def _space(self) -> gymnasium.Space:
        def box(size: int) -> gymnasium.Space:
            return gymnasium.spaces.Box(-np.inf, np.inf, (size,), np.float32)

        picture = gymnasium.spaces.Box(0, 255, (self.cfg.size, self.cfg.size, 3), np.uint8)
        if self.cfg.observation == "pixels":
            return picture
        if self.cfg.observation == "vector":
            return box(sum(self.sizes.values()))
        entries: dict[str, gymnasium.Space] = {name: box(size) for name, size in self.sizes.items()}
        return gymnasium.spaces.Dict(entries | ({PIXELS: picture} if self.cfg.observation == "all" else {}))

    def _seen(self, entries: Any) -> Any:
        if self.cfg.observation == "pixels":
            return self._picture(self.cfg.size)
        made = {name: np.asarray(entries[name], dtype=np.float32).reshape(-1) for name in self.sizes}
        if self.cfg.observation == "vector":
            return np.concatenate(list(made.values()))
        return made | ({PIXELS: self._picture(self.cfg.size)} if self.cfg.observation == "all" else {})

    def _picture(self, size: int) -> np.ndarray:
        return self.env.physics.render(height=size, width=size, camera_id=self.camera)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            stream = self.env.task.random  # the task's own, a RandomState
            stream.seed(seed % 2**32)
        self.decisions = 0
        return self._seen(self.env.reset().observation), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        total = 0.0
        for _ in range(self.cfg.action_repeat):
            now = self.env.step(action)
            total += float(now.reward or 0.0)
            if now.last():
                break
        self.decisions += 1
        ended = now.last() and now.discount == 0.0
        cut = not ended and (now.last() or self.decisions == self.cfg.max_episode_steps)
        return self._seen(now.observation), total, bool(ended), bool(cut), {}

    def render(self) -> np.ndarray:  # type: ignore[override]
        return self._picture(FILM)

    def close(self) -> None:
        self.env.close()
