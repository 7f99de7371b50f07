"""Shared by the peers' programs: their command line, and the line of JSON with which they end.

It runs in a peer's environment, which does not have rlrun.
"""

import argparse
import importlib.metadata
import json
import sys
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


# Of Dreamer's updates: numbers in an observation and in an action, and whether actions are choices.
SPACES = {"cartpole": (4, 2, True), "pendulum": (3, 1, False)}


def game_and_threads():
    """Parses `GAME THREADS` with options of the program's own behind them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("game", choices=list(SPACES))
    parser.add_argument("threads", type=int, choices=[1, 2])
    parser.add_argument("words", nargs="*")
    said = parser.parse_args()
    sys.modules["torch"].set_num_threads(said.threads)
    return said


def rows_of_dreamer(torch, obs, actions, discrete, batch, length):
    """A batch of random rows [B, T, ...] with some ends of episodes."""
    rng = torch.Generator().manual_seed(1)
    taken = torch.randn(batch, length, actions, generator=rng)
    if discrete:
        taken = torch.nn.functional.one_hot(taken.argmax(-1), actions).float()
    last = torch.rand(batch, length, generator=rng) < 0.02
    first = torch.cat([torch.ones(batch, 1, dtype=torch.bool), last[:, :-1]], 1)
    return {
        "obs": torch.randn(batch, length, obs, generator=rng),
        "prevact": taken,
        "reward": torch.rand(batch, length, generator=rng),
        "is_first": first,
        "is_last": last,
        "is_terminal": last,
    }


def serve(update, settings, packages):
    """Makes three updates to warm up, and as many as each line of the input says. For each line it prints their
    wall-clock and CPU seconds. The first line is what the program is."""
    for _ in range(3):
        update()
    versions = {name: importlib.metadata.version(name) for name in packages}
    print(json.dumps({"settings": settings, "versions": versions}), flush=True)
    for line in sys.stdin:
        cpu, wall = time.process_time(), time.perf_counter()
        for _ in range(int(line)):
            update()
        print(json.dumps({"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}), flush=True)
