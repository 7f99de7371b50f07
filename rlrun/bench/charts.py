"""Draws curves and tables with matplotlib, in Okabe and Ito's colours, which colour-blind people can tell apart."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rlrun.bench.stats import INTERVAL_RUNS, t95
from rlrun.core.checkpoint import write_atomically

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
GREY = "#8a8f98"
FEW = 3  # curves with at most so many points show them as dots


class Curve(NamedTuple):
    """The points of one run."""

    x: Sequence[float]
    y: Sequence[float]


class Group(NamedTuple):
    """Runs that differ only in their seed."""

    label: str
    curves: list[Curve]


def figure(width: float, height: float, **options: Any) -> Any:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update(
        {
            "font.family": "DejaVu Sans",
            "font.size": 9,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.edgecolor": "#b9bec7",
            "axes.grid": True,
            "grid.color": "#e6e8ec",
            "grid.linewidth": 0.8,
            "axes.axisbelow": True,
            "svg.fonttype": "none",
            "svg.hashsalt": "rlrun",
            "text.parse_math": False,  # a dollar sign in a user's text is a dollar sign
        }
    )
    return plt.subplots(figsize=(width, height), **options)


def band(curves: Sequence[Curve], points: int = 200) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """x, mean, low and high of several runs, each of shape [points], over the range of x that all runs have reached.

    low and high bound the 95% interval of the mean, from Student's t because there are few runs. Of fewer than
    INTERVAL_RUNS runs they are the lowest and the highest value: an interval from two or three runs is so wide that it
    reaches returns that no run has seen.
    """
    first, last = max(curve.x[0] for curve in curves), min(curve.x[-1] for curve in curves)
    x = np.linspace(first, max(last, first), points)
    values = np.stack([np.interp(x, curve.x, curve.y) for curve in curves])
    mean = values.mean(axis=0)
    if len(curves) < INTERVAL_RUNS:
        return x, mean, values.min(axis=0), values.max(axis=0)
    error = t95(len(curves)) * values.std(axis=0, ddof=1) / np.sqrt(len(curves))
    return x, mean, mean - error, mean + error


def draw(axis: Any, groups: Sequence[Group], label: str, scale: float = 1.0) -> None:
    """Draws the mean and the band over each group's seeds (band()), with single runs as thin lines behind them."""
    for index, group in enumerate(groups):
        colour = COLOURS[index % len(COLOURS)]
        curves = [curve for curve in group.curves if len(curve.x)]
        if not curves:
            continue
        # Where no x is shared by all curves, no mean can be taken.
        apart = max(curve.x[0] for curve in curves) >= min(curve.x[-1] for curve in curves)
        if len(curves) == 1 or apart:
            for number, curve in enumerate(curves):
                point = "o" if len(curve.x) <= FEW else None
                axis.plot(
                    np.asarray(curve.x) / scale,
                    curve.y,
                    color=colour,
                    linewidth=1.8,
                    marker=point,
                    markersize=4,
                    label=None if number else group.label,
                )
            continue
        for curve in curves:
            axis.plot(np.asarray(curve.x) / scale, curve.y, color=colour, linewidth=0.7, alpha=0.35)
        x, mean, low, high = band(curves)
        axis.plot(x / scale, mean, color=colour, linewidth=2.0, label=group.label)
        axis.fill_between(x / scale, low, high, color=colour, alpha=0.15, linewidth=0)
    axis.set_xlabel(label)


def unit(largest: float) -> tuple[float, str]:
    """The divisor and the name of the unit for numbers up to `largest`, such as (1e6, "millions")."""
    return (1e6, "millions") if largest >= 2e6 else (1e3, "thousands") if largest >= 2e3 else (1.0, "")


def time_unit(largest: float) -> tuple[float, str]:
    return (3600.0, "hours") if largest >= 2 * 3600 else (60.0, "minutes") if largest >= 120 else (1.0, "seconds")


def learning_curves(
    steps: Sequence[Group], times: Sequence[Group], metric: str, title: str, logarithmic: bool = False
) -> Any:
    """Draws the same runs side by side, against env steps and against wall time. logarithmic: the metric's axis is."""
    made, axes = figure(10.0, 3.6, ncols=2, sharey=True)
    scale, name = unit(max((curve.x[-1] for group in steps for curve in group.curves if len(curve.x)), default=1.0))
    draw(axes[0], steps, f"env steps, {name}".rstrip(", "), scale)
    scale, name = time_unit(
        max((curve.x[-1] for group in times for curve in group.curves if len(curve.x)), default=1.0)
    )
    draw(axes[1], times, f"wall time, {name}", scale)
    axes[0].set_ylabel(metric)
    if logarithmic:
        axes[0].set_yscale("log")
    axes[0].legend(frameon=False, fontsize=8)
    made.suptitle(title, fontsize=10, x=0.01, ha="left")
    made.tight_layout()
    return made


