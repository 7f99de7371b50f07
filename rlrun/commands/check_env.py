"""rlrun check-env NAME [env.kwargs={...} env.wrappers=[...] env.max_episode_steps=...] [seconds=10] [--json]

Finds what is wrong with an environment of your own before anything is trained on it: its spaces, what reset() and
step() return, rewards and ends, seeds, what reset() leaves behind, instances that disturb each other, observations that
change later, masks of actions, speed and memory, and with several agents which of them are present and get rewards.
Each finding says what is wrong, where, and how to mend it.

  rlrun check-env my_package:MyEnv
  rlrun check-env my_package:MyEnv-v0 'env.kwargs={size: 5}'
  rlrun check-env my_package.games:my_parallel_env env.family=agents

NAME is what env= takes, so that it may also be CartPole-v1, Pong or simple_spread_v3, and all options of env= can be
given. The environment runs in a process of its own. If it crashes or hangs (env.step_timeout_sec, by default 20
seconds; env.reset_timeout_sec, by default 60), a finding names the line where this happened. seconds= says for how long
the environment is played. The exit code is 0 if there are no findings or only warnings and notes, and 2 if there are
errors."""

from __future__ import annotations

import dataclasses
import faulthandler
import json
import os
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Annotated, Any

from rlrun.cli import take_trust
from rlrun.config.types import parse_assignments, typed
from rlrun.core.errors import UserError
from rlrun.core.ranges import Positive

STEP_SEC, RESET_SEC, START_SEC = 20.0, 60.0, 120.0
POLL_SEC = 0.2
SIGNS = {"error": "ERROR", "warning": "warning", "note": "note"}


@dataclass(frozen=True, kw_only=True)
class CheckOptions:
    seconds: Annotated[float, Positive]


def main(words: list[str]) -> int:
    if not words or any(word in ("-h", "--help") for word in words):
        print(__doc__)
        return 0 if words else 2
    _, words = take_trust(words)
    as_json = "--json" in words
    words = ["env=" + word if "=" not in word else word for word in words if word != "--json"]
    if any(word.startswith("env=-") for word in words):
        raise UserError(
            f"{next(w for w in words if w.startswith('env=-'))[4:]} is not a flag here; rlrun check-env --help"
        )
    names = [word for word in words if word.startswith("env=")]
    if len(names) != 1:
        raise UserError("rlrun check-env takes one environment, as in rlrun check-env my_package:MyEnv")
    given = parse_assignments(words)
    name = str(given.pop("env"))
    options = typed(CheckOptions, {"seconds": given.pop("seconds", 10)})
    for key in given:
        if not key.startswith("env."):
            raise UserError(
                f"{key}: rlrun check-env takes seconds= and options of the environment, such as env.kwargs="
            )
    train = [word for word in words if not word.startswith("seconds=")]
    changes = {key.removeprefix("env."): value for key, value in given.items()}
    if not as_json:
        print(f"rlrun check-env: {name}", flush=True)
    begun = time.monotonic()
    outcome = CheckedEnv(name, not as_json)
    watch(outcome, name, changes, float(options.seconds), as_json)
    errors, warnings = (sum(f.kind == kind for f in outcome.findings) for kind in ("error", "warning"))
    if as_json:
        findings = [dataclasses.asdict(finding) for finding in outcome.findings]
        print(json.dumps({"env": name, "errors": errors, "warnings": warnings, "findings": findings,
                          "measured": outcome.facts}))  # fmt: skip
    else:
        for line in measured(outcome.facts):
            print(f"  {line}")
        said = f"{errors} error{'s' * (errors != 1)} and {warnings} warning{'s' * (warnings != 1)}"
        print(f"  {said} after {time.monotonic() - begun:.0f} s")
        if not errors and outcome.facts:
            print(f"  To train on it: {shlex.join(['rlrun', 'train', 'algo=ppo', *train])}")
    return 2 if errors else 0


class CheckedEnv:
    """What was found so far."""

    def __init__(self, name: str, printed: bool):
        """printed: whether findings are printed as they come."""
        self.name, self.printed = name, printed
        self.findings: list[Any] = []
        self.facts: dict[str, float] = {}
        self.doing = "starts"

    def hear(self, message: Any) -> None:
        kind, value = message
        if kind == "finding":
            self.add(value)
        elif kind == "fact":
            self.facts[value[0]] = value[1]
        elif kind == "doing":
            self.doing = value

    def add(self, finding: Any) -> None:
        finding = dataclasses.replace(finding, what=finding.what.rstrip(". "), mend=finding.mend.rstrip(". "))
        self.findings.append(finding)
        if self.printed:
            where = f" ({finding.where})" if finding.where else ""
            end = "" if f"{finding.what}{where}".endswith("?") else "."
            print(f"  {SIGNS[finding.kind]:<8}{finding.what}{where}{end}", flush=True)
            if finding.mend:
                print(f"  mend    {finding.mend}", flush=True)


