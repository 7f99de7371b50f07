"""rlrun watch RUN_DIR [episodes=1 checkpoint=last|best|<env steps> greedy=true seed=0 max_steps=5000 gif=true]
                    [imagine=false window=false env=NAME]

Plays full games with the trained policy and writes them to RUN_DIR/videos/<env steps>-seed<seed>.mp4. A smaller gif is
written next to it. A run that learnt from data alone is played where this machine has an environment with the name and
the spaces of that of the data; env=NAME names another one.

window=true shows the games in a window in place of files, as fast as the environment says. It needs a display. Escape,
or closing the window, ends it.

imagine=true shows what the run's world model imagines beside what was true (<env steps>-seed<seed>-imagined.mp4). Of
every 50 observations of a game the model sees the first 5; from then on it knows the actions alone. Images are shown
true, imagined and as their difference; numbers are shown as curves, and a picture (.png) has those of the whole game.
Where an observation is the whole state (CartPole-v1, Pendulum-v1), the environment draws the imagined one as well.
Frames around imagined pictures are green while the model sees, and red while it does not. Mean errors at 1, 5, 15 and
30 steps behind the last observation that it saw are printed."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from rlrun.cli import run_dir_argument, take_trust
from rlrun.commands.evaluate import DEFAULTS, PlayOptions
from rlrun.config.types import parse_assignments, typed
from rlrun.core.errors import RunFailed, UserError
from rlrun.core.installing import install_line
from rlrun.core.long_games import LongGames, warn
from rlrun.core.open_loop import STEPS
from rlrun.core.passwords import masked
from rlrun.core.ranges import Count


@dataclass(frozen=True, kw_only=True)
class WatchOptions(PlayOptions):
    max_steps: Annotated[int, Count]
    gif: bool
    imagine: bool
    window: bool


GIF_FRAMES = 600  # more frames would make a file of tens of megabytes
GIF_IMAGINED = 150  # of frames with curves, which are larger
GIF_RATE = 15  # a gif has about so many of the frames of a second
UNKNOWN = "unknown: no game ended (max_steps=N plays up to N steps)"
NOT_WRITTEN = "the film could not be written to its end: what ffmpeg printed above says why"


def main(words: list[str]) -> int:
    if any(word in ("-h", "--help") for word in words):
        print(__doc__)
        return 0
    trusted, words = take_trust(words)
    path, rest = run_dir_argument(words, "watch")
    own = {"episodes": 1, "max_steps": 5000, "gif": True, "imagine": False, "window": False}
    options = typed(WatchOptions, DEFAULTS | own | parse_assignments(rest))
    print(f"rlrun watch: {path}", flush=True)
    if options.window:
        return in_window(path, options, trusted)
    try:
        import imageio_ffmpeg  # noqa: F401
        from PIL import Image  # noqa: F401
    except ImportError:
        raise UserError(f"videos need imageio-ffmpeg and pillow: {install_line('video')}") from None
    import gymnasium
    import torch

    from rlrun.loggers.mlflow import add_artifact, store_root
    from rlrun.runtime.played_env import in_environment
    from rlrun.runtime.trained import load

    torch.set_num_threads(1)
    trained = in_environment(load(path, str(options.checkpoint), trusted), options.env)
    folder = path / "videos"
    name = f"{trained.clock.env_steps:012d}-seed{options.seed}{'-imagined' * options.imagine}"
    files: list[Path] = []
    movie, kept = folder / f"{name}.mp4", GIF_IMAGINED if options.imagine else GIF_FRAMES
    try:
        with written_whole(movie) as part, Film(part, kept if options.gif else 0) as film:
            if options.imagine:
                returns = imagined(trained, options, files, folder / f"{name}.png", film.show)
            else:
                returns = record(trained, options, film.show)
    except gymnasium.error.DependencyNotInstalled as error:
        raise UserError(f"{trained.spec.name} cannot be drawn: {error}") from None
    print(f"{film.count} frames, return {', '.join(f'{r:g}' for r in returns) or UNKNOWN}\n{movie}")
    if options.gif:
        picture = folder / f"{name}.gif"
        with written_whole(picture) as part:
            film.write_gif(part)
        print(picture)
    for file in files:
        print(file)
    try:
        mlflow = trained.config.run.logger.get("mlflow") or {}
        # The store of a run from elsewhere may have come with it.
        for file in (movie, *files) if trained.own else ():
            add_artifact(path, file, mlflow.get("uri"), store_root(trained.config.run.runs_root, path))
    except Exception as error:
        print(f"rlrun: mlflow: the video was not added: {masked(str(error))}")
    return 0


def in_window(path: Path, options: WatchOptions, trusted: bool) -> int:
    """Plays in a window. Raises UserError where there is no display."""
    if options.imagine:
        raise UserError("window=true shows games; imagine=true writes its pictures to files: choose one of them")
    from rlrun.commands.window import Window

    with Window(f"rlrun: {path}") as window:
        import gymnasium
        import torch

        from rlrun.runtime.played_env import in_environment
        from rlrun.runtime.trained import load

        torch.set_num_threads(1)
        trained = in_environment(load(path, str(options.checkpoint), trusted), options.env)
        try:
            returns = record(trained, options, window.show, say=lambda text: None)  # the window shows that it goes on
        except gymnasium.error.DependencyNotInstalled as error:
            raise UserError(f"{trained.spec.name} cannot be drawn: {error}") from None
    print(f"return {', '.join(f'{r:g}' for r in returns) or UNKNOWN}")
    return 0


class DrawnEnv(NamedTuple):
    """An environment that is played, and how its pictures are made."""

    env: Any
    frame: Callable[[], Any] | None  # the picture of now [H, W, 3], or None; None: the mirror has it
    mirror: Any  # a second environment, which takes the same actions and whose observations are pictures, or None
    rate: float  # frames per second


def drawn_env(trained: Any, seeds: Any) -> DrawnEnv:
    """Makes the environment of a run so that it can be drawn. Raises UserError if it cannot."""
    from rlrun.envs import gym
    from rlrun.envs.agent_games import AgentsConfig
    from rlrun.envs.agents import AgentsEnv
    from rlrun.envs.atari import AtariConfig, AtariEnv
    from rlrun.envs.gym_env import GymEnv
    from rlrun.envs.registry import Factory

    cfg, spec = trained.config.env, trained.spec
    if isinstance(cfg, AtariConfig):
        # ale-py's vector environment cannot render. A second one with the same seeds and actions plays the same game in
        # colour and full size.
        args = (seeds, "watch", 0, 1)
        game = AtariEnv(cfg, spec, *args, learning=False)
        full = dataclasses.replace(cfg, stack=1)
        screen = AtariEnv(full, spec, *args, learning=False, height=210, width=160, grayscale=False)
        return DrawnEnv(game, None, screen, 60 / cfg.frame_skip)
    if not isinstance(cfg, AgentsConfig) and "rgb_array" not in gym.render_modes(cfg):
        raise UserError(f"{spec.name} cannot draw itself: rgb_array is not one of its render_modes")
    env = Factory(cfg=cfg, spec=spec, seeds=seeds, stream="watch", learning=False, render=True)(0, 1)
    drawn: Any = env
    while not isinstance(drawn, AgentsEnv | GymEnv):
        drawn = drawn.env
    shown, rate = (drawn.games[0].env, 10) if isinstance(drawn, AgentsEnv) else (drawn.env.envs[0], 30)
    return DrawnEnv(env, drawn.frame, None, float(getattr(shown, "metadata", {}).get("render_fps", rate)))


def record(
    trained: Any, options: WatchOptions, show: Callable[[Any, float], bool], say: Callable[[str], None] = warn
) -> list[float]:
    """Plays, and returns the returns of finished episodes.

    show(frame [H, W, 3], frames per second) is given every frame, and returns whether more are wanted. say: is told of
    games that go on for long."""
    import numpy as np

    from rlrun.core.env import paid
    from rlrun.core.seeding import Seeds

    env, draw, mirror, rate = drawn_env(trained, Seeds(options.seed))
    returns: list[float] = []
    try:
        obs = env.reset(0)
        shown: Any = None if mirror is None else mirror.reset(0)
        is_first, total, reward = np.ones(env.count, dtype=bool), 0.0, np.zeros(env.count)
        trained.reset()
        # The option that ends a film is another one than that of the environment.
        long = LongGames(dataclasses.replace(trained.spec, limit_option=f"max_steps={options.max_steps}"), say)
        begun = 0  # the step in which the game began
        for count in range(options.max_steps):
            frame = shown["observation"][0, -1] if draw is None else draw()
            if np.ndim(frame) != 3:  # nothing, or text
                raise UserError(f"{trained.spec.name} cannot be drawn: its render() returns no picture [H, W, 3]")
            if not show(frame, rate):
                break
            trained.reset(is_first)
            action = trained.policy_action(obs, "greedy" if options.greedy else "explore", reward)
            step = env.step(action)
            if mirror is not None:
                mirrored = mirror.step(action)
                shown = mirrored.obs
                if mirrored.reward[0] != step.reward[0]:
                    raise RuntimeError("the recorded game is no longer the game that is played")
            obs, is_first, reward = step.obs, step.is_first, step.reward
            total += float(paid(env.spec, step)[env.spec.counts].sum())
            if is_first.all():
                returns.append(total)
                total, begun = 0.0, count + 1
                long.ended()
                if len(returns) == options.episodes:
                    break
            long.look("playing", count + 1 - begun)
    finally:
        env.close()
        if mirror is not None:
            mirror.close()
    return returns


def imagined(
    trained: Any, options: WatchOptions, files: list[Path], curves: Path, show: Callable[[Any, float], bool]
) -> list[float]:
    """Plays as record() does, and shows frames of what was true and what was imagined. The curves of all games are
    drawn to the file `curves`, which is added to `files`."""
    from rlrun.bench.imagined import film, whole
    from rlrun.runtime.imagined import imagine, pictures, play, world_model

    model = world_model(trained)
    mode: Any = "greedy" if options.greedy else "explore"
    played = play(trained, options.episodes, options.max_steps, mode, options.seed)
    made = imagine(model, played.batch, options.seed)
    frames = film(made.excerpts, pictures(trained, played, made), trained.spec.stack)
    curves.parent.mkdir(exist_ok=True)
    whole(made.excerpts, curves)
    files.append(curves)
    print("errors behind the last observation that the model saw:")
    for steps in STEPS:
        if (rec := made.errors.get(f"open_loop_rec_{steps}")) is not None:
            reward = made.errors[f"open_loop_reward_{steps}"]
            print(f"  {steps:>2} step{'s' * (steps > 1)}: observation {rec:.4g} (as learn/rec), reward {reward:.4g}")
    for frame in frames:
        show(frame, played.rate)
    return played.returns


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Gives the name under which a file is to be written. The file has its own name once it is whole, and nothing is
    left of one that is interrupted."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield part
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


class Film:
    """Writes frames to an mp4 as they come, and keeps of the first ones those that a gif has.

    It is H.264, which every browser plays."""

    def __init__(self, path: Path, kept: int):
        """kept: how many frames from the beginning the gif covers."""
        self.path, self.kept = path, kept
        self.count, self.rate = 0, 0.0
        self.frames: list[Any] = []  # of the gif
        self.writer: Any = None

    def __enter__(self) -> Film:
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        import imageio_ffmpeg

        if self.writer is None:
            return
        self.writer.close()
        if kind is None:
            try:
                imageio_ffmpeg.count_frames_and_secs(str(self.path))
            except RuntimeError:
                raise RunFailed(NOT_WRITTEN) from None

    def show(self, frame: Any, rate: float) -> bool:
        """Adds a frame [H, W, 3]. All frames have the same size and rate."""
        fitting = fitted(frame)
        if self.writer is None:
            self.rate = rate
            self._begin(fitting.shape[1::-1])
        if self.count < self.kept and self.count % self._every == 0:
            self.frames.append(frame)
        self.count += 1
        try:
            self.writer.send(fitting)
        except OSError:
            raise RunFailed(NOT_WRITTEN) from None
        return True

    @property
    def _every(self) -> int:
        """A gif has one of so many frames."""
        return max(1, round(self.rate / GIF_RATE))

    def _begin(self, size: tuple[int, int]) -> None:
        import imageio_ffmpeg

        self.path.parent.mkdir(exist_ok=True)
        output = ["-crf", "23", "-f", "mp4"]
        self.writer = imageio_ffmpeg.write_frames(
            str(self.path), size, fps=self.rate, codec="libx264", macro_block_size=2, output_params=output
        )
        self.writer.send(None)

    def write_gif(self, path: Path) -> None:
        from PIL import Image

        images = [Image.fromarray(frame).quantize(64) for frame in self.frames]
        duration = round(1000 * self._every / self.rate)
        images[0].save(path, "GIF", save_all=True, append_images=images[1:], duration=duration, loop=0, optimize=False)


def fitted(frame: Any) -> Any:
    """A frame as the codec takes it: small ones are enlarged by repeating pixels, and odd sizes padded to even ones."""
    import numpy as np

    height, width = frame.shape[:2]
    scale = max(1, 480 // max(height, width))
    pad = ((0, height * scale % 2), (0, width * scale % 2), (0, 0))
    return np.ascontiguousarray(np.pad(frame.repeat(scale, 0).repeat(scale, 1), pad, mode="edge"))
