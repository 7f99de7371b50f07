"""Rows about environments that misbehave, in samplers and in the run's own process."""

from __future__ import annotations

import signal

from fault_battery.harness import (
    LOCAL,
    SERIAL,
    TINY_PPO,
    Run,
    Trial,
    once,
    row,
)

SLACK = 2 * 2 * 2 * 32 * 4  # slots of both samplers, each 32 rows of up to 4 environments
STEP_LIMITS = ["env.step_timeout_sec=4", "env.reset_timeout_sec=4"]  # seconds; this machine may be busy


def limits_of(word: str) -> list[str]:
    """Short limits where an environment hangs. Elsewhere rlrun's own hold, because a busy machine makes steps long."""
    return STEP_LIMITS if "hang" in word else []


def survives(trial: Trial, name: str, word: str, where: list[str], says: str, steps: int = 3000, least: int = 0) -> Run:
    """A run in which one environment misbehaves once, and which reaches its end all the same. least: env steps that are
    lost with its sampler."""
    run = trial.train(name, *TINY_PPO, *where, word, *limits_of(word), f"env_steps={steps}")
    run.until(lambda: not run.running, "its end", 240)
    trial.tries += 1
    run.ends(0, status="COMPLETED", says=says, saved=True)
    if run.rows() and not trial.problems:
        # The step that failed was made, and is no env step of the run.
        lost = run.counts_are_right(SLACK if where is LOCAL else 1, least)
        trial.survived += 1
        trial.lost.append(f"{lost} env steps" if lost else "an episode")
    return run


def fails_and_resumes(trial: Trial, name: str, word: str, where: list[str], says: str, codes=(1,)) -> Run:
    """A run that must end, with its state saved, and goes on when it is resumed."""
    run = trial.train(name, *TINY_PPO, *where, word, *limits_of(word), "env_steps=3000", "resources.restarts=0")
    run.until(lambda: not run.running, "its end", 240)
    trial.tries += 1
    run.ends(*codes, status="FAILED", says=says, saved=True)
    again = run.resume("resources.restarts=0")
    again.ends(0, status="COMPLETED", within=240)
    trial.ended += not trial.problems
    return run


def both(trial: Trial, name: str, fault: str, says: str, mended: str = "") -> None:
    """The fault in a sampler and in the run's own process, survived, and with a budget of none. mended: what follows on
    the same line where it is survived."""
    survives(trial, f"{name} in a sampler", once(fault), LOCAL, says + mended)
    if not trial.quick:
        survives(trial, f"{name} in the run", once(fault), SERIAL, says + mended)
        fails_and_resumes(trial, f"{name} and no budget", once(fault, after=400), LOCAL, says)


@row("env-raises", "an environment raises in step()")
def env_raises(trial: Trial) -> None:
    both(trial, "raise", "raise", "told to fail", ".*made anew")


@row("env-hangs", "an environment hangs in step()")
def env_hangs(trial: Trial) -> None:
    both(trial, "hang", "hang", r"in step\(\) for")


@row("env-hangs-in-reset", "an environment hangs in reset()")
def env_hangs_in_reset(trial: Trial) -> None:
    both(trial, "hang in reset", "hang in reset", r"in reset\(\) for")


@row("env-not-finite", "an observation or a reward is not a number")
def env_not_finite(trial: Trial) -> None:
    both(trial, "nan observation", "nan observation", "an observation that is not finite")
    if not trial.quick:
        both(trial, "nan reward", "nan reward", "the reward nan")


@row("env-outside", "an environment breaks its own spaces: an observation of another shape, an action that it refuses")
def env_outside(trial: Trial) -> None:
    both(trial, "wrong shape", "wrong shape", r"Box\(\[4\]")
    if not trial.quick:
        both(trial, "action outside", "action outside", "99")


@row("env-segfaults", "an environment crashes by a segmentation fault in a sampler")
def env_segfaults(trial: Trial) -> None:
    survives(trial, "segfault in a sampler", once("segfault"), LOCAL, "SIGSEGV", least=1)


@row("env-exits", "an environment ends its sampler's process without a word")
def env_exits(trial: Trial) -> None:
    survives(trial, "exit in a sampler", once("exit"), LOCAL, "exited with code 0", least=1)


@row("env-ends-the-run", "an environment crashes or exits in the run's own process")
def env_ends_the_run(trial: Trial) -> None:
    dies_in_the_run(trial, "exit", 0, None)  # nothing can change the exit status that os._exit(0) has chosen
    if not trial.quick:
        dies_in_the_run(trial, "segfault", -signal.SIGSEGV, "Segmentation fault")


def dies_in_the_run(trial: Trial, fault: str, code: int, says: str | None) -> None:
    """Nothing can be saved when an environment ends the run's own process. Whoever reads the run's directory next knows
    that it has failed, and it goes on from its last checkpoint."""
    run = trial.train(
        f"{fault} in the run", *TINY_PPO, *SERIAL, once(fault, after=300), "env_steps=3000", "checkpoint.every=256"
    )
    run.until(lambda: not run.running, "its end", 240)
    trial.tries += 1
    run.ends(code, says=says, lock=True, saved=True)
    known = run.known_status()
    trial.expect(known == "FAILED", f"{run.name}: a reader of its directory is told {known}")
    again = run.resume()
    again.ends(0, status="COMPLETED", says="did not say how it ended", within=240)
    trial.ended += not trial.problems
    trial.lost.append("what was learnt since the last checkpoint")


@row("env-eats-memory", "an environment takes memory until there is none (a limit of its process, not the machine's)")
def env_eats_memory(trial: Trial) -> None:
    both(trial, "memory", "memory", "MemoryError|Unable to allocate|SIGKILL")
