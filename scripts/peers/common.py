"""What the programs of the peers share: their words, and the one line of JSON that they end with. Runs in a peer's environment, without rlrun."""

import argparse
import importlib.metadata
import json
import time


def words(variants):
    """variants: {algo: names}. algo, variant and seconds, of `ALGO VARIANT SECONDS`; with `--variants ALGO` says the variants of an algorithm and ends."""
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
    """The last line of a program: env steps/s (agent decisions, 4 frames each)."""
    versions = {name: importlib.metadata.version(name) for name in (*packages, "torch", "gymnasium", "ale-py")}
    print(json.dumps({"env_steps_per_sec": rate, "settings": settings, "versions": versions}), flush=True)


class Meter:
    """Env steps/s after the first quarter of the time, which is not counted."""

    def __init__(self, seconds, now=time.perf_counter):
        self.seconds, self.now = seconds, now
        self.begun, self.warm = None, None
        self.rate = None

    def over(self, env_steps):
        """Told how many there were in all, from the first time that something was learnt; true when the time is up."""
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
