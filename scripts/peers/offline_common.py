"""Shared by the programs that compare CQL's speed: the networks, the rows, and what every program prints.

It runs in a peer's environment, which does not have rlrun."""

import argparse
import importlib.metadata
import json
import time

import numpy as np

NETS = {"3x256": [256, 256, 256], "2x256": [256, 256]}
BATCH, SAMPLED = 256, 10  # rows of an update; actions drawn for each row in each of three ways
OBSERVATIONS, ACTIONS = 17, 6  # numbers in a row of HalfCheetah
EPISODES, LENGTH = 50, 1000


def words(variants):
    """Parses `NETS VARIANT SECONDS`; with `--variants NETS` it prints the names of the variants as JSON and exits."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--variants", action="store_true")
    parser.add_argument("algo", choices=list(NETS))
    parser.add_argument("variant", nargs="?")
    parser.add_argument("seconds", nargs="?", type=float, default=20.0)
    parser.add_argument("words", nargs="*", help="options of rlrun train, for rlrun's side")
    said = parser.parse_args()
    if said.variants:
        print(json.dumps(list(variants)))
        raise SystemExit
    if said.variant not in variants:
        parser.error(f"variant must be one of {', '.join(variants)}")
    return said


def episodes():
    """Random rows: observations [E, L, 17], actions [E, L, 6] in [-1, 1] and rewards [E, L]. An action moves the
    observation a little, so that there is something to learn."""
    rng = np.random.default_rng(0)
    seen = rng.normal(size=(EPISODES, LENGTH, OBSERVATIONS)).astype(np.float32)
    action = rng.uniform(-1.0, 1.0, (EPISODES, LENGTH, ACTIONS)).astype(np.float32)
    seen[:, 1:, :ACTIONS] += action[:, :-1]
    return seen, action, (seen[..., 0] - 0.1 * np.square(action).sum(-1)).astype(np.float32)


class Meter:
    """Measures updates/s and CPU seconds of an update. The first quarter of the time is not counted."""

    def __init__(self, seconds):
        self.seconds, self.begun, self.warm, self.updates = seconds, None, None, 0

    def over(self):
        """Called after every update. Returns True when the time is up."""
        now = time.perf_counter()
        if self.begun is None:
            self.begun = now
        self.updates += 1
        if self.warm is None and now - self.begun >= 0.25 * self.seconds:
            self.warm = now, time.process_time(), self.updates
        if now - self.begun < self.seconds or self.warm is None or self.updates == self.warm[2]:
            return False
        self.now = now, time.process_time(), self.updates
        return True

    def show(self, settings, packages):
        """Prints the last line of a program."""
        wall, cpu, updates = (after - before for after, before in zip(self.now, self.warm, strict=True))
        versions = {name: importlib.metadata.version(name) for name in (*packages, "torch")}
        told = {"updates_per_sec": updates / wall, "cpu_sec_per_update": cpu / updates}
        print(json.dumps({**told, "settings": settings, "versions": versions}), flush=True)
