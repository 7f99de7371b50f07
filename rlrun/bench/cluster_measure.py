"""Measures what the simulation of a cluster is made from, and checks it with IMPALA on Pong.

Parts are measured alone, on one thread: a sampler's env step, the packing and unpacking of its fragments, an update,
and the weights' way. Then a run with one node and a run with two simulated nodes take turns. Where other work shares
the machine, wall time says little, so a run's speed is also counted in env steps for each second of a core that its
processes used. One factor for all times of the processor is fitted to the runs with one node, and what the simulation
then says about two nodes is compared with the runs with two.
"""

from __future__ import annotations

import contextlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import psutil
import torch

from rlrun.bench.cluster_model import ClusterFacts, simulate
from rlrun.cli import compose
from rlrun.cluster.packing import Form, pack, unpack
from rlrun.cluster.sampler import ANSWER_BYTES
from rlrun.cluster.weights import Letter, SentWeights
from rlrun.config.run import type_config
from rlrun.config.types import load_yaml, plain
from rlrun.core.batch import Batch, Field, RowSpec, allocate
from rlrun.core.errors import RunFailed
from rlrun.core.ranges import Count, Positive
from rlrun.core.schedule import Clock
from rlrun.core.timing import Timers
from rlrun.dataflow.reuse import Gatherer
from rlrun.dataflow.slots import Header
from rlrun.loggers.jsonl import read as read_rows
from rlrun.machine.machine import cores, measured
from rlrun.runtime.build import LearnerParts, build
from rlrun.runtime.plan import plan
from rlrun.runtime.rundir import command_line, git_commit, hardware, started_at, versions
from rlrun.samplers.local import make_collector

SCALED = ("step_sec", "pack_sec", "unpack_sec", "update_sec", "put_sec", "call_sec", "load_sec")
HOST = "_Actor"  # in the name that Ray gives to a host's process
START_SEC = 1200.0  # the longest time that a run may take to its first update
CALL_SEC = 1e-3  # of an answer's way through Ray on one machine (0.5 ms for a call and 0.1 ms to get what it brought)


@dataclass(frozen=True, kw_only=True)
class MeasureOptions:
    seconds: Annotated[float, Positive]  # of each run
    pairs: Annotated[int, Count]  # runs with one node and with two
    env: str


def measure(options: MeasureOptions) -> dict[str, Any]:
    """Measures, and returns {facts, check, sizes, hardware, ...}."""
    began = started_at()
    facts, sizes = parts(options.env)
    words = ["algo=impala", f"env={options.env}", "resources=ray"]
    runs: dict[int, list[dict[str, Any]]] = {1: [], 2: []}
    for _ in range(options.pairs):
        for nodes in (1, 2):
            runs[nodes].append(trained([*words, f"resources.ray.simulate={nodes}"], options.seconds))
            print(f"{nodes} node{'s' * (nodes > 1)}: {said(runs[nodes][-1])}", flush=True)
    one, two = (statistics.median(run["steps_per_core_sec"] for run in runs[nodes]) for nodes in (1, 2))
    setup = {"bandwidth": 1e9, "head_bandwidth": 1e9, "latency_sec": 5e-4, "gpu": False, "shared": True, "broadcast": 1}
    slower = slowdown(facts | setup, runs[1][0], one)
    predicted = simulate(at(facts | setup, 2, runs[2][0], slower)).steps_per_core_sec
    return {
        "facts": facts,
        "check": {"one": one, "measured": two, "predicted": predicted, "slowdown": slower, "runs": runs},
        "sizes": sizes,
        "hardware": hardware(),
        "versions": versions(),
        "git_commit": git_commit(),
        "command": command_line(),
        "started": began,
    }


def said(run: dict[str, Any]) -> str:
    core = f"{run['steps_per_core_sec']:,.0f} for each second of a core"
    return f"{run['steps_per_sec']:,.0f} env steps/s, {core}"


