"""Draws what a world model imagined beside what was true: numbers as curves, images as strips of true, imagined and
difference."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlrun.bench import charts
from rlrun.core.open_loop import Excerpt, joined

MOST = 22  # entries that are drawn as curves, besides reward and continuation
COLUMNS = 4  # of small charts
SIDE = 128  # least height of an image in a strip, in pixels; smaller ones are enlarged by repeating pixels
BORDER = 3  # pixels around an imagined image, before it is enlarged
LEAST = 0.05  # smallest range of a chart's axis
RATE = 15  # pictures per second
SEES, DREAMS = (0, 158, 115), (213, 94, 0)  # colours of borders
NAMES = ("true", "imagined")
DPI = 100

Pixels = np.ndarray  # [H, W, 3] uint8


# -- numbers -----------------------------------------------------------------------------------------------------------


def entries(shown: Excerpt) -> list[tuple[str, np.ndarray, np.ndarray]]:
    """(name, true [N], imagined [N]) of the numbers of observations, then of reward and continuation. Of more than
    MOST numbers, those that vary most are left."""
    found = []
    for name, true in shown.true.items():
        if true.ndim == 2:
            found += [(f"{name}[{i}]", true[:, i], shown.said[name][:, i]) for i in range(true.shape[1])]
    if len(found) > MOST:
        spread = [np.ptp(np.concatenate((true, said))) for _, true, said in found]
        found = [found[i] for i in sorted(np.argsort(spread, kind="stable")[-MOST:])]
    found.append(("reward", *shown.reward.T))
    return [*found, ("goes on (1) or terminates (0)", *shown.go_on.T)]


def curves(shown: Excerpt, columns: int = COLUMNS, width: float = 10.0) -> Any:
    """A figure with a small chart for each entry, over the rows; where the model saw observations it is shaded."""
    series = entries(shown)
    rows = -(-len(series) // columns)
    figure, axes = charts.figure(width, 1.5 * rows + 0.7, nrows=rows, ncols=columns, squeeze=False)
    x = np.arange(len(shown.seen))
    edges = np.flatnonzero(np.diff(np.concatenate(([False], shown.seen, [False])).astype(int)))
    for axis, (name, true, said) in zip(axes.flat, series):
        for begin, end in edges.reshape(-1, 2):
            axis.axvspan(begin - 0.5, end - 0.5, color=_share(SEES), alpha=0.18, linewidth=0)
        axis.plot(x, true, color="#222222", linewidth=1.2, label="true")
        axis.plot(x, said, color=_share(DREAMS), linewidth=1.2, label="imagined")
        axis.set_title(name, fontsize=8, loc="left")
        axis.tick_params(labelsize=7)
        low, high = axis.get_ylim()
        if high - low < LEAST:  # errors of a thousandth should not look large
            axis.set_ylim((low + high - LEAST) / 2, (low + high + LEAST) / 2)
        axis.set_xlim(-0.5, max(len(x) - 0.5, 0.5))
    for axis in axes.flat[len(series) :]:
        axis.set_visible(False)
    handles, labels = axes.flat[0].get_legend_handles_labels()
    seen = figure.patch.__class__((0, 0), 1, 1, color=_share(SEES), alpha=0.18)
    figure.legend(
        [*handles, seen], [*labels, "observations seen"], loc="upper right", ncols=3, frameon=False, fontsize=8
    )
    figure.tight_layout(rect=(0, 0, 1, 1 - 0.3 / figure.get_figheight()))
    return figure


def _share(colour: tuple[int, int, int]) -> tuple[float, ...]:
    return tuple(part / 255 for part in colour)


class Panel:
    """The curves of one excerpt as pixels, with a line that moves over them."""

    def __init__(self, shown: Excerpt):
        import matplotlib.pyplot as plt

        count = len(entries(shown))
        figure = curves(shown, columns := min(count, 2 if count <= 8 else COLUMNS), width=3.2 * columns)
        figure.set_dpi(DPI)
        figure.canvas.draw()
        self.pixels: Pixels = np.asarray(figure.canvas.buffer_rgba())[..., :3].copy()
        height = len(self.pixels)
        self.places = []  # of each chart: top and bottom row of pixels, and the column of pixels of each row of time
        for axis in figure.axes[:count]:
            box = axis.get_window_extent()
            at = axis.transData.transform([(row, 0.0) for row in range(len(shown.seen))])[:, 0].round().astype(int)
            self.places.append((height - round(box.y1), height - round(box.y0), at))
        plt.close(figure)

    def at(self, row: int) -> Pixels:
        made = self.pixels.copy()
        for top, bottom, at in self.places:
            made[max(top, 0) : bottom, at[row]] = (0, 114, 178)
        return made


# -- images ------------------------------------------------------------------------------------------------------------


def colours(image: np.ndarray, stack: int) -> Pixels:
    """An image [C, H, W] from 0 to 1 in colours; of stacked frames the newest one."""
    channels = len(image) // stack if len(image) % stack == 0 else len(image)
    newest = image[-channels:]
    newest = newest[:3] if channels >= 3 else newest[-1:].repeat(3, 0)
    return (newest.clip(0.0, 1.0) * 255.0).round().astype(np.uint8).transpose(1, 2, 0)


def framed(image: Pixels, colour: tuple[int, int, int]) -> Pixels:
    made = np.empty((image.shape[0] + 2 * BORDER, image.shape[1] + 2 * BORDER, 3), np.uint8)
    made[:] = colour
    made[BORDER:-BORDER, BORDER:-BORDER] = image
    return made


def strip(shown: Excerpt, row: int, stack: int) -> Pixels | None:
    """The images of a row: true above, imagined below, and below that half their difference around grey. The frame is
    green where the model sees the image, and red where it does not. None without images."""
    made = []
    for name, true in shown.true.items():
        if true.ndim != 4:
            continue
        real, dream = colours(true[row], stack), colours(shown.said[name][row], stack)
        apart = ((dream.astype(np.int16) - real + 255) // 2).astype(np.uint8)
        frame = SEES if shown.seen[row] else DREAMS
        column = np.concatenate([framed(real, (255, 255, 255)), framed(dream, frame), framed(apart, (255, 255, 255))])
        times = max(1, -(-SIDE // len(real)))
        made.append(column.repeat(times, 0).repeat(times, 1))
    return beside(made) if made else None


def named(image: Pixels, text: str) -> Pixels:
    """The image with a word in its upper left corner."""
    from PIL import Image, ImageDraw

    made = Image.fromarray(image)
    draw = ImageDraw.Draw(made)
    draw.rectangle(draw.textbbox((6, 4), text), fill=(255, 255, 255))
    draw.text((6, 4), text, fill=(0, 0, 0))
    return np.asarray(made)


def padded(image: Pixels, height: int, width: int) -> Pixels:
    below, right = height - image.shape[0], width - image.shape[1]
    return np.pad(image, ((0, below), (0, right), (0, 0)), constant_values=255)


def beside(images: Sequence[Pixels]) -> Pixels:
    height = max(len(image) for image in images)
    return np.concatenate([padded(image, height, image.shape[1]) for image in images], 1)


def below(images: Sequence[Pixels]) -> Pixels:
    width = max(image.shape[1] for image in images)
    return np.concatenate([padded(image, len(image), width) for image in images])


def scaled(image: Pixels, height: int) -> Pixels:
    from PIL import Image

    width = round(image.shape[1] * height / image.shape[0])
    return np.asarray(Image.fromarray(image).resize((width, height), Image.Resampling.BOX))


# -- together ----------------------------------------------------------------------------------------------------------


def picture(folder: Path, name: str, excerpts: Sequence[Excerpt], stack: int) -> Path:
    """Writes one picture of some sequences to the folder, and returns its file: a GIF of images side by side, or a PNG
    with the curves of the first sequence where there are none."""
    folder.mkdir(exist_ok=True)
    if strip(excerpts[0], 0, stack) is None:
        file = folder / f"{name}.png"
        charts.save(curves(excerpts[0]), file, dpi=DPI)
        return file
    from PIL import Image

    length = max(len(one.seen) for one in excerpts)
    frames = []
    for row in range(length):  # a shorter sequence stays at its last row
        strips = [strip(one, min(row, len(one.seen) - 1), stack) for one in excerpts]
        frames.append(Image.fromarray(beside([one for one in strips if one is not None])).quantize(64))
    file = folder / f"{name}.gif"
    frames[0].save(file, save_all=True, append_images=frames[1:], duration=1000 // RATE, loop=0, optimize=False)
    return file


def film(excerpts: Sequence[Excerpt], drawn: Sequence[Sequence[Sequence[Pixels]]], stack: int) -> list[Pixels]:
    """The frames of a film over all rows of excerpts: pictures on the left, on the right the curves of the excerpt with
    a line at the row.

    drawn: for every excerpt and row the environment's pictures of the true and the imagined observation, or fewer."""
    frames: list[Pixels] = []
    for shown, own in zip(excerpts, drawn, strict=True):
        panel = Panel(shown)
        for row in range(len(shown.seen)):
            images = strip(shown, row, stack)
            left = [] if images is None else [images]
            for number, image in enumerate(own[row]):
                colour = (255, 255, 255) if number == 0 else SEES if shown.seen[row] else DREAMS
                left.append(framed(named(scaled(image, 240), NAMES[number]), colour))
            frames.append(beside([below(left), panel.at(row)]) if left else panel.at(row))
    height, width = (max(frame.shape[axis] for frame in frames) for axis in (0, 1))
    return [padded(frame, height, width) for frame in frames]


def whole(excerpts: Sequence[Excerpt], file: Path) -> None:
    """Draws the curves of excerpts that follow each other in one picture."""
    charts.save(curves(joined(list(excerpts)), columns=2, width=12.0), file)