def watch(outcome: CheckedEnv, name: str, changes: dict[str, Any], seconds: float, silent: bool) -> None:
    """Runs the checks in a process of their own, and adds a finding if it ends or hangs."""
    from rlrun.core.errors import RunFailed
    from rlrun.core.pulse import Limits, Pulses
    from rlrun.dataflow.workers import Workers
    from rlrun.envs.check_report import Finding

    step, reset = (changes.get(f"{what}_timeout_sec") for what in ("step", "reset"))
    limits = Limits(_seconds(step, STEP_SEC), _seconds(reset, RESET_SEC), START_SEC)
    pulses, workers = Pulses(1), Workers()
    pulses.begin(0)
    with tempfile.TemporaryDirectory(prefix="rlrun-check-") as folder:
        trace = Path(folder) / "trace"
        try:
            worker = workers.start("the environment", check, (name, changes, seconds, pulses, str(trace), silent))
            while True:
                messages, lost = workers.receive_from_survivors(POLL_SEC)
                for _, message in messages:
                    if message == ("done", None):
                        return
                    outcome.hear(message)
                if lost:
                    why = lost[0][1].removeprefix(f"{worker.name} ")
                    if "\n" in why:
                        raise RunFailed(f"rlrun's own checks failed while the environment {outcome.doing}: {why}")
                    outcome.add(Finding("error", "dies", f"it ended its process, which {why}",
                                        place(trace) or f"while it {outcome.doing}",
                                        "raise an exception in place of sys.exit() or os._exit(); a crash without one"
                                        " is in a library written in C"))  # fmt: skip
                    return
                hang = hanging(pulses, limits)
                if hang is not None:
                    if worker.process.pid is not None:
                        os.kill(worker.process.pid, signal.SIGUSR1)  # faulthandler writes where it is
                    time.sleep(0.5)
                    outcome.add(Finding("error", "hangs", f"it hangs: {hang}", place(trace) or f"it {outcome.doing}",
                                        "let it raise an exception where it waits too long; env.step_timeout_sec= and"
                                        " env.reset_timeout_sec= allow more"))  # fmt: skip
                    return
        finally:
            workers.stop(1.0)


def _seconds(value: Any, default: float) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and value > 0 else default


def hanging(pulses: Any, limits: Any) -> str | None:
    """A phrase that says for how long the environment has been in one call, if that is too long."""
    from rlrun.core.pulse import ACTIVITY, RESET, STARTING, STEP

    pulse = pulses.of(0)
    kinds = {STEP: ("step()", limits.step_sec), RESET: ("reset()", limits.reset_sec),
             STARTING: ("being made", limits.start_sec)}  # fmt: skip
    said, limit = kinds.get(int(pulse.row[ACTIVITY]), ("", float("inf")))
    silent = pulse.silent_sec()
    return f"it has been in {said} for {silent:.1f} s" if silent > limit else None


