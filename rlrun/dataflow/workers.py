"""Starts, supervises and stops worker processes.

Each worker has its own pipe. Two workers never share a pipe or a lock, so a killed worker cannot block another.

A process that starts workers has one more, the fork server of Python's multiprocessing. It imports PyTorch and the
modules that workers need (preload.py), does nothing else, and is forked for each of them. So a worker starts in a
moment, where importing takes seconds of a core, and all share the memory of what was imported. The run's own process
cannot be forked, because fork after torch has run hangs (pytorch#17199).
"""

from __future__ import annotations

import ctypes
import math
import multiprocessing
import os
import selectors
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from multiprocessing import forkserver, resource_tracker, util
from multiprocessing.connection import Connection
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

from rlrun.core.awake import awake, patiently
from rlrun.core.errors import Diverged, Notice, ProcessLost, RunFailed, UserError, explained, show_notices
from rlrun.core.outputs import go_on_unread
from rlrun.core.pulse import Limits
from rlrun.core.variables import variables
from rlrun.machine.memory import keep_freed

FORKS = sys.platform == "linux"  # the fork server; elsewhere every worker is spawned and imports for itself
CONTEXT: Any = multiprocessing.get_context("forkserver" if FORKS else "spawn")
KILLED_SEC = 60.0  # time that a killed process may take to end, which one that fills the memory needs
# Bytes of the path of a folder in which the sockets of multiprocessing fit, which the system allows 107 bytes.
LONGEST_TEMP = 70
START_SEC = 120.0  # time that a process may take to start, unless start_within() says otherwise
# Signals that workers ignore. Ctrl-C, schedulers and a closed terminal send them to the whole process group, but only
# the run's own process decides what happens.
DECIDED = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1}
READY = "ready"  # a worker's first message


class _Start:
    """How long processes that this one starts may take until they are ready, and whether the fork server has started
    none yet."""

    sec, unused = START_SEC, False


def start_within(seconds: float) -> None:
    """Sets the time that processes may take to start (resources.start_timeout_sec), for all workers of this process."""
    _Start.sec = seconds


def start_sec() -> float:
    return _Start.sec


class _Failure(NamedTuple):
    """The last message of a worker that raised."""

    text: str
    diverged: bool  # whether the learner itself failed


class _Carried:
    """Functions without arguments that every new process calls before it begins, such as one that registers an
    environment there. They are pickled."""

    functions: ClassVar[list[Callable[[], None]]] = []


class _Ends:
    """Functions that a worker calls at its end."""

    functions: ClassVar[list[Callable[[], object]]] = []


def at_end(close: Callable[[], object]) -> None:
    """Lets this worker call close() when its parent has closed their pipe, or after an error, but not when it is
    killed. An environment may have started programs or have files open."""
    _Ends.functions.append(close)


def _end(code: int) -> None:
    """Ends this worker at once, without the interpreter's own end, which may wait for threads."""
    for close in reversed(_Ends.functions):
        with suppress(Exception):  # it is the user's code, and its run is over
            close()
    os._exit(code)


@contextmanager
def carrying(functions: Sequence[Callable[[], None]]) -> Iterator[None]:
    """Lets all processes that start meanwhile call these functions first, and so do the processes that they start."""
    before = _Carried.functions
    _Carried.functions = [*before, *functions]
    try:
        yield
    finally:
        _Carried.functions = before


def carries() -> bool:
    """Tells whether new processes of this machine are told of something that other machines do not know."""
    return bool(_Carried.functions)


def _leave_server() -> None:
    """Makes the fork server end with the process that has started it: it waits until nobody holds the other end of a
    pipe, which every worker inherits. A worker that starts workers has a server of its own."""
    server: Any = forkserver._forkserver  # type: ignore[attr-defined]
    held = server._forkserver_alive_fd
    server.__init__()
    if held is not None:
        os.close(held)


def _bootstrap(
    target: Callable,
    pipe: Connection,
    environment: dict[str, str],
    args: tuple,
    carried: list[Callable[[], None]],
) -> None:
    parent = os.getppid()
    if FORKS:
        _leave_server()
        os.environ.clear()
        os.environ.update(environment)
    if sys.platform == "linux":  # 1 is PR_SET_PDEATHSIG: a child must not outlive a killed parent
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
    for number in DECIDED:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, DECIDED)
    go_on_unread()
    show_notices()
    keep_freed()
    import numpy as np
    import torch

    torch.set_num_threads(1)
    # The fork server's states would be the same in all workers. Environments may draw from the global generators.
    np.random.seed()
    torch.seed()
    try:
        _Carried.functions = carried
        for function in carried:
            function()
        target(pipe, *args)
    except BaseException as error:
        try:  # also of a broken connection, which may be one to a simulator
            pipe.send(_Failure(explained(error), isinstance(error, Diverged)))
        except OSError:  # the parent has ended, or needs this process no more
            _end(0 if isinstance(error, BrokenPipeError | EOFError | ConnectionResetError) else 1)
        finally:
            pipe.close()
        _end(1)


