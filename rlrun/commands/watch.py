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
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from rlrun.cli import run_dir_argument, take_trust
from rlrun.commands.evaluate import DEFAULTS, PlayOptions
from rlrun.config.types import parse_assignments, typed
from rlrun.core.errors import UserError
from rlrun.core.installing import install_line
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

    from rlrun.loggers.mlflow import add_artifact
    from rlrun.runtime.played_env import in_environment
    from rlrun.runtime.trained import load

    torch.set_num_threads(1)
    trained = in_environment(load(path, str(options.checkpoint), trusted), options.env)
    folder = path / "videos"
    name = f"{trained.clock.env_steps:012d}-seed{options.seed}{'-imagined' * options.imagine}"
    files: list[Path] = []
    try:
        if options.imagine:
            frames, rate, returns = imagined(trained, options, files, folder / f"{name}.png")
        else:
            frames, rate, returns = record(trained, options)
    except gymnasium.error.DependencyNotInstalled as error:
        raise UserError(f"{trained.spec.name} cannot be drawn: {error}") from None
    folder.mkdir(exist_ok=True)
    movie = folder / f"{name}.mp4"
    write_mp4(movie, frames, rate)
    print(f"{len(frames)} frames, return {', '.join(f'{r:g}' for r in returns) or 'of no finished episode'}\n{movie}")
    if options.gif:
        picture = folder / f"{name}.gif"
        write_gif(picture, frames[: GIF_IMAGINED if options.imagine else GIF_FRAMES], rate)
        print(picture)
    for file in files:
        print(file)
    try:
        mlflow = trained.config.run.logger.get("mlflow") or {}
        for file in (movie, *files):
            add_artifact(path, file, mlflow.get("uri"), Path(trained.config.run.runs_root))
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
            _, _, returns = record(trained, options, window.show)
        except gymnasium.error.DependencyNotInstalled as error:
            raise UserError(f"{trained.spec.name} cannot be drawn: {error}") from None
    print(f"return {', '.join(f'{r:g}' for r in returns) or 'of no finished episode'}")
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
    from rlrun.envs.gym import GymEnv
    from rlrun.envs.stacked import Stacked, without_stack

    cfg, spec = trained.config.env, trained.spec
    if isinstance(cfg, AtariConfig):
        # ale-py's vector environment cannot render. A second one with the same seeds and actions plays the same game in
        # colour and full size.
        args = (seeds, "watch", 0, 1)
        env = AtariEnv(cfg, spec, *args, learning=False)
        full = dataclasses.replace(cfg, stack=1)
        screen = AtariEnv(full, spec, *args, learning=False, height=210, width=160, grayscale=False)
        return DrawnEnv(env, None, screen, 60 / cfg.frame_skip)
    plain = without_stack(spec)
    drawn: Any
    if isinstance(cfg, AgentsConfig):
        drawn = AgentsEnv(cfg, plain, seeds, "watch", 0, 1, render=True)
        rate = getattr(drawn.games[0].env, "metadata", {}).get("render_fps", 10)
    else:
        if "rgb_array" not in gym.render_modes(cfg):
            raise UserError(f"{spec.name} cannot draw itself: rgb_array is not one of its render_modes")
        drawn = GymEnv(cfg, plain, seeds, "watch", 0, 1, render=True)
        rate = drawn.env.envs[0].metadata.get("render_fps", 30)
    return DrawnEnv(Stacked(drawn, spec) if spec.stack > 1 else drawn, drawn.frame, None, float(rate))


def record(
    trained: Any, options: WatchOptions, show: Callable[[Any, float], bool] | None = None
) -> tuple[list, float, list[float]]:
    """The frames, each [H, W, 3], the frames per second, and the returns of finished episodes.

    show(frame, rate) is given every frame in place of the list, and returns whether more are wanted."""
    import numpy as np

    from rlrun.core.seeding import Seeds

    env, draw, mirror, rate = drawn_env(trained, Seeds(options.seed))
    frames: list = []
    returns: list[float] = []
    try:
        obs = env.reset(0)
        shown: Any = None if mirror is None else mirror.reset(0)
        is_first, total, reward = np.ones(env.count, dtype=bool), 0.0, np.zeros(env.count)
        trained.reset()
        for _ in range(options.max_steps):
            frame = shown["observation"][0, -1] if draw is None else draw()
            if frame is None:
                raise UserError(f"{trained.spec.name} has no rgb_array rendering")
            if show is None:
                frames.append(frame)
            elif not show(frame, rate):
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
            total += float(step.reward.sum())
            if is_first.all():
                returns.append(total)
                total = 0.0
                if len(returns) == options.episodes:
                    break
    finally:
        env.close()
        if mirror is not None:
            mirror.close()
    return frames, rate, returns


def imagined(trained: Any, options: WatchOptions, files: list[Path], curves: Path) -> tuple[list, float, list[float]]:
    """Plays as record() does, and returns frames of what was true and what was imagined. The curves of
    all games are drawn to the file `curves`, which is added to `files`."""
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
    return frames, played.rate, played.returns


def write_mp4(path: Path, frames: list, rate: float) -> None:
    """Writes H.264, which every browser plays. Odd sizes are padded to even ones, as the codec asks."""
    import imageio_ffmpeg
    import numpy as np

    height, width = frames[0].shape[:2]
    scale = max(1, 480 // max(height, width))  # small screens are enlarged by repeating pixels
    pad = ((0, height * scale % 2), (0, width * scale % 2), (0, 0))

    def fit(frame):
        return np.ascontiguousarray(np.pad(frame.repeat(scale, 0).repeat(scale, 1), pad, mode="edge"))

    size = fit(frames[0]).shape[1::-1]
    writer = imageio_ffmpeg.write_frames(
        str(path), size, fps=rate, codec="libx264", macro_block_size=2, output_params=["-crf", "23"]
    )
    writer.send(None)
    for frame in frames:
        writer.send(fit(frame))
    writer.close()


def write_gif(path: Path, frames: list, rate: float) -> None:
    from PIL import Image

    every = max(1, round(rate / 15))
    images = [Image.fromarray(frame).quantize(64) for frame in frames[::every]]
    images[0].save(
        path, save_all=True, append_images=images[1:], duration=round(1000 * every / rate), loop=0, optimize=False
    )
