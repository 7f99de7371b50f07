"""Atari games through ale-py's C++ vector environment.

ale-py differs from DeepMind's wrappers in three ways, which this module makes up for, and in a fourth:
- It can clip rewards, which hides the raw ones. This is switched off, because learning clips them.
- Its `episodic_life` restarts the whole game at every lost life. `life_loss_info` is used instead: the game goes on and
  the row is terminated.
- It presses FIRE after a reset but not after a lost life. AtariEnv does so, and marks the row as dead, because the
  action was not the agent's decision.
- DeepMind's wrappers draw 1 to noop_max no-ops and press FIRE afterwards. ale-py draws 0 to noop_max - 1, and FIRE is
  one of them: a noop_max of 30 means 0 to 28 no-ops, or 0 to 29 where FIRE is not pressed. 0 and 1 mean none, and with
  FIRE so does 2. Tables were published with such games, so they stay as they are.

ale-py is optional because it is GPL-2.0; it is imported only when an Atari game is asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np

from rlrun.core.conditions import REWARDS, ROWS, OnlyFor
from rlrun.core.env import Rows, Step
from rlrun.core.errors import FAILURES, EnvError, UserError, told
from rlrun.core.installing import install_line
from rlrun.core.ranges import Count, NotNegative, Range, ShareBelowOne
from rlrun.core.seeding import Seeds
from rlrun.core.specs import Box, Discrete, EnvSpec
from rlrun.envs.limits import TimeLimits
from rlrun.envs.names import games, numbered

Side = Range(1, 160)  # pixels; the emulator's screen is 160 wide
SIDE, SIDE_OF_WORLD_MODELS = 84, 64  # pixels, where env.size=auto; world models halve an image four times


@dataclass(frozen=True, kw_only=True)
class AtariConfig(TimeLimits):
    family: Literal["atari"]
    name: str
    frame_skip: Annotated[int, Count]
    sticky_actions: Annotated[float, ShareBelowOne]
    full_action_space: bool
    noop_max: Annotated[int, NotNegative]
    fire: bool
    life_loss_terminal: Annotated[bool, OnlyFor(ROWS)]
    size: Literal["auto"] | Annotated[int, Side]
    grayscale: bool
    stack: Annotated[int, Count]
    max_frames: Annotated[int, Count]
    reward_clip: Annotated[Literal["none", "sign"] | float, OnlyFor(REWARDS)]

    @property
    def side(self) -> int:
        """Pixels; a run has settled which (config/automatic.py)."""
        return SIDE if self.size == "auto" else self.size

    @property
    def frame(self) -> tuple[int, ...]:
        """The shape of one frame: [H, W], or [H, W, 3] in colour."""
        return (self.side, self.side) if self.grayscale else (self.side, self.side, 3)


def import_ale():
    """Returns the ale_py module. Raises UserError with the pip command if it is not installed."""
    try:
        import ale_py
    except ImportError:
        raise UserError(f"Atari games need ale-py (GPL-2.0): {install_line('atari')}") from None
    return ale_py


class AtariEnv:
    """`count` games in one C++ vector environment, stepped by 1 to `count` threads, which do not change the games."""

    def __init__(
        self,
        cfg: AtariConfig,
        spec: EnvSpec,
        seeds: Seeds,
        stream: str,
        worker: int,
        count: int,
        learning: bool,
        threads: int = 1,
        **screen: Any,
    ):
        import_ale()
        assert isinstance(spec.action, Discrete)
        self.actions = spec.action
        from ale_py.vector_env import AtariVectorEnv

        self.cfg, self.spec, self.count = cfg, spec, count
        self.seeds, self.stream, self.worker = seeds, stream, worker
        self.env = AtariVectorEnv(
            games()[cfg.name],
            num_envs=count,
            num_threads=min(threads, count),
            frameskip=cfg.frame_skip,
            stack_num=screen.pop("stack", cfg.stack),
            img_height=screen.pop("height", cfg.side),
            img_width=screen.pop("width", cfg.side),
            grayscale=screen.pop("grayscale", cfg.grayscale),
            repeat_action_probability=cfg.sticky_actions,
            full_action_space=cfg.full_action_space,
            noop_max=cfg.noop_max,
            use_fire_reset=cfg.fire,
            life_loss_info=cfg.life_loss_terminal and learning,
            reward_clipping=False,
            max_num_frames_per_episode=cfg.max_frames,
            **screen,
        )
        actions = [int(a.value) for a in self.env.ale.get_action_set()]
        self.fire_action = 1 if cfg.fire and len(actions) >= 3 and actions[1] == 1 else None  # ALE's Action.FIRE is 1
        self.generation = 0

    def seed_of(self, slot: int) -> int:
        return self.seeds.integer(self.stream, self.worker, slot, self.generation)

    def reset(self, generation: int) -> Rows:
        self.generation = generation
        obs, info = self.env.reset(seed=np.array([self.seed_of(slot) for slot in range(self.count)]))
        self.frame, self.lives = info["episode_frame_number"], info["lives"]
        self.press_fire = np.zeros(self.count, dtype=bool)
        self.over = np.zeros(self.count, dtype=bool)
        return {"observation": obs}

    def step(self, action: np.ndarray) -> Step:
        forced, executed = self.press_fire, None
        action = self.actions.to_env(action)
        if self.fire_action is not None and forced.any():
            action = executed = np.where(forced, self.fire_action, action)
        try:
            obs, reward, terminated, truncated, info = self.env.step(action)
        except FAILURES as error:  # ale-py steps all games at once and does not say which one failed
            seeds = [self.seed_of(slot) for slot in range(self.count)]
            what = f"failed on the actions {action.tolist()} (seeds {seeds}): {told(error, __file__)}"
            raise EnvError(*numbered(self.cfg.name, self.stream, self.worker, self.count), None, what) from error
        frame, lives = info["episode_frame_number"], info["lives"]
        # This row only reset the game. Some games end with lives left; others are no longer than the next one's no-ops.
        began = (frame < self.frame) | self.over
        if self.fire_action is not None:
            self.press_fire = (lives < self.lives) & (lives > 0) & ~began
        valid = ~(began | forced)
        self.frame, self.lives = frame, lives
        self.over = truncated | (terminated & (lives == 0))
        reward = reward.astype(np.float32)
        return Step({"observation": obs}, reward, terminated, truncated, valid, began, {}, executed=executed)

    def close(self) -> None:
        self.env.close()


class ScreenStack:
    """Makes AtariEnv's observations from colour screens of another source; they equal ale-py's within 1 of 255."""

    LUMINANCE = (0.2989, 0.587, 0.114)  # weights of red, green and blue, by which ALE derives its grey palette

    def __init__(self, cfg: AtariConfig):
        self.cfg = cfg
        self.reset()

    def reset(self) -> None:
        """Starts a new game. Frames before the first one are black, as in training."""
        self.frames = np.zeros((self.cfg.stack, *self.cfg.frame), dtype=np.uint8)

    def push(self, screens: np.ndarray) -> np.ndarray:
        """Adds a screen and returns the observation [stack, size, size] uint8, in colour [stack, size, size, 3].

        screens: [H, W, 3] uint8, or the last two frames of a decision [2, H, W, 3], whose maximum is taken against
        flicker.
        """
        screen = screens.astype(np.float64)
        if self.cfg.grayscale:
            screen = np.rint(screen @ self.LUMINANCE)[..., None]
        screen = screen.max(0) if screen.ndim == 4 else screen
        rows, columns = (_area_weights(length, self.cfg.side) for length in screen.shape[:2])
        small = np.rint(np.einsum("hi,ijc,wj->hwc", rows, screen, columns, optimize=True)).astype(np.uint8)
        self.frames = np.concatenate((self.frames[1:], small.reshape(1, *self.cfg.frame)))
        return self.frames


def _area_weights(length: int, size: int) -> np.ndarray:
    """Weights [size, length] by which each of `size` pixels is the mean of the part of `length` pixels that it covers.

    This is what OpenCV's INTER_AREA does when it shrinks an image.
    """
    edges = np.linspace(0.0, length, size + 1)
    pixels = np.arange(length)
    covered = np.minimum(edges[1:, None], pixels + 1) - np.maximum(edges[:-1, None], pixels)
    return np.clip(covered, 0.0, None) * size / length


def make_spec(cfg: AtariConfig) -> EnvSpec:
    """Makes the game once to read its action set. Raises UserError if ale-py does not have the game."""
    ale = import_ale()
    if cfg.name not in games():
        raise UserError(f"{cfg.name} is not a game of ale-py {ale.__version__}")
    ale.ALEInterface.setLoggerMode(ale.LoggerMode.Error)
    interface = ale.ALEInterface()
    interface.loadROM(ale.roms.get_rom_path(games()[cfg.name]))
    actions = interface.getLegalActionSet() if cfg.full_action_space else interface.getMinimalActionSet()
    pixels = Box(shape=(cfg.stack, *cfg.frame), dtype="uint8", low=(0.0,), high=(255.0,), stacked=True)
    return EnvSpec(
        name=cfg.name,
        obs={"observation": pixels},
        action=Discrete(n=len(actions)),
        action_repeat=cfg.frame_skip,
        stack=cfg.stack,
        max_episode_steps=cfg.max_frames // cfg.frame_skip,
        limit_option=f"env.max_frames ({cfg.frame_skip} frames a step)",
    )