def _child_environment(gpu: bool, more: Mapping[str, str] = MappingProxyType({})) -> AbstractContextManager[None]:
    """Sets the child's environment, before it imports anything: one thread, and no GPU unless it learns."""
    change = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1") | dict(more)
    if not gpu:
        change["CUDA_VISIBLE_DEVICES"] = ""
    return variables(change)


@contextmanager
def _kept_from_signals():
    """A signal to the whole process group must not end a process that is still importing, nor the fork server ever.
    Processes that start meanwhile inherit that they do not hear of it."""
    resource_tracker.ensure_running()  # starting it would unblock SIGINT again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, DECIDED)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _choose_socket_folder() -> None:
    """Lets multiprocessing keep its sockets in another folder than that for temporary files, where the path of that one
    is too long, as it may be in a job of a cluster, or where there is none, as in a container that may only be read.

    Raises UserError where there is no other one."""
    try:
        if len(os.fsencode(tempfile.gettempdir())) <= LONGEST_TEMP:
            return
    except FileNotFoundError:
        pass
    folder = next((one for one in ("/tmp", "/dev/shm") if os.access(one, os.W_OK | os.X_OK)), None)
    if folder is None:
        raise UserError(
            f"a run keeps sockets in the folder for temporary files, and there is none with a path of at most"
            f" {LONGEST_TEMP} bytes that can be written: set TMPDIR to one"
        )
    before, tempfile.tempdir = tempfile.tempdir, folder
    try:
        util.get_temp_dir()  # makes a folder there for all sockets of this process, unless it has one
    finally:
        tempfile.tempdir = before


def main_script() -> str | None:
    """The path of this program's script, which new processes import too. None for a program that is no file, as in a
    notebook or in `python - < FILE`, whose path Python calls <stdin>, and for one whose file is gone."""
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    there = file is not None and Path(multiprocessing.process.ORIGINAL_DIR or "", file).is_file()  # type: ignore[attr-defined]
    return file if there else None


@contextmanager
def _without_lost_script() -> Iterator[None]:
    """Keeps processes that start meanwhile from importing a script that is no file."""
    main = sys.modules.get("__main__")
    file = getattr(main, "__file__", None)
    if file is None or main_script() is not None:
        yield
        return
    del main.__file__  # type: ignore[union-attr]
    try:
        yield
    finally:
        main.__file__ = file  # type: ignore[union-attr]


def _start_server() -> None:
    """Starts the fork server, unless it runs already."""
    if not FORKS:
        return
    _choose_socket_folder()
    # As learners need it; the fork server itself never touches a GPU. Nothing is imported from the current folder.
    with _child_environment(gpu=True, more={"PYTHONSAFEPATH": "1"}):
        forkserver.set_forkserver_preload(["rlrun.dataflow.preload"])
        forkserver.ensure_running()


def warm() -> None:
    """Lets the fork server begin to import, because workers will be needed soon. It does so on another core while this
    process imports and builds what it needs itself."""
    server: Any = forkserver._forkserver  # type: ignore[attr-defined]
    before = server._forkserver_pid
    with _kept_from_signals():
        _start_server()
    _Start.unused = _Start.unused or server._forkserver_pid != before


def cool() -> None:
    """Ends a fork server that warm() has started and that no worker has come from, because none is needed after all."""
    server: Any = forkserver._forkserver  # type: ignore[attr-defined]
    if FORKS and _Start.unused and server._forkserver_pid is not None:
        with suppress(ProcessLookupError):
            os.kill(server._forkserver_pid, signal.SIGKILL)  # it may be importing, and would go on
        server._stop()
    _Start.unused = False


class Worker:
    """One process and its pipe. A learner sees the GPUs and may start its own workers."""

    def __init__(self, name: str, target: Callable, args: tuple, learner: bool = False):
        self.name = name
        self.pipe, child = CONTEXT.Pipe()
        _Start.unused = False
        try:
            with _kept_from_signals():
                _start_server()
                with _child_environment(gpu=learner), _without_lost_script():
                    told = (target, child, dict(os.environ), args, _Carried.functions)
                    self.process = CONTEXT.Process(target=_bootstrap, args=told, name=name, daemon=not learner)
                    self.process.start()
        except (EOFError, ConnectionError):
            raise ProcessLost(f"{name} could not be started: the process that forks workers has died") from None
        finally:
            child.close()


