"""Crafter (Hafner 2022, arXiv:2109.06780): an image of a world in which 22 achievements can be unlocked."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import gymnasium
import numpy as np

from rlrun.core.ranges import Range
from rlrun.envs.gym import SingleConfig
from rlrun.envs.names import check_present

LENGTH = 10_000  # steps after which the game itself ends an episode
SMALLEST = 18  # pixels on a side: the picture shows 9 x 9 squares, in which smaller ones have no room for numbers
FILM = 486  # pixels of a picture that is no observation


@dataclass(frozen=True, kw_only=True)
class CrafterConfig(SingleConfig):
    family: Literal["crafter"]
    size: Annotated[int, Range(SMALLEST)]
    reward: bool

    @property
    def draws(self) -> bool:
        return False  # the game paints its pictures itself

    def make(self, render: bool) -> gymnasium.Env:
        check_present("crafter", self.name)
        return Crafter(self, render)

    def limit(self, env: gymnasium.Env) -> int | None:
        return self.max_episode_steps or LENGTH


def make_game(size: int, reward: bool, length: int, seed: int) -> Any:
    """Makes the package's own environment, whose episodes follow from the seed.

    The package keeps the creatures of a region in a set, and which one it removes depends on where they lie in memory.
    Here they are in the order in which they appeared, so that a seed repeats."""
    crafter = importlib.import_module("crafter")

    class Ordered(crafter.Env):  # type: ignore[name-defined,misc]
        def _balance_object(self, chunk: Any, creatures: Any, *rest: Any) -> None:
            objects = self._world.objects
            super()._balance_object(chunk, [one for one in objects if one in creatures], *rest)

    return Ordered(size=(size, size), reward=reward, length=length, seed=seed)


class Crafter(gymnasium.Env):
    """Crafter with Gymnasium's interface. Death is a termination, and the end of time a truncation.

    The last info of an episode says of every achievement whether it was unlocked (1 or 0), and how many were."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012

    def __init__(self, cfg: CrafterConfig, render: bool):
        self.cfg, self.render_mode = cfg, "rgb_array" if render else None
        self.game = self._made(0)
        self.action_space = gymnasium.spaces.Discrete(int(self.game.action_space.n))
        self.observation_space = gymnasium.spaces.Box(0, 255, (cfg.size, cfg.size, 3), np.uint8)

    def _made(self, seed: int) -> Any:
        return make_game(self.cfg.size, self.cfg.reward, self.cfg.max_episode_steps or LENGTH, seed)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.game = self._made(seed)
        return self.game.reset(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, reward, over, told = self.game.step(int(action))
        dead = told["discount"] == 0
        return obs, float(reward), bool(dead), bool(over and not dead), unlocked(told) if over else {}

    def render(self) -> np.ndarray:  # type: ignore[override]
        return self.game.render((FILM, FILM))


def unlocked(told: dict[str, Any]) -> dict[str, float]:
    """Of every achievement whether an episode unlocked it, and how many it unlocked, from the game's own info."""
    found = {f"achievement/{name}": float(count > 0) for name, count in told["achievements"].items()}
    return {**found, "achievements": sum(found.values())}
