"""Kills simulated nodes of a run, lets new ones join, and counts what became of every env step.

    .venv/bin/python scripts/cluster/node_kills.py [kills=20] [every_sec=8] [key=value ...]

A callback inside the run's own process kills one node after another, each time without warning (SIGKILL of its raylet
and of what runs under it), and starts a new one. It compares the env steps that the run counts with the rows that the
learner was given.
"""

import json
import sys
import tempfile
import time
from pathlib import Path

import psutil

import rlrun
from rlrun.cluster import ray_engine

KILLS, EVERY = "kills", "every_sec"


class Counted(rlrun.Callback):
    """Counts the live rows of all batches, and kills nodes and starts new ones between updates."""

    rows = killed = 0
    wanted, every = 20, 8.0

    def on_start(self, run):
        self.run, self.due, self.missing = run, time.monotonic() + self.every, False

    def before_learning(self, batch, clock):
        Counted.rows += int(batch["valid"].sum())

    def on_update(self, clock, metrics):
        if time.monotonic() < self.due:
            return
        engine = ray_engine.RUNNING[-1]
        if self.missing:
            engine.add_node(1)
        elif Counted.killed == self.wanted:
            self.run.stops.asked = f"{self.wanted} nodes were killed"
        else:
            node = engine.cluster.list_all_nodes()[-1]  # the head is the first
            raylet = psutil.Process(node.all_processes["raylet"][0].process.pid)
            for one in [*raylet.children(recursive=True), raylet]:
                one.kill()
            engine.cluster.worker_nodes.remove(node)
            Counted.killed += 1
        self.missing, self.due = not self.missing and Counted.killed <= self.wanted, time.monotonic() + self.every / 2


def main(words):
    from node_kills import Counted  # the class that the run makes, which is not this script's own

    options = dict(word.split("=", 1) for word in words)
    Counted.wanted, Counted.every = int(options.pop(KILLS, 20)), float(options.pop(EVERY, 8))
    folder = Path(tempfile.mkdtemp(prefix="rlrun-kills-")) / "run"
    began, words = time.monotonic(), [f"{name}={value}" for name, value in options.items()]
    rlrun.train(
        overrides=["algo=impala", "env=CartPole-v1", "resources=ray", "resources.ray.simulate=2", "resources.restarts=1000",
                   "resources.ray.store_mb=100", "env_steps=1000000000", "logger=[]", "callbacks=[node_kills:Counted]",
                   f"run_dir={folder}", *words],
    )  # fmt: skip
    summary = json.loads((folder / "summary.json").read_text())
    last = [json.loads(line) for line in (folder / "progress.jsonl").read_text().splitlines()][-1]
    print(
        f"{Counted.killed} nodes killed in {time.monotonic() - began:.0f} s; {summary['status']}; env steps counted"
        f" {summary['env_steps']:,}, rows learnt from {Counted.rows:,}; replaced hosts"
        f" {last.get('restarts/processes', 0):.0f}, env steps lost and said so at most"
        f" {last.get('restarts/lost_env_steps', 0):,.0f}; return {summary['return_mean']}"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