class Workers:
    """A group of workers that are waited for together."""

    def __init__(self) -> None:
        self.members: list[Worker] = []
        self.by_handle: dict[Any, Worker] = {}
        # It holds all handles permanently, because registering them at every wait would take longer than the wait.
        self.selector = selectors.DefaultSelector()
        self.starting: set[str] = set()  # names of those that start_all() has started and that have not sent READY
        self.late = 0.0  # when one of these is late

    def start(self, name: str, target: Callable, args: tuple, learner: bool = False) -> Worker:
        """Runs target(pipe, *args) in a fresh process. args are pickled."""
        worker = Worker(name, target, args, learner)
        self.members.append(worker)
        for handle in (worker.pipe, worker.process.sentinel):
            self.by_handle[handle] = worker
            self.selector.register(handle, selectors.EVENT_READ)
        return worker

    def start_all(
        self, target: Callable, jobs: Mapping[str, tuple], learner: bool = False, wait: bool = True
    ) -> list[Worker]:
        """Starts target(pipe, *jobs[name]) for every name and waits until all have sent READY. If one fails, all are
        stopped. Raises RunFailed as until_ready() does. wait: False leaves the waiting to until_ready()."""
        try:
            started = [self.start(name, target, args, learner) for name, args in jobs.items()]
        except BaseException:
            self.stop()
            raise
        self.starting, self.late = {worker.name for worker in started}, awake() + start_sec()
        if wait:
            self.until_ready(math.inf)
        return started

    def until_ready(self, seconds: float) -> int:
        """Waits until all workers of start_all() have sent READY, but no longer than `seconds`. Returns how many have
        not. If one fails, all are stopped. Raises RunFailed for one that has died, or that did not start within
        start_sec() after the others."""
        end = awake() + seconds
        try:
            while self.starting:
                messages = self.receive_or_nothing(max(0.0, min(end, self.late) - awake()))
                here = {worker.name for worker, message in messages if message == READY}
                if here:  # many processes on few cores start one after another
                    self.starting, self.late = self.starting - here, awake() + start_sec()
                elif awake() >= self.late:
                    late = sorted(self.starting)
                    more = f" (nor did {len(late) - 1} other{'s' * (len(late) > 2)})" if len(late) > 1 else ""
                    raise RunFailed(
                        f"{late[0]} did not start within {start_sec():g} s{more}: its environment may be slow to make"
                        " or hang, or this machine may be busy; resources.start_timeout_sec allows more"
                    )
                if awake() >= end:
                    break
        except BaseException:
            self.stop()
            raise
        return len(self.starting)

    def receive(self, timeout: float) -> list[tuple[Worker, Any]]:
        """Returns the messages that have arrived, or that arrive within `timeout` seconds.

        Raises RunFailed when a worker failed, and ProcessLost when one died or when timeout > 0 and no message arrived.
        """
        messages = self.receive_or_nothing(timeout)
        if not messages and timeout > 0:
            raise ProcessLost(no_word([worker.name for worker in self.members], timeout))
        return messages

    def receive_or_nothing(self, timeout: float) -> list[tuple[Worker, Any]]:
        """Like receive(), but does not fail when no message arrives."""
        ready = self._ready(timeout)
        messages = []
        for handle in ready:
            worker = self.by_handle[handle]
            if handle is worker.pipe:
                read, end = self._drain(worker, there=True)
                if end is not None:
                    raise end
                messages += read
        for handle in ready:
            worker = self.by_handle[handle]
            if handle is not worker.pipe:
                _, end = self._drain(worker)  # the worker's last message explains more than its exit code
                raise end or ProcessLost(f"{worker.name} {how_it_ended(worker.process)}")
        return messages

    def receive_from_survivors(self, timeout: float) -> tuple[list[tuple[Worker, Any]], list[tuple[Worker, str]]]:
        """Like receive_or_nothing(), but does not fail when a worker died. Returns the messages, also those that a
        worker sent before it died, and the workers that have died, each with the reason. Raises Diverged when the
        learner itself failed in one, because it would fail again."""
        messages, lost = [], {}
        ready = self._ready(timeout)
        for worker in dict.fromkeys(self.by_handle[handle] for handle in ready):
            read, end = self._drain(worker)
            if isinstance(end, Diverged):
                raise end
            messages += read
            if end is not None:
                lost[worker] = str(end)
            elif worker.process.sentinel in ready:
                lost[worker] = f"{worker.name} {how_it_ended(worker.process)}"
        return messages, list(lost.items())

    def bury(self, worker: Worker) -> None:
        """Kills this worker if it still runs, and forgets it."""
        self.members.remove(worker)
        for handle in [handle for handle, one in self.by_handle.items() if one is worker]:
            del self.by_handle[handle]
            self.selector.unregister(handle)
        worker.pipe.close()
        if worker.process.is_alive():
            worker.process.kill()
        _reap(worker)

    def _ready(self, timeout: float) -> list[Any]:
        """Returns the pipes with a message and the sentinels of dead workers; waits up to `timeout` seconds for one."""
        return [key.fileobj for key, _ in patiently(self.selector.select, timeout)]

    def _drain(self, worker: Worker, there: bool = False) -> tuple[list[tuple[Worker, Any]], RunFailed | None]:
        """Reads all messages of a worker. Returns them, and the error that says how it ended if nothing can follow.

        there: a message, or the end of the pipe, is known to be there."""
        messages: list[tuple[Worker, Any]] = []
        try:
            while there or worker.pipe.poll():
                there = False
                message = worker.pipe.recv()
                if isinstance(message, _Failure):
                    failed = Diverged if message.diverged else RunFailed
                    return messages, failed(f"{worker.name} failed: {message.text.rstrip()}")
                messages.append((worker, message))
        except (EOFError, OSError):  # multiprocessing raises an OSError where the end comes inside a message
            return messages, ProcessLost(f"{worker.name} {how_it_ended(worker.process)}")
        return messages, None

    def send(self, worker: Worker, message: Any) -> None:
        try:
            worker.pipe.send(message)
        except (BrokenPipeError, ConnectionResetError):
            _, end = self._drain(worker)
            raise (end or ProcessLost(f"{worker.name} {how_it_ended(worker.process)}")) from None

    def stop(self, grace_sec: float = Limits().end_sec) -> list[str]:
        """Ends every process, first by closing its pipe and after grace_sec by SIGKILL. Returns the names of those that
        were killed when all have ended.

        An impatient Ctrl-C ends the grace: processes that live on would keep this one from ever exiting."""
        self.selector.close()
        for worker in self.members:
            worker.pipe.close()
        deadline, killed = awake() + grace_sec, []
        try:
            for worker in self.members:
                worker.process.join(max(0.0, deadline - awake()))
        finally:
            for worker in self.members:
                if worker.process.is_alive():
                    worker.process.kill()
                    killed.append(worker.name)
            for worker in self.members:
                _reap(worker)
            self.members, self.by_handle, self.selector = [], {}, selectors.DefaultSelector()
            self.starting = set()
        return killed

    def stop_recorders(self, limits: Limits) -> None:
        """Ends processes that may write a recording at their end, and warns where one was killed over it."""
        killed = self.stop(limits.end_sec)
        if killed and limits.end_sec > Limits().end_sec:
            names = ", ".join(killed)
            said = f"{names}: not ended after {limits.end_sec:g} s and killed; the last rows were not recorded (record)"
            warnings.warn(said, Notice, stacklevel=2)


