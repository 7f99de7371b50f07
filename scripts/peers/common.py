"""Shared by the peers' programs: their command line, and the line of JSON with which they end.

It runs in a peer's environment, which does not have rlrun.
"""

import argparse
import importlib.metadata
import json
import time


def words(variants):
    """Parses `ALGO VARIANT SECONDS` and returns algo, variant and seconds; variants is {algo: names}.

    With `--variants ALGO` it prints the names of an algorithm's variants as JSON and exits.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--variants", action="store_true")
    parser.add_argument("algo", choices=list(variants))
    parser.add_argument("variant", nargs="?")
    parser.add_argument("seconds", nargs="?", type=float, default=20.0)
    said = parser.parse_args()
    names = list(variants[said.algo])
    if said.variants:
        print(json.dumps(names))
        raise SystemExit
    if said.variant not in names:
        parser.error(f"variant must be one of {', '.join(names)}")
    return said


def result(rate, settings, packages):
    """Prints the last line of a program, with its env steps/s (agent decisions of 4 frames each)."""
    versions = {name: importlib.metadata.version(name) for name in (*packages, "torch", "gymnasium", "ale-py")}
    print(json.dumps({"env_steps_per_sec": rate, "settings": settings, "versions": versions}), flush=True)


class Meter:
    """Measures env steps/s. The first quarter of the time is not counted."""

    def __init__(self, seconds, now=time.perf_counter):
        self.seconds, self.now = seconds, now
        self.begun, self.warm = None, None
        self.rate = None

    def over(self, env_steps):
        """Takes the total of env steps so far and returns True when the time is up.

        It must first be called when learning begins.
        """
        now = self.now()
        if self.begun is None:
            self.begun = now
        if self.warm is None:
            if now - self.begun >= 0.25 * self.seconds:
                self.warm = (now, env_steps)
            return False
        if now - self.begun < self.seconds:
            return False
        self.rate = (env_steps - self.warm[1]) / (now - self.warm[0])
        return True
