"""How fast an environment is, what that means for a run, and whether its memory grows."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rlrun.envs.check_report import Findings

STEPS_OF_A_RUN = 1_000_000
# Growth in bytes per step that would be noticed in a run: 2 GB in a million steps.
GROWS = 2000.0
LEAST_GROWTH = 4 * 2**20  # bytes in each half of the steps, below which allocators alone may be the reason
LEAST_STEPS = 200
LEAST_PLAYED = 30  # steps, however slow resets are


def resident() -> int:
    """Bytes of memory that this process holds; 0 where the system does not tell."""
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def span(seconds: float) -> str:
    """A duration in words: 40 s, 12 min, 3.5 h or 2.1 days."""
    if seconds < 120:
        return f"{seconds:.3g} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.1f} days"


@dataclass(frozen=True)
class CheckPace:
    """How long the checks play: for what they look at, and for speed and memory."""

    play_sec: float
    measure_sec: float
    cores: int

    def plays(self, began: float, taken: int) -> bool:
        """Whether to play on: since `began` on the monotonic clock, and at least LEAST_PLAYED steps."""
        return taken < LEAST_PLAYED or time.monotonic() - began < self.play_sec

    def measure(self, report: Findings, one: Callable[[], tuple[float, float, bool]]) -> None:
        """one: takes a step and returns the seconds of it, of a reset before it, and whether there was one."""
        report.tell(("doing", "measures its speed and memory"))
        end = time.monotonic() + self.measure_sec
        warm = time.monotonic() + self.measure_sec / 5
        while time.monotonic() < warm:  # caches fill
            one()
        steps = resets = 0
        in_steps = in_resets = 0.0
        longest = longest_reset = 0.0
        memory, half = [(0, resident())], time.monotonic() + (end - time.monotonic()) / 2
        while time.monotonic() < end or not steps:
            step_sec, reset_sec, new = one()
            steps += 1
            in_steps += step_sec
            longest = max(longest, step_sec)
            if new:
                resets += 1
                in_resets += reset_sec
                longest_reset = max(longest_reset, reset_sec)
            if len(memory) == 1 and time.monotonic() > half:
                memory.append((steps, resident()))
        memory.append((steps, resident()))
        self._speed(report, steps, resets, in_steps, in_resets)
        report.fact("longest_step_sec", longest)
        if resets:
            report.fact("longest_reset_sec", longest_reset)
        self._memory(report, memory)

    def _speed(self, report: Findings, steps: int, resets: int, in_steps: float, in_resets: float) -> None:
        speed = steps / max(in_steps + in_resets, 1e-9)
        report.fact("steps_per_sec", speed)
        report.fact("step_sec", in_steps / steps)
        if resets:
            report.fact("reset_sec", in_resets / resets)
        report.fact("cores", self.cores)
        report.fact("million_steps_sec", STEPS_OF_A_RUN / (speed * self.cores))
        if resets and in_resets > 3 * in_steps:
            report.warning(
                "slow-reset",
                f"reset() takes {in_resets / resets * 1000:.3g} ms, and {in_resets / (in_steps + in_resets):.0%} of the"
                " environment's time",
                "make what stays the same between episodes in __init__",
            )
        if speed < 50:
            report.warning(
                "slow-step",
                f"it takes {speed:.3g} steps/s, so that a run of 1M steps takes at least"
                f" {span(STEPS_OF_A_RUN / (speed * self.cores))} on the {self.cores} cores here",
                "look for the time with python -m cProfile; resources.num_samplers steps it in more processes",
            )

    def _memory(self, report: Findings, memory: list[tuple[int, int]]) -> None:
        """memory: (steps, bytes) at the beginning, in the middle and at the end."""
        steps = memory[-1][0]
        if len(memory) < 3 or steps < LEAST_STEPS or not memory[0][1]:
            return
        growth = (memory[-1][1] - memory[0][1]) / steps
        report.fact("growth_bytes_per_step", max(growth, 0.0))
        parts = [after[1] - before[1] for before, after in itertools.pairwise(memory)]
        if growth > GROWS and min(parts) > LEAST_GROWTH:
            report.warning(
                "memory",
                f"its memory grew by {sum(parts) / 2**20:.0f} MiB in {steps:,} steps ({growth / 1024:.1f} KiB for"
                f" each), which is {growth * STEPS_OF_A_RUN / 2**30:.1f} GiB in a run of 1M steps",
                "look for a list that only grows, and empty it in reset()",
            )
