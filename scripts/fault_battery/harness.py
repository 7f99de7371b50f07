"""The harness of the battery: real runs of `rlrun train` and `rlrun resume` in processes of their own, and what must hold
after each of them, whatever has happened to it."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
MARK = "RLRUN_FAULT_MARK"  # an environment variable by which all processes of a run are found
START_SEC = 150.0  # a run's first row on a busy machine
END_SEC = 90.0  # from what ends a run to its end
PATIENCE = [1.0]  # by which all these times are multiplied, for a machine that is busy with other work
TALLY = "{name: fault_parts:Tally}"

SMALL = ["logger=[console]", "log_every_sec=0.2", "resources.device=cpu", "resources.start_timeout_sec=600"]
CARTPOLE = ["env=CartPole-v1", *SMALL]
TINY_PPO = ["algo=ppo", *CARTPOLE, "algo.fragment_length=32", "algo.batch_size=128", "algo.minibatch_size=64",
            "algo.num_epochs=1", "model.hidden=[16]"]  # fmt: skip
LOCAL = ["resources.inference=local", "resources.num_samplers=2"]
SERIAL = ["resources.inference=serial"]
FOR_EVER = "env_steps=1e9"


def wrappers(*inside: str) -> str:
    """The word that wraps environments: in Tally, which counts, and then in these."""
    return f"env.wrappers=[{','.join([TALLY, *inside])}]"


def once(fault: str, **options: object) -> str:
    """An environment that misbehaves in this way once."""
    more = "".join(f", {name}: {str(value).lower()}" for name, value in options.items())
    return wrappers(f"{{name: fault_parts:Once, fault: {fault}{more}}}")


class NotHere(Exception):
    """This machine does not allow what a row needs."""


class Broken(Exception):
    """A run did not do what was expected of it, so that the row cannot go on."""


@dataclass
class Trial:
    """One row of the battery while it is tried."""

    folder: Path
    quick: bool
    rng: random.Random
    asked: int | None = None  # the number of tries that the user asked for
    tries: int = 0
    survived: int = 0
    ended: int = 0
    lost: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    skipped: str = ""
    runs: list[Run] = field(default_factory=list)

    def many(self, quick: int, full: int) -> int:
        """How often a fault is tried that comes at random moments."""
        return self.asked or (quick if self.quick else full)

    def expect(self, holds: object, problem: str) -> bool:
        """Notes a problem unless something holds."""
        if not holds:
            self.problems.append(problem)
        return bool(holds)

    def train(self, name: str, *words: str, **options) -> Run:
        """Starts `rlrun train words...` in a directory of this name."""
        path = options.pop("path", self.folder / name)
        return Run(self, name, path, ["train", *words, f"run_dir={path}"], **options)

    def close(self) -> None:
        """Ends all runs that are still there."""
        for run in self.runs:
            run.kill_all()


class Run:
    """One command in a process of its own. `path` is its run directory."""

    def __init__(
        self,
        trial: Trial,
        name: str,
        path: Path,
        command: Sequence[str],
        before: Sequence[str] = (),
        limits: dict[int, int] | None = None,
        env: dict[str, str] | None = None,
        cwd: Path | None = None,
    ):
        """before: words before the command, such as unshare. limits: resource limits of the process."""
        self.trial, self.name, self.path, self.command = trial, name, path, list(command)
        self.mark = uuid.uuid4().hex
        self.tally = trial.folder / f"tally {name}"
        self.tally.mkdir(parents=True, exist_ok=True)
        number = len(trial.runs)
        self.out_file, self.err_file = (trial.folder / f"{number:02d} {name}.{kind}" for kind in ("out", "err"))
        parts = os.pathsep.join([str(ROOT), str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
        given = {**os.environ, "PYTHONPATH": parts, MARK: self.mark, "RLRUN_FAULT_TALLY": str(self.tally)}
        given |= {
            "RLRUN_FAULT_RUN": str(path),
            "OMP_NUM_THREADS": "1",
            "MLFLOW_DISABLE_TELEMETRY": "true",
            **(env or {}),
        }

        def limit() -> None:
            for kind, most in (limits or {}).items():
                resource.setrlimit(kind, (most, most))

        self.shared_before = set(shared_memory())
        self.lines_before = set(self.lines())  # a resumed run has the rows of the one before until it has loaded
        self.started = time.monotonic()
        with self.out_file.open("w") as out, self.err_file.open("w") as err:
            self.process = subprocess.Popen(
                [*before, sys.executable, "-m", "rlrun", *self.command],
                stdout=out,
                stderr=err,
                stdin=subprocess.DEVNULL,
                env=given,
                cwd=cwd or trial.folder,
                start_new_session=True,
                preexec_fn=limit if limits else None,
            )
        trial.runs.append(self)

    # -- what can be seen of it ----------------------------------------------------------------------------------------

    @property
    def out(self) -> str:
        return self.out_file.read_text(errors="replace")

    @property
    def err(self) -> str:
        return self.err_file.read_text(errors="replace")

    @property
    def said(self) -> str:
        return self.out + self.err

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def lines(self) -> list[str]:
        """The complete lines of progress.jsonl."""
        try:
            text = (self.path / "progress.jsonl").read_text()
        except OSError:
            return []
        return [line for line in text.splitlines(keepends=True) if line.endswith("}\n")]

    def rows(self) -> list[dict]:
        return [json.loads(line) for line in self.lines()]

    @property
    def steps(self) -> int:
        rows = self.rows()
        return rows[-1]["env_steps"] if rows else 0

    @property
    def summary(self) -> dict:
        try:
            return json.loads((self.path / "summary.json").read_text())
        except (OSError, ValueError):
            return {}

    def known_status(self) -> str | None:
        """What rlrun itself says of how the run has ended, as in sweeps and reports."""
        from rlrun.runtime.rundir import RunDir

        return RunDir(self.path).known.get("status")

    def best(self) -> float:
        """The best mean return of its rows."""
        returns = [row["sample/return_mean"] for row in self.rows() if row.get("sample/return_mean") is not None]
        return max(returns, default=float("-inf"))

    @property
    def restarted(self) -> int:
        """The processes that were replaced."""
        rows = self.rows()
        return int(rows[-1].get("restarts/processes", 0)) if rows else 0

    @property
    def saved(self) -> list[int]:
        """The env steps of its checkpoints."""
        return sorted(int(one.name) for one in (self.path / "checkpoints").glob("[0-9]*"))

    def stepped(self) -> list[tuple[int, int]]:
        """The process of every environment and the steps that it has made, in this command and those before it in the
        same directory."""
        found = []
        for file in self.tally.glob("[0-9]*-*"):
            data, pid = file.read_bytes(), int(file.name.partition("-")[0])
            found.append((pid, struct.unpack("q", data)[0] if len(data) == 8 else 0))
        return found

    def processes(self) -> list[psutil.Process]:
        """All processes of the run that are alive."""
        found = []
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                with contextlib.suppress(OSError, psutil.Error):
                    if f"{MARK}={self.mark}".encode() in Path(f"/proc/{entry}/environ").read_bytes():
                        found.append(psutil.Process(int(entry)))
        return found

    def samplers(self, least_steps: int = 0) -> list[psutil.Process]:
        """The processes, besides the run's own, in which an environment has made so many steps."""
        old = {pid for pid, steps in self.stepped() if steps >= least_steps}
        return [one for one in self.processes() if one.pid != self.process.pid and one.pid in old]

    # -- what is done to it --------------------------------------------------------------------------------------------

    def until(self, condition: Callable[[], object], what: str, seconds: float = START_SEC) -> None:
        """Waits for something. Raises Broken when the run ends before, or when it does not happen in time."""
        end = time.monotonic() + seconds * PATIENCE[0]
        while not condition():
            if not self.running:
                if condition():
                    return
                raise Broken(f"{self.name} ended ({self.process.returncode}) before {what}: {self.words()}")
            if time.monotonic() > end:
                raise Broken(f"{self.name}: {what} did not happen within {seconds * PATIENCE[0]:.0f} s: {self.words()}")
            time.sleep(0.05)

    def until_learning(self, steps: int = 1) -> None:
        """Waits for a row that this command has written, of so many env steps."""

        def learns() -> bool:
            return any(
                line not in self.lines_before and json.loads(line)["env_steps"] >= steps
                for line in reversed(self.lines())
            )

        self.until(learns, f"{steps} env steps")

    def signal(self, number: int) -> None:
        if self.running:
            os.kill(self.process.pid, number)

    def kill_all(self) -> None:
        """Kills every process of this run."""
        for one in self.processes():
            with contextlib.suppress(psutil.Error):
                one.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(10)

    def resume(self, *words: str, **options) -> Run:
        """Starts `rlrun resume` of this run."""
        return Run(self.trial, self.name, self.path, ["resume", str(self.path), *words], **options)

    # -- what must hold ------------------------------------------------------------------------------------------------

    def words(self) -> str:
        """The last thing that the run has said, for a report of a problem."""
        lines = (self.err.strip() or self.out.strip()).splitlines()
        return f"`{lines[-1][:200]}`" if lines else "it said nothing"

    def ends(
        self,
        *codes: int,
        status: str | None = None,
        says: str | None = None,
        within: float = END_SEC,
        saved: bool | None = None,
        lock: bool = False,
    ) -> int:
        """Waits for the end and notes every promise that is broken. Returns the exit status.

        codes: those that are right. status: that of summary.json. says: a pattern that must be in what was printed.
        saved: whether there must be a checkpoint. lock: whether run.lock may be left, because the process could not
        remove it."""
        expect, name = self.trial.expect, f"{self.name}:"
        try:
            code = self.process.wait(within * PATIENCE[0])
        except subprocess.TimeoutExpired:
            self.trial.problems.append(
                f"{name} hangs: it did not end within {within * PATIENCE[0]:.0f} s; {self.words()}"
            )
            self.kill_all()
            return -signal.SIGKILL
        expect(code in codes, f"{name} exit status {code}, not {' or '.join(map(str, codes))}: {self.words()}")
        expect("Traceback" not in self.said, f"{name} a traceback is printed: {self.words()}")
        expect(code not in (1, 2) or self.err.strip(), f"{name} no sentence on stderr")
        if says is not None:
            expect(re.search(says, self.said, re.S), f"{name} does not say {says!r}: {self.words()}")
        if status is not None:
            found = self.summary.get("status")
            expect(found == status, f"{name} summary.json says {found}, not {status}")
        if saved is not None:
            expect(bool(self.saved) is saved, f"{name} has {'no' if saved else 'a'} checkpoint")
        self.nothing_is_left(lock)
        self.rows_are_in_order()
        return code

    def nothing_is_left(self, lock: bool = False) -> None:
        """No process, nothing in /dev/shm, no temporary files and no lock."""
        expect, name = self.trial.expect, f"{self.name}:"
        end = time.monotonic() + 8.0  # a resource tracker ends a moment after its parent

        def left() -> tuple[list[str], list[str]]:
            there = []
            for one in alive(self.processes()):
                with contextlib.suppress(psutil.Error):  # it may have ended meanwhile
                    there.append(f"{one.pid} {' '.join(one.cmdline())[-60:]}")
            return there, sorted(set(shared_memory()) - self.shared_before)

        processes, memory = left()
        while (processes or memory) and time.monotonic() < end:
            time.sleep(0.1)
            processes, memory = left()
        expect(not processes, f"{name} processes are left: {processes}")
        expect(not memory, f"{name} /dev/shm holds {memory}")
        if not lock and self.path.is_dir():
            hidden = [one.name for one in self.path.rglob(".*") if not one.name.endswith(".signature")]
            expect(not hidden, f"{name} temporary files are left: {hidden[:3]}")
            expect(not (self.path / "run.lock").exists(), f"{name} run.lock is left")
        if processes:
            self.kill_all()

    def rows_are_in_order(self) -> None:
        steps = [row["env_steps"] for row in self.rows()]
        self.trial.expect(steps == sorted(steps), f"{self.name}: env steps of progress.jsonl go back")

    def counts_are_right(self, slack: int, least: int = 0) -> int:
        """No env step is counted twice, and those that were lost are said. Returns the number lost.

        slack: env steps that samplers may have made and not handed over when the run ended. least: how many must be
        said to be lost."""
        rows, made = self.rows(), sum(steps for _, steps in self.stepped())
        counted, lost = rows[-1]["env_steps"], int(rows[-1].get("restarts/lost_env_steps", 0))
        self.trial.expect(counted <= made, f"{self.name}: {counted} env steps are counted, and {made} were made")
        self.trial.expect(lost >= least, f"{self.name}: {lost} env steps are said to be lost, and {least} or more were")
        self.trial.expect(
            counted + lost + slack >= made,
            f"{self.name}: {made} env steps were made; {counted} are counted and {lost} said to be lost",
        )
        return lost


