"""An evaluation that prefers the second policy, and callbacks that disturb a run while it is evaluated."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time

import rlrun


def weight(policy):
    """A number that differs between policies."""
    return float(sum(parameter.detach().double().abs().sum() for parameter in policy.parameters()))


class Second(rlrun.Evaluation):
    def evaluate(self, games):
        time.sleep(0.3)
        ((ret, length),) = games.play(1)
        assert ret == length, "CartPole pays 1 for each step"
        return {"return_mean": -abs(games.number - 1), "weight": weight(games.policy), "number": games.number}


class Wordless(rlrun.Evaluation):
    def evaluate(self, games):
        return {"score": 1.0}


class During(rlrun.Callback):
    """Calls disturb() once, some time after the second evaluation began and before it can be over."""

    def on_start(self, run):
        self.run, self.done = run, run.evaluations.count > 0

    def on_update(self, clock, metrics):
        if self.run.evaluations.running is not None and self.run.evaluations.count == 1 and not self.done:
            self.done = True
            self.disturb()


class Interrupt(During):
    def disturb(self):
        os.kill(os.getpid(), signal.SIGINT)


class Kill(During):
    def disturb(self):
        for process in multiprocessing.active_children():
            if process.name == "eval-0":
                os.kill(process.pid, signal.SIGKILL)


class Count(rlrun.Callback):
    """Says how many games each evaluation had."""

    def on_evaluate(self, clock, returns):
        print(f"evaluated {len(returns)} games at {clock.env_steps}", flush=True)