def at(facts: dict[str, Any], nodes: int, run: dict[str, Any], slower: float) -> ClusterFacts:
    """The facts of simulated nodes on this machine, with all its times multiplied."""
    scaled = {name: facts[name] * slower for name in SCALED}
    return ClusterFacts(**facts | scaled, nodes=nodes, samplers=max(1, run["samplers"] // nodes), cores=cores())


def slowdown(facts: dict[str, Any], run: dict[str, Any], speed: float) -> float:
    """The factor of all times with which one simulated node makes `speed` env steps for each second of a core."""
    low, high = 0.1, 100.0
    for _ in range(30):
        middle = (low * high) ** 0.5
        if simulate(at(facts, 1, run, middle)).steps_per_core_sec > speed:
            low = middle
        else:
            high = middle
    return (low * high) ** 0.5


def parts(env: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Measures the parts alone. Returns the facts, and what packing makes of a step of images and of vectors."""
    found: list[LearnerParts] = []

    def job(cfg: Any, choices: dict[str, Any]) -> int:
        found.append(build(plan(type_config(plain(cfg)), measured())))
        return 0

    torch.set_num_threads(1)
    compose(["algo=impala", f"env={env}", "logger=[]", "resources.device=cpu"], job)
    made = found[0]
    own = made.sampler_plan(0)
    collector, acting, algorithm = make_collector(own, 0), own.make_policy(), made.algorithm()
    rows, columns = made.plan.fragment_rows, own.columns
    steps = rows * columns
    needed = made.needs.columns // columns
    fragments = [allocate(made.plan.fragment) for _ in range(needed)]
    for batch in fragments:
        collector.collect(batch, acting, 1, Clock(), 0)
    fragment_sec = seconds_of(lambda: collector.collect(fragments[0], acting, 1, Clock(), 0), 4)
    gathers, gathered = Gatherer(made.resources.device, Timers()), None

    def learn() -> None:
        nonlocal gathered
        gathered = gathers(fragments, gathered)
        with made.products:
            algorithm.update(gathered, Clock())

    for _ in range(4):  # the first ones are recorded
        learn()
    update_sec = seconds_of(learn, 8)
    form = Form(made.plan.fragment, made.spec.stack, True)
    packed, pack_sec, unpack_sec = packing(form, fragments[0])
    sender, receiver = SentWeights(), SentWeights()
    sender.publish(acting, Clock())
    put_sec = seconds_of(lambda: sender.publish(acting, Clock()))
    receiver.receive(Letter(1, sender.weights, (0, 0), (0, 0)))
    load_sec = seconds_of(lambda: receiver.read(acting, 0))
    bytes_each = sum(leaf.nbytes for leaf in allocate(made.plan.fragment).leaves())
    facts = {
        "rows": rows,
        "columns": columns,
        "fragments": needed,
        "slots": own.in_flight,
        "calls_ahead": 2,
        "answer": max(1, ANSWER_BYTES // bytes_each),
        "step_sec": fragment_sec / steps,
        "pack_sec": pack_sec / steps,
        "unpack_sec": unpack_sec / steps,
        "update_sec": update_sec,
        "put_sec": put_sec,
        "call_sec": CALL_SEC,
        "load_sec": load_sec,
        "step_bytes": packed / steps,
        "weights_bytes": float(sender.weights.nbytes),
    }
    images = {"raw_bytes": bytes_each / steps, "packed_bytes": packed / steps}
    return facts, {env: images, "vectors": vectors()}


def vectors() -> dict[str, float]:
    """Bytes and microseconds of an env step of HalfCheetah's shape (17 and 6 numbers): 500 rows x 10 columns."""
    rows, columns = 500, 10
    layout: RowSpec = {
        "obs": {"observation": Field((rows + 1, columns, 17), torch.float32)},
        "is_first": Field((rows + 1, columns), torch.bool),
        "action": Field((rows, columns, 6), torch.float32),
        **{name: Field((rows, columns), torch.float32) for name in ("reward", "log_prob", "value")},
        **{name: Field((rows, columns), torch.bool) for name in ("terminated", "truncated", "valid")},
    }
    batch = allocate(layout)
    for leaf in batch.leaves():
        if leaf.is_floating_point():
            leaf.copy_(torch.from_numpy(np.random.default_rng(0).standard_normal(leaf.shape)))
    packed, pack_sec, unpack_sec = packing(Form(layout, 1, True), batch)
    steps, raw = rows * columns, sum(leaf.nbytes for leaf in batch.leaves())
    each = {"raw_bytes": raw, "packed_bytes": packed, "pack_us": pack_sec * 1e6, "unpack_us": unpack_sec * 1e6}
    return {name: value / steps for name, value in each.items()}


def packing(form: Form, batch: Batch) -> tuple[int, float, float]:
    """Returns a fragment's packed bytes, and the seconds to pack and to unpack it."""
    header = Header(0, 0, 0, 0, 0, 0, (), (0.0, 0.0))
    made = pack(form, [(header, batch)], {})
    into = allocate(form.layout)

    def back() -> None:
        for fragment in unpack(made)[0]:
            fragment.unpack(form, into)

    return made.nbytes, seconds_of(lambda: pack(form, [(header, batch)], {})), seconds_of(back)


def seconds_of(call: Callable[[], Any], times: int = 15) -> float:
    """The processor's time of a call, the fastest of several. Time in which other work had the core does not count."""
    best = float("inf")
    for _ in range(times):
        began = time.process_time()
        call()
        best = min(best, time.process_time() - began)
    return best


def core_seconds(pid: int) -> float:
    """Seconds of cores that the learner, the hosts and their samplers have used. Ray's own processes do not count: they
    use as much in a second in which nothing is learnt."""
    root = psutil.Process(pid)
    total = 0.0
    for one in (root, *root.children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            if one == root or HOST in one.name() or any(HOST in other.name() for other in one.parents()):
                times = one.cpu_times()
                total += times.user + times.system
    return total


def trained(words: list[str], seconds: float) -> dict[str, Any]:
    """Trains for so long after the first update and returns {steps_per_sec, steps_per_core_sec, lag, samplers}. The
    first third of that time does not count."""
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        more = [f"run_dir={run_dir}", "logger=[]", "env_steps=1e12", "log_every_sec=1", "resources.device=cpu"]
        command = [sys.executable, "-m", "rlrun.experiments.job", "train", *words, *more]
        with (Path(folder) / "said").open("w") as said:
            process = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT, start_new_session=True)
            try:
                first, end = None, time.monotonic() + START_SEC
                used: list[tuple[float, float]] = []  # (env steps of the last row, seconds of cores until then)
                while first is None or time.monotonic() < first + seconds:
                    time.sleep(0.5)
                    there = run_dir / "progress.jsonl"
                    rows = [row for row in (read_rows(there) if there.is_file() else []) if row["updates"] > 0]
                    first = first or (time.monotonic() if rows else None)
                    if rows and (not used or used[-1][0] != rows[-1]["env_steps"]):
                        used.append((rows[-1]["env_steps"], core_seconds(process.pid)))
                    if process.poll() is not None or (first is None and time.monotonic() > end):
                        lines = (Path(folder) / "said").read_text().strip().splitlines()
                        raise RunFailed(
                            f"the run to be measured has ended: {lines[-1] if lines else 'it said nothing'}"
                        )
            finally:
                process.terminate()
                process.wait()
        resources = load_yaml(run_dir / "config.yaml")["resources"]
        since = rows[0]["time_sec"] + (rows[-1]["time_sec"] - rows[0]["time_sec"]) / 3
        counted = [row for row in rows if row["time_sec"] >= since]
        span = counted[-1]["time_sec"] - counted[0]["time_sec"]
        lags = [row["sample/policy_lag"] for row in counted if row.get("sample/policy_lag") is not None]
        (begun, before), (ended, after) = used[len(used) // 3], used[-1]
        return {
            "steps_per_core_sec": (ended - begun) / (after - before),
            "steps_per_sec": (counted[-1]["env_steps"] - counted[0]["env_steps"]) / span,
            "lag": statistics.mean(lags) if lags else None,
            "samplers": resources["num_samplers"],
        }