def alive(processes: Sequence[psutil.Process]) -> list[psutil.Process]:
    found = []
    for one in processes:
        with contextlib.suppress(psutil.Error):
            if one.status() != psutil.STATUS_ZOMBIE:
                found.append(one)
    return found


def shared_memory() -> Iterator[str]:
    """Names in /dev/shm whose maker is gone: torch_<pid>_..., rlrun-ranks-<pid>-..., psm_..."""
    for name in os.listdir("/dev/shm") if os.path.isdir("/dev/shm") else ():
        made = re.fullmatch(r"(?:torch_|rlrun-ranks-)(\d+)\W?_?.*", name)
        if made and not psutil.pid_exists(int(made[1])):
            yield name


@contextlib.contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[Path]:
    """A file system of this size, mounted in a folder. Raises NotHere where this machine does not allow it."""
    folder.mkdir(parents=True, exist_ok=True)
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)], capture_output=True, text=True
    )
    if made.returncode:
        raise NotHere(f"no small disk can be mounted here ({made.stderr.strip()})")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=False)


def may_unshare() -> bool:
    """Whether a process may have mounts of its own here."""
    try:
        return subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode == 0
    except OSError:
        return False


@dataclass(frozen=True)
class Row:
    name: str
    fault: str
    try_it: Callable[[Trial], None]
    full_only: bool