def place(trace: Path) -> str:
    """The user's line that a process was in, from what faulthandler wrote; empty if that is not known."""
    import sysconfig

    import rlrun

    try:
        text = trace.read_text(errors="replace")
    except OSError:
        return ""
    ours = (str(Path(rlrun.__file__).parent), *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")))
    for line in text.splitlines():
        if line.strip().startswith('File "'):
            file, _, rest = line.strip().removeprefix('File "').partition('"')
            if not file.startswith((*ours, "<")):
                return f"{file}{rest.replace(' in ', ', in ')}"
    return ""


# -- in the process of the environment ---------------------------------------------------------------------------------


def check(
    pipe: Connection, name: str, changes: dict[str, Any], seconds: float, pulses: Any, trace: str, silent: bool
) -> None:
    """Makes all checks and sends what they find. silent: whether what the environment prints goes to stderr."""
    from rlrun.core import pulse
    from rlrun.envs.check_report import Findings, Stop
    from rlrun.machine.machine import cores

    file = open(trace, "w")  # faulthandler writes into it until the process ends
    faulthandler.enable(file)
    faulthandler.register(signal.SIGUSR1, file)
    if silent:
        os.dup2(2, 1)
    own = pulses.of(0)
    report = Findings(pipe.send, own)
    try:
        every(report, name, changes, seconds, cores())
    except Stop:
        pass
    except SystemExit as error:
        from rlrun.envs.check_report import raised

        report.error("dies", f"it calls sys.exit({error.code!r}): {raised(error)}", "raise an exception instead")
    own.beat(pulse.WAITING)
    sys.stdout.flush()
    pipe.send(("done", None))


def every(report: Any, name: str, changes: dict[str, Any], seconds: float, cores: int) -> None:
    """Chooses the checks that the environment's family needs, and makes them."""
    from rlrun.envs.agent_games import AgentsConfig
    from rlrun.envs.check_agents import ParallelChecks
    from rlrun.envs.check_gym import GymChecks
    from rlrun.envs.check_pace import CheckPace
    from rlrun.envs.check_report import Stop
    from rlrun.envs.check_turns import TurnsChecks

    pace = CheckPace(seconds * 0.4, seconds * 0.4, cores)
    cfg = read(report, name, changes)
    with report.starting("makes the environment"):
        make, kind = maker(report, cfg)
    checks: Any
    if kind == "parallel":
        checks = ParallelChecks(report, make, cfg.name, pace)
    elif kind == "turns":
        checks = TurnsChecks(report, make, cfg.name, pace)
    else:
        checks = GymChecks(report, make, cfg.name, pace, agents=isinstance(cfg, AgentsConfig))
    checks.run()
    if report.errors:
        raise Stop
    as_in_training(report, cfg)


def read(report: Any, name: str, changes: dict[str, Any]) -> Any:
    """The environment's typed options. Reports a name that cannot be one, and options that do not exist."""
    import yaml

    from rlrun.config.paths import root
    from rlrun.envs.check_report import Stop, raised
    from rlrun.envs.names import family_of
    from rlrun.envs.registry import FAMILIES

    try:
        changes = dict(changes)
        with report.starting("imports it"):
            not_an_environment(report, name)
            family, canonical = family_of(name, changes.pop("family", None))
        values = yaml.safe_load((root() / "conf" / "env" / f"{family}.yaml").read_text()) | {"name": canonical}
        for key, value in changes.items():
            group, dot, inside = key.partition(".")
            if dot and isinstance(values.get(group), dict):
                values[group] = {**values[group], inside: value}
            else:
                values[key] = value
        return typed(FAMILIES[family], values, "env")
    except UserError as error:
        named = str(error).startswith("There is no env")
        mend = "rlrun list envs shows the names; your own is package.module:Class" if named else ""
        report.error("make", str(error), mend)
        raise Stop from None
    except Stop:
        raise
    except Exception as error:  # the user's module may raise anything
        report.error("make", f"its module cannot be imported: {raised(error)}", "mend the line that is named")
        raise Stop from None


def not_an_environment(report: Any, name: str) -> None:
    """Reports a class that derives from none of the classes of environments, such as gym.Env."""
    from rlrun.core.plugins import import_named
    from rlrun.envs.agent_games import bases
    from rlrun.envs.check_report import Stop
    from rlrun.envs.names import OWN

    module, _, part = name.rpartition(":")
    if not OWN.fullmatch(name) or "/" in name.partition(":")[0]:
        return
    try:
        found = getattr(import_named(module, f"env={name}"), part, None)
    except ImportError as error:
        what = f"{module} cannot be imported: {error}"
        mend = "install your package with `pip install -e .`, or run rlrun in the folder that holds it"
        report.error("make", what, mend)
        raise Stop from None
    import gymnasium

    if found is None and part not in gymnasium.registry:
        from rlrun.envs.names import absent

        report.error("make", absent(module, part), "name a class of the module, or an id that it registers")
        raise Stop
    if not isinstance(found, type):
        return

    of_agents = callable(getattr(found, "observation_space", None)) or hasattr(found, "possible_agents")
    if issubclass(found, (gymnasium.Env, *bases())) or of_agents:
        return
    parents = [f"{one.__module__}.{one.__name__}" for one in found.__mro__[1:-1]]
    old = any(base.startswith("gym.") for base in parents)
    what = f"derives from {' and '.join(parents)}" if parents else "is a plain class"
    what = f"{part} {what}, and an environment derives from gymnasium.Env"
    mend = (
        "import gymnasium as gym"
        if old
        else f"class {part}(gymnasium.Env), or pettingzoo.ParallelEnv for several agents"
    )
    report.error("base", what, mend)
    raise Stop


def maker(report: Any, cfg: Any) -> tuple[Callable[[], Any], str]:
    """A function that makes one environment without rlrun's vectors, and its interface: gym, parallel or turns."""
    from rlrun.core.seeding import Seeds
    from rlrun.envs.agent_games import AgentsConfig, TupleGame, TurnsGame, make_game
    from rlrun.envs.atari import AtariConfig
    from rlrun.envs.check_gym import Unchecked
    from rlrun.envs.check_report import Stop
    from rlrun.envs.gym import GymConfig, make_one
    from rlrun.envs.recorded import NO_ENV, RecordedConfig
    from rlrun.envs.registry import Factory, make_spec
    from rlrun.envs.single import make_single

    try:
        if isinstance(cfg, RecordedConfig):
            raise UserError(NO_ENV)
        if isinstance(cfg, AgentsConfig):
            game = make_game(cfg)
            kind = "turns" if isinstance(game, TurnsGame) else "gym" if isinstance(game, TupleGame) else "parallel"
            game.close()
            return (lambda: make_game(cfg).env), kind
        if isinstance(cfg, AtariConfig):
            factory = Factory(cfg=cfg, spec=make_spec(cfg), seeds=Seeds(0), stream="env", learning=True)
            return (lambda: make_single(factory)), "gym"
    except UserError as error:
        report.error("make", str(error), "make it in Python alone first; env.kwargs={name: value} gives arguments")
        raise Stop from None
    plain = Unchecked.of(cfg) if isinstance(cfg, GymConfig) else cfg
    return (lambda: make_one(plain)), "gym"


def as_in_training(report: Any, cfg: Any) -> None:
    """Steps two environments as a sampler does, to see whether rlrun agrees with what the checks found."""
    import numpy as np

    from rlrun.core.env import map_rows
    from rlrun.core.errors import EnvError
    from rlrun.core.seeding import Seeds
    from rlrun.core.specs import random_actions
    from rlrun.envs.check_report import Stop
    from rlrun.envs.registry import Factory, make_spec

    with report.starting("steps two of them as in training"):
        try:
            spec = make_spec(cfg)
            for note in spec.notes:
                report.note("spec", note)
            env = Factory(cfg=cfg, spec=spec, seeds=Seeds(0), stream="env", learning=True)(0, 2)
            rng = np.random.default_rng(0)
            rows = env.reset(0)
            odd: dict[str, None] = {}
            for step in range(50):
                action = random_actions(spec, rows, env.count, rng)
                if step % 2:  # a policy's numbers often lie at the bounds, where random ones never are
                    action = map_rows(action, lambda part: np.sign(part) if part.dtype.kind == "f" else part)
                made = env.step(action)
                rows = made.obs
                if getattr(env, "native", False):  # its class, which the checks above have seen, is another one
                    odd |= dict.fromkeys(one.sentence for one in made.failed.values())
            env.close()
            for sentence in odd:
                what = f"{sentence.split('; `rlrun')[0]} (its vector_entry_point makes the environments that train)"
                report.error("as-in-training", what, "let it show what its space says")
        except (UserError, EnvError) as error:
            report.error("as-in-training", str(error), "see the message; rlrun explain env= shows what rlrun read")
            raise Stop from None


def measured(facts: dict[str, float]) -> list[str]:
    """What was measured, as lines."""
    from rlrun.envs.check_pace import span

    lines = []
    if "steps_per_sec" in facts:
        reset = f", and {facts['reset_sec'] * 1000:.3g} ms a reset" if "reset_sec" in facts else ""
        lines.append(f"speed     {facts['steps_per_sec']:,.0f} steps/s in one process ("
                     f"{facts['step_sec'] * 1000:.3g} ms a step{reset})")  # fmt: skip
        cores = int(facts["cores"])
        where = f"on this machine's {cores} cores, each with environments of its own" if cores > 1 else "here"
        lines.append(
            f"          A run of 1M steps takes at least {span(facts['million_steps_sec'])} {where}, without learning"
        )
    if facts.get("growth_bytes_per_step", 0) > 10:
        lines.append(f"memory    {facts['growth_bytes_per_step'] / 1024:.2g} KiB more for each step")
    return lines
