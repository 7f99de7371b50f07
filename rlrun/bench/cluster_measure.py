"""Measures what the simulation of a cluster is made from, and checks it with IMPALA on Pong.

Parts are measured alone, on one thread: a sampler's env step, the packing and unpacking of its fragments, an update,
and the weights' way. Then a run in shared memory, a run with one node and a run with two simulated nodes take turns, so
that all three see the same machine. One factor for all times of the processor is fitted to the env steps/s of the runs
with one node (their median), and what the simulation then says about two nodes is compared with the runs with two.
"""

from __future__ import annotations

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
START_SEC = 1200.0  # the longest time that a run may take to its first update
CALL_SEC = 1e-3  # of an answer's way through Ray on one machine (0.5 ms for a call and 0.1 ms to get what it brought)


@dataclass(frozen=True, kw_only=True)
class MeasureOptions:
    seconds: Annotated[float, Positive]  # of each run
    rounds: Annotated[int, Count]  # runs of each kind
    env: str


def measure(options: MeasureOptions) -> dict[str, Any]:
    """Measures, and returns {facts, check, sizes, hardware, ...}."""
    began = started_at()
    facts, sizes = parts(options.env)
    words = ["algo=impala", f"env={options.env}"]
    kinds = {"local": words, **{f"{n}": [*words, "resources=ray", f"resources.ray.simulate={n}"] for n in (1, 2)}}
    runs: dict[str, list[dict[str, Any]]] = {kind: [] for kind in kinds}
    for number in range(options.rounds):
        # Every other round goes backwards, so that a machine that gets slower is unfair to no kind.
        for kind in list(kinds)[:: -1 if number % 2 else 1]:
            runs[kind].append(trained(kinds[kind], options.seconds))
            print(f"{named(kind)}: {runs[kind][-1]['steps_per_sec']:,.0f} env steps/s", flush=True)
    local, one, two = (statistics.median(run["steps_per_sec"] for run in runs[kind]) for kind in kinds)
    setup = {"bandwidth": 1e9, "head_bandwidth": 1e9, "latency_sec": 5e-4, "gpu": False, "shared": True, "broadcast": 1}
    slower = slowdown(facts | setup, runs["1"][0], one)
    predicted = simulate(at(facts | setup, 2, runs["2"][0], slower)).steps_per_sec
    return {
        "facts": facts,
        "check": {"local": local, "one": one, "measured": two, "predicted": predicted, "slowdown": slower}
        | {"runs": runs},
        "sizes": sizes,
        "hardware": hardware(),
        "versions": versions(),
        "git_commit": git_commit(),
        "command": command_line(),
        "started": began,
    }


def named(kind: str) -> str:
    return {"local": "shared memory", "1": "1 node", "2": "2 nodes"}[kind]


def at(facts: dict[str, Any], nodes: int, run: dict[str, Any], slower: float) -> ClusterFacts:
    """The facts of simulated nodes on this machine, with all its times multiplied."""
    scaled = {name: facts[name] * slower for name in SCALED}
    return ClusterFacts(**facts | scaled, nodes=nodes, samplers=max(1, run["samplers"] // nodes), cores=cores())


def slowdown(facts: dict[str, Any], run: dict[str, Any], speed: float) -> float:
    """The factor of all times with which one simulated node makes `speed` env steps/s."""
    low, high = 0.1, 100.0
    for _ in range(30):
        middle = (low * high) ** 0.5
        if simulate(at(facts, 1, run, middle)).steps_per_sec > speed:
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
    products = made.make_products()

    def learn() -> None:
        nonlocal gathered
        gathered = gathers(fragments, gathered)
        with products:
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
        "slots": made.config.runner.requests_in_flight,
        "calls_ahead": 1,  # the default of resources.ray.calls_ahead
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


def trained(words: list[str], seconds: float) -> dict[str, Any]:
    """Trains for so long after the first update and returns {steps_per_sec, lag, samplers}. The
    first third of that time does not count."""
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        more = [f"run_dir={run_dir}", "logger=[]", "env_steps=1e12", "log_every_sec=1", "resources.device=cpu"]
        command = [sys.executable, "-m", "rlrun.experiments.job", "train", *words, *more]
        with (Path(folder) / "said").open("w") as said:
            process = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT, start_new_session=True)
            try:
                first, end = None, time.monotonic() + START_SEC
                while first is None or time.monotonic() < first + seconds:
                    time.sleep(0.5)
                    there = run_dir / "progress.jsonl"
                    rows = [row for row in (read_rows(there) if there.is_file() else []) if row["updates"] > 0]
                    first = first or (time.monotonic() if rows else None)
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
        return {
            "steps_per_sec": (counted[-1]["env_steps"] - counted[0]["env_steps"]) / span,
            "lag": statistics.mean(lags) if lags else None,
            "samplers": resources["num_samplers"],
        }