ROWS: dict[str, Row] = {}


def row(name: str, fault: str, full_only: bool = False) -> Callable[[Callable[[Trial], None]], Callable[[Trial], None]]:
    """Makes a function a row of the battery. full_only: whether --quick leaves it out."""

    def keep(function: Callable[[Trial], None]) -> Callable[[Trial], None]:
        ROWS[name] = Row(name, fault, function, full_only)
        return function

    return keep


@dataclass(frozen=True)
class Result:
    row: Row
    tries: int
    survived: int
    ended: int
    seconds: float
    lost: str
    problems: tuple[str, ...]
    skipped: str


def attempt(name: str, quick: bool, folder: Path | None = None, tries: int | None = None, seed: int = 0) -> Result:
    """Tries one row in a folder, by default a new one, which is removed if nothing was wrong. tries: of faults that come
    at random moments; None: as many as a quick or a full battery has."""
    chosen = ROWS[name]
    place = Path(tempfile.mkdtemp(prefix=f"rlrun-fault-{name}-")) if folder is None else folder
    trial = Trial(place, quick, random.Random(f"{name} {seed}"), tries)
    began = time.monotonic()
    try:
        chosen.try_it(trial)
    except Broken as error:
        trial.problems.append(str(error))
    except NotHere as error:
        trial.skipped = str(error)
    finally:
        trial.close()
    took = time.monotonic() - began
    if trial.problems:
        trial.problems.append(f"the runs are in {place}")
    elif folder is None:
        shutil.rmtree(place, ignore_errors=True)
    lost = "; ".join(dict.fromkeys(trial.lost)) or "nothing"
    return Result(chosen, trial.tries, trial.survived, trial.ended, took, lost, tuple(trial.problems), trial.skipped)