def _reap(worker: Worker) -> None:
    """Waits until a process that was killed, or is about to exit, has ended. One that waits inside the system, as for a
    network drive that is gone, cannot be killed; it is left alone, or the run would never end either."""
    process = worker.process
    process.join(KILLED_SEC)
    if process.exitcode is not None:
        process.close()
        return
    said = f"{worker.name} (process {process.pid}) was killed and has not ended for {KILLED_SEC:g} s; it is left alone"
    warnings.warn(said, Notice, stacklevel=3)
    multiprocessing.process._children.discard(process)  # type: ignore[attr-defined]  # nor is it waited for at the exit


def no_word(names: Sequence[str], seconds: float) -> str:
    return (
        f"no word from {', '.join(names)} for {seconds:.0f} s, in which no environment made a step: one of them or the"
        f" policy may hang (runner.queue_timeout_sec)"
    )


def how_it_ended(process) -> str:
    """Returns a phrase such as 'was killed by SIGKILL (out of memory, or by hand)'."""
    process.join(5)  # pipes close a moment before the system knows the exit code
    code = process.exitcode
    if code is None:
        return "closed its pipe but still runs"
    if code < 0:
        name = signal.Signals(-code).name
        return f"was killed by {name}" + (" (out of memory, or by hand)" if name == "SIGKILL" else "")
    return f"exited with code {code}"
