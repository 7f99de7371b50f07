"""rlrun doctor --cluster [address=HOST:6379] [simulate=2] [allow_open=true]

Asks every machine of a Ray cluster what it has and measures the way to it: cores, free memory and shared memory,
versions, ale-py, the time of a call, the bandwidth to and from it, and how far its clock is from this one's. Without
address=, Ray starts on this machine and ends with the command; simulate=N makes N parts of it. Each thing that is wrong
is a sentence below the table, and the exit code is 1 then."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from rlrun.cluster.engine import Engine, Host, HostLost
from rlrun.config.types import parse_assignments
from rlrun.core.errors import RunFailed
from rlrun.machine.machine import cores
from rlrun.machine.nodes import RayConfig, simulated

KIND = "rlrun.runtime.probe:NodeProbe"
BLOCK = 32 * 2**20  # bytes that are sent to measure a bandwidth
VERSIONS = ("rlrun", "Python", "PyTorch")  # which have to be the same on all machines
CALLS = 10
SLOW_CALL_SEC = 0.02
SLOW_BYTES = 50e6  # bytes/s
SMALL_SHARED = 512 * 2**20  # bytes
CLOCK_SEC = 1.0  # from this offset on, times in logs of several machines mislead


class Checked(NamedTuple):
    """What was found out about a machine."""

    name: str
    facts: dict[str, Any]
    call_sec: float  # there and back
    to: float  # bytes/s
    back: float  # bytes/s
    offset: float  # seconds that its clock is ahead of this one's
    sure: float  # the offset is known to within so many seconds


def main(words: list[str]) -> int:
    from rlrun.cluster.ray_engine import RayEngine, check_installed
    from rlrun.experiments.ray_queue import cluster_config

    cfg = cluster_config(parse_assignments(words))
    check_installed("rlrun doctor --cluster")
    return check(RayEngine(cfg, () if cfg.address is not None else simulated(cfg, cores()), ""), cfg)


def check(engine: Engine, cfg: RayConfig) -> int:
    """Prints the table and what is wrong. Returns the exit code. The engine is closed."""
    problems, found = [], []
    try:
        for node in engine.nodes():
            host = engine.start(KIND, f"doctor-{node.name}", node.name, b"{}", spare=True)
            try:
                found.append(_measured(engine, host, node.name, cfg.join_sec))
            except (HostLost, RunFailed) as error:
                problems.append(f"{node.name} does not answer: {error}")
            finally:
                engine.stop([host])
    finally:
        engine.close()
    if found:
        print(table(found))
    problems += wrong(found)
    for problem in problems:
        print(f"problem     {problem}", file=sys.stderr)
    return 1 if problems else 0


def _measured(engine: Engine, host: Host, name: str, patience: float) -> Checked:
    def asked(method: str, *args: Any) -> Any:
        answer = host.call(method, *args)
        if not engine.wait([answer], patience):
            raise RunFailed(f"it was silent for {patience:g} s")
        return engine.get(answer)

    def speed(method: str, *args: Any) -> float:
        """Bytes/s of the faster of two times: the first one also makes room in Ray's memory. 0 if a call alone takes
        longer than both, so that nothing was measured."""
        best = 0.0
        for _ in range(2):
            given = [engine.put(arg) if isinstance(arg, np.ndarray) else arg for arg in args]
            began = time.perf_counter()
            asked(method, *given)
            spent = time.perf_counter() - began - call_sec
            best = max(best, BLOCK / spent if spent > 0 else 0.0)
        return best

    facts = asked("facts")
    calls = []
    for _ in range(CALLS):
        began, before = time.perf_counter(), time.time()
        there = asked("clock")
        spent = time.perf_counter() - began
        calls.append((spent, there - (before + spent / 2)))
    call_sec = statistics.median(spent for spent, _ in calls)
    nearest, offset = min(calls)
    to, back = speed("takes", np.zeros(BLOCK, dtype=np.uint8)), speed("gives", BLOCK)
    return Checked(name, facts, call_sec, to, back, offset, nearest / 2)


def table(found: Sequence[Checked]) -> str:
    """One row for each machine."""
    from rlrun.experiments.view import text_table

    head = ("machine", "cores", "memory", "/dev/shm", *VERSIONS, "ale-py", "call", "to it", "from it", "clock")
    rows = [
        (
            one.name,
            f"{one.facts['cores']} of {one.facts['of']}",
            f"{one.facts['memory'] / 2**30:.1f} GiB",
            f"{one.facts['shared'] / 2**30:.1f} GiB",
            *(one.facts[name].replace(", sources", "") for name in VERSIONS),
            "yes" if one.facts["ale-py"] else "no",
            f"{one.call_sec * 1e3:.1f} ms",
            *(f"{speed / 1e6:,.0f} MB/s" if speed else "not measured" for speed in (one.to, one.back)),
            f"{one.offset * 1e3:+.1f} ms (within {one.sure * 1e3:.1f})",
        )
        for one in found
    ]
    return text_table(rows, head)


def wrong(found: Sequence[Checked]) -> list[str]:
    """A sentence for each thing that is wrong."""
    if not found:
        return ["no machine has answered"]
    first, said = found[0], []
    for one in found:
        for name in VERSIONS:
            mine, other = first.facts[name], one.facts[name]
            if mine != other:
                said.append(f"{one.name} has {name} {other}, and {first.name} has {mine}: all machines need the same")
        if not one.facts["ale-py"] and any(other.facts["ale-py"] for other in found):
            said.append(f"{one.name} has no ale-py, which other machines have: it cannot step Atari games")
        if not one.facts["lz4"]:
            said.append(f"{one.name} has no lz4: resources.ray.compress=true needs it on every machine")
        if one.facts["shared"] < SMALL_SHARED:
            said.append(f"{one.name} has less than 512 MiB in /dev/shm: start its container with --shm-size=2g")
        if one.call_sec > SLOW_CALL_SEC:
            said.append(f"a call to {one.name} takes {one.call_sec * 1e3:.0f} ms: the machine is busy or far away")
        for speed, way in ((one.to, "to"), (one.back, "from")):
            if speed < SLOW_BYTES:
                said.append(
                    f"only {speed / 1e6:.0f} MB/s go {way} {one.name}: rows or weights may wait for the network"
                )
        if abs(one.offset) - one.sure > CLOCK_SEC:
            said.append(f"the clock of {one.name} is {one.offset:+.1f} s from this one's: times in its logs mislead")
    return said
