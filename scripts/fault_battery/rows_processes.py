"""Rows about processes that are killed, learners that fail, and signals."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass

from fault_battery.harness import (
    CARTPOLE,
    FOR_EVER,
    LOCAL,
    PATIENCE,
    SERIAL,
    SMALL,
    START_SEC,
    TINY_PPO,
    Trial,
    row,
    wrappers,
)

PLENTY = ["resources.restarts=1000"]
OLD_ENOUGH = 150  # steps of an environment after which its process's death is not one that comes back at once
KILLED_SEC = 420.0  # for all kills and the bar


@dataclass(frozen=True)
class Victims:
    """An algorithm whose samplers are killed. bar: the mean return that it reaches all the same, within minutes."""

    words: list[str]
    bar: float | None
    kills: int = 20
    slack: int = 5000
    begins_again: bool = False  # as a whole: a kill before it has learnt anything anew would be one that comes back at once


KILLED = {
    "impala": Victims(["algo=impala", *CARTPOLE, *LOCAL], 150.0),
    "ppo": Victims(["algo=ppo", *CARTPOLE, *LOCAL], 150.0),
    "dqn": Victims(["algo=dqn", *CARTPOLE, *LOCAL], 150.0),
    "apex": Victims(["tuned=apex/cartpole", *SMALL, "resources.num_samplers=2"], 150.0),
    "sac": Victims(["algo=sac", "env=Pendulum-v1", *SMALL, *LOCAL, "algo.num_envs=2"], -300.0),
    "es": Victims(["algo=es", *CARTPOLE, "resources.num_samplers=3", "algo.episodes_per_batch=40", "algo.env_steps_per_batch=0"], None, slack=100_000),
    "a3c": Victims(["algo=a3c", *CARTPOLE, "resources.num_learners=2"], 150.0),
    # The whole run begins again each time, after pauses that grow.
    "ddppo": Victims(["algo=ddppo", *CARTPOLE, "resources.num_learners=2"], None, kills=3, slack=20_000, begins_again=True),
}


def kill_samplers(trial: Trial, name: str) -> None:
    """Kills samplers at random times. The run survives as many as it promises, and its env steps are counted once."""
    what = KILLED[name]
    kills = trial.many(2, what.kills)
    run = trial.train(name, *what.words, wrappers(), FOR_EVER, "stop.return_mean=null", *PLENTY)
    run.until(lambda: run.steps, "a first row", 2 * START_SEC)  # some have large batches
    made, killed_at, end = 0, 0, time.monotonic() + KILLED_SEC * PATIENCE[0]

    def learnt() -> bool:
        bar = None if trial.quick else what.bar
        return bar is None or run.best() >= bar

    while made < kills or not learnt():
        if time.monotonic() > end:
            trial.expect(made >= kills, f"{name}: only {made} samplers could be killed in {KILLED_SEC:.0f} s")
            trial.expect(learnt(), f"{name}: the best mean return is {run.best():.1f}, and the bar is {what.bar}")
            break
        if not run.running:
            break
        old = run.samplers(OLD_ENOUGH)
        if made < kills and old and (run.steps > killed_at or not what.begins_again):
            killed_at = run.steps
            os.kill(trial.rng.choice(old).pid, signal.SIGKILL)
            made += 1
        time.sleep(trial.rng.uniform(0.2, 3.0))
    trial.tries += made
    steps = run.steps
    run.until(lambda: run.steps > steps and run.restarted >= made, "rows after the last kill")
    run.signal(signal.SIGTERM)
    run.ends(143, status="INTERRUPTED", says="SIGKILL", saved=True)
    if run.rows():
        trial.lost.append(f"{run.counts_are_right(what.slack)} env steps")
        trial.survived += made


for _name in KILLED:
    row(f"killed-{_name}", f"samplers of {_name} are killed by SIGKILL at random times")(
        lambda trial, name=_name: kill_samplers(trial, name)
    )


@row("learner-raises", "the learner raises: in a network, in a callback")
def learner_raises(trial: Trial) -> None:
    """The run ends, and the last checkpoint remains."""
    tiny = [word for word in TINY_PPO if not word.startswith("model.hidden")]
    faults = {
        "network": ["model.encoder=fault_parts:FailingNet", "model.hidden=[]", "resources.tapes=false"],
        "callback": ["callbacks=[fault_parts:FailingCallback]"],
    }
    for name in list(faults)[: 1 if trial.quick else 2]:
        where = SERIAL if trial.quick else LOCAL
        run = trial.train(name, *tiny, *where, *faults[name], "env_steps=100000", "checkpoint.every=256")
        trial.tries += 1
        run.ends(1, status="FAILED", says=rf"this {name} was told to fail \(.*fault_parts.py, line \d+\)", within=START_SEC, saved=True)
        trial.ended += 1
    trial.lost.append("what was learnt since the last checkpoint")


@row("loss-not-finite", "the loss is not a number")
def loss_not_finite(trial: Trial) -> None:
    where = [SERIAL] if trial.quick else [SERIAL, LOCAL]
    for number, inference in enumerate(where):
        words = [*TINY_PPO, *inference, "algo.lr=1e30", "checkpoint.every=128"]
        run = trial.train(f"loss {number}", *words, "env_steps=200000")
        trial.tries += 1
        run.ends(1, status="FAILED", says="finite|nan", within=START_SEC)
        trial.ended += 1
    trial.lost.append("what was learnt since the last checkpoint")


SIGNALS = (signal.SIGINT, signal.SIGTERM)


@row("signals", "SIGINT and SIGTERM at random moments, also while it starts and saves; resumed each time")
def signals(trial: Trial) -> None:
    """Every interruption ends the run within a short time, and the next command goes on from where it was."""
    rng, number = trial.rng, 0
    where = SERIAL if trial.quick else LOCAL
    words = [*TINY_PPO, *where, FOR_EVER, "checkpoint.every=256", "checkpoint.first_sec=0.5"]
    run = trial.train("run 0", *words)
    saved_before = 0
    for attempt in range(trial.many(4, 50)):
        kind = rng.choice(SIGNALS)
        code = 128 + kind
        when = ("start", "saving", "random", "random")[attempt % 4]
        if when == "start":
            time.sleep(rng.uniform(0.0, 8.0))
        elif when == "saving":
            run.until(lambda run=run: any((run.path / "checkpoints").glob(".*.tmp")), "a checkpoint being written")
        else:
            run.until_learning(saved_before + 1)
            time.sleep(rng.uniform(0.0, 3.0))
        begun = (run.path / "config.yaml").exists()
        run.signal(kind)
        trial.tries += 1
        # Before rlrun hears signals, while Python imports, the system itself ends the process.
        early = (-kind, 130, 1) if when == "start" else ()
        run.ends(code, *early, status="INTERRUPTED" if begun and when != "start" else None)
        if trial.problems:
            raise_at(trial, f"in try {attempt}, {kind.name}, {when}")
            return
        trial.ended += 1
        if run.saved:
            trial.expect(run.saved[-1] >= saved_before, f"{run.name}: its checkpoints went back")
            saved_before = run.saved[-1]
            run = run.resume()
        else:
            number, saved_before = number + 1, 0
            run = trial.train(f"run {number}", *words)
    run.until_learning(saved_before + 1)
    run.signal(signal.SIGTERM)
    run.ends(143, status="INTERRUPTED", saved=True)


def raise_at(trial: Trial, where: str) -> None:
    trial.problems.append(where)


@row("parent-killed", "the run's own process is killed by SIGKILL")
def parent_killed(trial: Trial) -> None:
    kinds = {
        "local": [*TINY_PPO, *LOCAL],
        "serial": [*TINY_PPO, *SERIAL],
        "apex": KILLED["apex"].words,
        "learners": [*TINY_PPO, *LOCAL, "resources.num_learners=2"],
        "a3c": KILLED["a3c"].words,
    }
    for name in list(kinds)[: 1 if trial.quick else None]:
        run = trial.train(name, *kinds[name], FOR_EVER, "stop.return_mean=null", "checkpoint.every=256")
        run.until(lambda run=run: run.saved and run.steps, "a checkpoint")
        run.process.kill()
        killed = time.monotonic()
        trial.tries += 1
        run.ends(-signal.SIGKILL, lock=True)
        trial.expect(run.known_status() == "FAILED", f"{name}: a reader is told {run.known_status()}")
        trial.expect(time.monotonic() - killed < 9, f"{name}: its processes took long to end")
        again = run.resume(*(SERIAL if trial.quick else ()))
        again.until_learning(run.saved[-1] + 1)
        again.signal(signal.SIGTERM)
        again.ends(143, status="INTERRUPTED", saved=True)
        hidden = [one.name for one in run.path.rglob(".*.tmp")]
        trial.expect(not hidden, f"{name}: a half-written save is left after the resume: {hidden}")
        trial.ended += 1
    trial.lost.append("what was learnt since the last checkpoint")
