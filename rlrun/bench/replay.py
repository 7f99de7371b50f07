"""Measures the replay alone on one thread: rows stored and fragments drawn per second, and memory, as capacity grows.

Rows are Atari's: 84x84 screens in stacks of 4, with each screen stored once. Fragments are 3-step transitions. With
prioritized replay, new priorities are written after every draw, as in training.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable
from typing import Any

import psutil
import torch

from rlrun.core.batch import Batch, Field, allocate, fragment_layout
from rlrun.core.schedule import Clock
from rlrun.dataflow.slots import Fragment, Header
from rlrun.replay.buffer import Replay
from rlrun.replay.layout import Layout, ReplayConfig
from rlrun.runtime.rundir import command_line, hardware, versions

ROWS, COLUMNS = 64, 8  # size of the stored fragments
BATCHES = (32, 512)
SECONDS = 1.0


def measure(kinds: list[ReplayConfig], capacities: list[int]) -> dict[str, Any]:
    """Measures these replays, such as a uniform and a prioritized one, at each capacity.

    Returns {"cells": [{name, capacity, adds, draws, memory_gb, planned_gb}], "hardware", "versions", "command"}, where
    adds is the rows stored per second and draws maps each batch size to the fragments drawn per second.
    """
    cells = []
    for capacity in capacities:
        for cfg in kinds:
            cells.append(_cell(dataclasses.replace(cfg, capacity=capacity)))
    return {"cells": cells, "hardware": hardware(), "versions": versions(), "command": command_line()}


def _cell(cfg: ReplayConfig) -> dict[str, Any]:
    screens = Field((4, 84, 84), torch.uint8)
    layout = Layout(
        obs={"observation": screens},
        action=Field((), torch.int64),
        record={},
        core={},
        core_every=1,
        block=COLUMNS,
        blocks=1,
        fragment_rows=ROWS,
        rows=3,
        rows_from=3,
        ends=True,
        starts_every=1,
        sequences=False,
        stack=4,
        capacity=cfg.capacity,
    )
    before = psutil.Process(os.getpid()).memory_info().rss
    rng = torch.Generator().manual_seed(0)
    replay = Replay(cfg, layout, torch.Generator().manual_seed(0), torch.device("cpu"))
    fragments = [_fragment(layout, rng) for _ in range(4)]
    stored = 0

    def store() -> int:
        nonlocal stored
        header = Header(0, 0, stored * ROWS, 0, 0, ROWS * COLUMNS, (), (0.0, 0.0))
        replay.add(Fragment(header, fragments[stored % len(fragments)]))
        stored += 1
        return ROWS * COLUMNS

    while len(replay) < cfg.capacity:
        store()
    adds = _rate(store)  # the ring is full by now, so that every row replaces another
    draws = {}
    for count in BATCHES:
        priority = torch.rand(count, generator=rng)

        def draw(count: int = count, priority: torch.Tensor = priority) -> int:
            replay.write(replay.sample(count, Clock()).key, priority)
            return count

        draws[count] = _rate(draw)
    memory = psutil.Process(os.getpid()).memory_info().rss - before
    return {
        "name": cfg.name,
        "capacity": cfg.capacity,
        "adds": adds,
        "draws": draws,
        "memory_gb": memory / 1e9,
        "planned_gb": layout.bytes / 1e9,
    }


def _fragment(layout: Layout, rng: torch.Generator) -> Batch:
    shape = fragment_layout(layout.obs, layout.action, {}, {}, ROWS, COLUMNS, 1)
    batch = allocate(shape)
    screens = batch["obs"]["observation"]  # type: ignore[index]
    screens.copy_(torch.randint(0, 256, screens.shape, generator=rng, dtype=torch.uint8))  # type: ignore[union-attr]
    zeros = batch.map(lambda value: value if value.dtype == torch.uint8 else torch.zeros_like(value))
    dead = torch.rand(ROWS, COLUMNS, generator=rng) < 0.005
    return zeros.replace(valid=~dead, reward=torch.randn(ROWS, COLUMNS, generator=rng))


def _rate(call: Callable[[], int]) -> float:
    call()
    started, done = time.perf_counter(), 0
    while time.perf_counter() - started < SECONDS:
        done += call()
    return done / (time.perf_counter() - started)


def table(result: dict[str, Any]) -> str:
    """The result as a text table."""
    lines = [
        f"{'replay':<13}{'capacity':>10}{'rows stored/s':>15}"
        + "".join(f"{f'drawn/s, {count}':>15}" for count in BATCHES)
        + f"{'memory, GB':>12}"
    ]
    for cell in result["cells"]:
        drawn = "".join(f"{cell['draws'][count]:>15,.0f}" for count in BATCHES)
        lines.append(
            f"{cell['name']:<13}{cell['capacity']:>10,}{cell['adds']:>15,.0f}{drawn}{cell['memory_gb']:>12.2f}"
        )
    return "\n".join(lines)