def small_multiples(series: Sequence[tuple[str, Sequence[float], Sequence[float]]], columns: int = 3) -> Any:
    """Draws one small chart for each (name, env steps, values)."""
    count = -(-len(series) // columns)
    made, axes = figure(10.0, 2.1 * count, nrows=count, ncols=columns, squeeze=False)
    scale, name = unit(max((x[-1] for _, x, _ in series if len(x)), default=1.0))
    for axis, (label, x, y) in zip(axes.flat, series):
        axis.plot(np.asarray(x) / scale, y, color=COLOURS[0], linewidth=1.2)
        axis.set_title(label, fontsize=9, loc="left")
    for axis in axes.flat[len(series) :]:
        axis.set_visible(False)
    for axis in axes[-1]:
        axis.set_xlabel(f"env steps, {name}".rstrip(", "))
    made.tight_layout()
    return made


def growth(axes: Sequence[tuple[str, Sequence[tuple[str, float]]]], near: float) -> Any:
    """Draws speed along each axis, given as (title, [(value, env steps/s)]).

    A dashed line shows the share `near` of the highest speed.
    """
    made, places = figure(3.2 * len(axes) + 0.6, 3.0, ncols=len(axes), squeeze=False)
    for index, (axis, (title, points)) in enumerate(zip(places.flat, axes, strict=True)):
        rates = [rate for _, rate in points]
        axis.plot(range(len(points)), rates, "o-", color=COLOURS[index % len(COLOURS)], linewidth=1.4, markersize=4)
        if rates:
            axis.axhline(near * max(rates), color=GREY, linewidth=0.8, linestyle="--")
            axis.set_ylim(0, 1.1 * max(rates))
        axis.set_xticks(
            range(len(points)), [label.replace(" ", "\n").replace("=", "=\n") for label, _ in points], fontsize=7
        )
        axis.set_xlabel(title)
    places.flat[0].set_ylabel("env steps/s")
    made.tight_layout()
    return made


class Bars(NamedTuple):
    """One game of a table."""

    label: str
    published: float | None
    paper: float | None
    scores: list[float]
    partial: bool


def table_bars(title: str, bars: Sequence[Bars], paper: str | None) -> Any:
    """Draws the published, the paper's and the measured score of every game side by side; points are seeds.

    Scores are shown as shares of the published figures where all cells have one.
    """
    inches = max(5.0, 1.1 * len(bars) + 2.5)
    in_a_row = 3 if inches >= 7.0 else 1  # names of the colours that fit beside each other
    made, axis = figure(inches, 3.2 if in_a_row == 3 else 3.6)
    width = 0.26
    shares = all(bar.published for bar in bars)
    for index, bar in enumerate(bars):
        base = abs(bar.published) if shares and bar.published else 1.0
        if bar.published is not None:
            axis.bar(index - width, bar.published / base, width, color=GREY)
        if bar.paper is not None:
            axis.bar(index, bar.paper / base, width, color="#cfd3da", label=paper if index == 0 else None)
        if bar.scores:
            mean = sum(bar.scores) / len(bar.scores)
            axis.bar(
                index + width,
                mean / base,
                width,
                color=COLOURS[0],
                alpha=0.45 if bar.partial else 1.0,
                hatch="//" if bar.partial else None,
                edgecolor="white",
            )
            axis.plot(
                [index + width] * len(bar.scores),
                [score / base for score in bar.scores],
                "o",
                color="#222222",
                markersize=3,
            )
            if bar.partial:
                top = max(0.0, *(score / base for score in bar.scores))
                axis.annotate(
                    "partial",
                    (index + width, top),
                    (0, 4),  # points above the seeds
                    textcoords="offset points",
                    ha="center",
                    va="bottom",
                    fontsize=7,
                    rotation=90,
                )
    axis.bar(0, 0, width, color=GREY, label="RLlib, published")
    axis.bar(0, 0, width, color=COLOURS[0], label="rlrun, measured (points: seeds)")
    axis.set_xticks(range(len(bars)), [bar.label for bar in bars], fontsize=8)
    if shares:
        axis.axhline(1.0, color=GREY, linewidth=0.8, linestyle="--")
    axis.set_ylabel("share of the published figure" if shares else "return")
    axis.grid(axis="x", visible=False)
    axis.set_xlim(-0.6, len(bars) - 0.4)
    below = -0.22 if any("\n" in bar.label for bar in bars) else -0.12  # labels with two lines need more room
    axis.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(0.0, below), ncols=in_a_row)
    made.suptitle(title, fontsize=10, x=0.01, ha="left")
    made.tight_layout()
    return made


def svg(made: Any) -> str:
    """The figure as SVG text that can be embedded in an HTML page. Closes the figure."""
    import matplotlib.pyplot as plt

    buffer = io.StringIO()
    made.savefig(buffer, format="svg", metadata={"Date": None})
    plt.close(made)
    text = buffer.getvalue()
    return re.sub(r"<metadata>.*?</metadata>\s*", "", text[text.index("<svg") :], flags=re.S)


def save(made: Any, path: Any, dpi: int = 130) -> None:
    """Saves the figure as PNG or SVG, depending on the path's suffix, and closes it. A symbolic link is replaced."""
    import matplotlib.pyplot as plt

    options = {"metadata": {"Date": None}} if str(path).endswith(".svg") else {"dpi": dpi}
    buffer = io.BytesIO()
    made.savefig(buffer, format=Path(path).suffix[1:], **options)
    plt.close(made)
    write_atomically(Path(path), buffer.getvalue())
