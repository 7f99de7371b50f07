"""Ray as the engine for many machines. Only this file of rlrun uses Ray.

Ray starts with a run and stops with it. A cluster that was there before is joined and left, and never stopped. Anybody
who reaches Ray's ports may run code there, so a cluster without a token is refused, and what rlrun starts has one.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import importlib.util
import itertools
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rlrun.cluster.engine import Host, HostLost
from rlrun.cluster.reaper import Reaper
from rlrun.core.errors import RunFailed, UserError
from rlrun.core.installing import install_line
from rlrun.core.pulse import Limits
from rlrun.machine.nodes import Node, RayConfig

# Ray notices a dead machine within 15 seconds instead of a minute, and a busy head has two seconds to answer.
HEALTH = {
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_failure_threshold": "5",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_initial_delay_ms": "2000",
}
# Ray would give its workers, and with them samplers and jobs, the niceness 15: other work would then stop them.
FAIR = {"RAY_worker_niceness": "0"}
# Ray would end the run's own process a minute after the head is lost. rlrun saves the run and ends it before.
PATIENT = {"RAY_gcs_rpc_server_reconnect_timeout_s": "600"}
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # Ray keeps what it knows of the last 100,000 calls for its dashboard, which is off.
    "RAY_task_events_report_interval_ms": "0",
}
PROBE_SEC = 60.0
REACH_SEC = 10.0  # that a machine may take to answer at all
LONGEST_TEMP = 8  # letters of the path of a folder for temporary files in which Ray's sockets fit
GET_SEC = 60.0  # that an answer may take on its way
HEAD_LOOK_SEC = 3.0  # seconds between two looks at whether the head of the cluster answers
HEAD_GONE_SEC = 15.0  # after which a head that does not answer is lost
GONE = "its machine has died"


def check_installed(what: str = "resources=ray") -> None:
    """Raises UserError where Ray is not installed. It is not imported, because it reads its settings when it is.

    what: what needs Ray."""
    if importlib.util.find_spec("ray") is None:
        raise UserError(f"{what} needs Ray: {install_line('ray')}")


def token_file() -> Path:
    return Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token")


def make_token() -> None:
    """Makes the token with which Ray's processes know each other, readable by this user alone, unless there is one."""
    path = token_file()
    if os.environ.get("RAY_AUTH_TOKEN"):
        return
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not path.exists():
        # It is written under another name first, so that no other run ever reads half of it. mkstemp: mode 0600.
        file, name = tempfile.mkstemp(prefix=f"{path.name}-", dir=path.parent)
        with os.fdopen(file, "w") as out:
            out.write(secrets.token_hex(32))
        try:
            os.link(name, path)
        except FileExistsError:  # another run was faster
            pass
        except OSError:  # no links in this file system
            os.replace(name, path)
        Path(name).unlink(missing_ok=True)
    if path.stat().st_mode & 0o077:
        path.chmod(0o600)


@contextlib.contextmanager
def _signals_kept() -> Iterator[None]:
    """Keeps this process's answers to signals, which Ray replaces where it may: in the main thread. One that comes
    while Ray starts must find rlrun's answer too, so Ray's own function for that does nothing meanwhile."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.getsignal(number) for number in numbers}
    utils: Any = None
    with contextlib.suppress(ImportError):
        from ray._private import utils  # type: ignore[no-redef]
    theirs = getattr(utils, "set_sigterm_handler", None)
    if theirs is not None:
        utils.set_sigterm_handler = lambda handler: None
    try:
        yield
    finally:
        if theirs is not None:
            utils.set_sigterm_handler = theirs
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _one_sentence(said: str) -> Iterator[None]:
    """Raises UserError, with the first line of the reason, for what Ray raises when it starts or joins a cluster:
    ConnectionError, ValueError, RuntimeError and others."""
    try:
        yield
    except Exception as error:
        lines = str(error).strip().splitlines()
        raise UserError(f"{said}: {lines[0] if lines else type(error).__name__}") from None


class _Host:
    """A host in an actor of Ray."""

    def __init__(self, actor: Any, name: str, node: str):
        self.actor, self.name, self.node = actor, name, node

    def call(self, method: str, *args: Any) -> Any:
        return self.actor.call.remote(method, *args)


class _Actor:
    """What runs in an actor's process: one object of the class that it was told."""

    def __init__(self, kind: str, brief: bytes, path: list[str]):
        sys.path += [folder for folder in path if folder not in sys.path]
        module, _, name = kind.partition(":")
        self.made = getattr(importlib.import_module(module), name)(brief)

    def call(self, method: str, *args: Any) -> Any:
        return getattr(self.made, method)(*args)


RUNNING: list[RayEngine] = []  # the engines of this process


class RayEngine:
    """An engine.Engine."""

    def __init__(self, cfg: RayConfig, planned: Sequence[Node], option: str = "resources.ray."):
        """planned: the nodes to start on this machine, where cfg has no address. option: what stands before the names
        of options where they were given, for messages."""
        check_installed()
        self.cfg, self.option = cfg, option
        self.cluster: Any = None  # simulated nodes
        self.folder: Path | None = None  # of what this run has started
        self.reaper: Reaper | None = None  # of the same
        os.environ.update(
            {name: os.environ.get(name, value) for name, value in (HEALTH | FAIR | PATIENT | QUIET).items()}
        )
        make_token()
        open_ = cfg.address is not None and cfg.allow_open
        os.environ["RAY_AUTH_MODE"] = "disabled" if open_ and not self._wants_token() else "token"
        try:
            import ray
        except ImportError as error:
            raise UserError(f"Ray cannot be imported ({error}): {install_line('ray')}") from None
        self.ray: Any = ray
        if ray.is_initialized():
            raise UserError(
                "this process uses Ray already: call ray.shutdown() first, or begin the run in a process of its own"
            )
        try:
            with _signals_kept():
                if cfg.address is not None:
                    self._join()
                else:
                    with _one_sentence("Ray could not be started on this machine"):
                        self._begin(planned)
        except BaseException:
            self.close()
            raise
        host, _, port = ray.get_runtime_context().gcs_address.rpartition(":")
        self.head = (host.strip("[]"), int(port))
        self.looked = self.answered = time.monotonic()  # at the head, and when it answered last
        self.headless = False
        atexit.register(self.close)
        RUNNING.append(self)
        self.remote = ray.remote(_Actor)
        self.names: dict[str, str] = {}  # of nodes, by Ray's id
        with contextlib.suppress(ImportError):
            from ray._private import worker

            # Ray prints the last 20 lines of a dead node's log to the terminal; rlrun says itself what was lost.
            worker.print_to_stdstream = lambda data, ignore_prefix: None

    # -- starting and stopping -----------------------------------------------------------------------------------------

    def _begin(self, planned: Sequence[Node]) -> None:
        """Starts Ray on this machine."""
        store = self.cfg.store_mb * 2**20
        # Sockets lie in it, whose paths the system allows 107 bytes; Ray's own part takes more than 80 of them.
        where = None if len(tempfile.gettempdir()) <= LONGEST_TEMP else "/tmp"
        self.folder = Path(tempfile.mkdtemp(prefix=f"rlrun-ray-{os.getpid()}-", dir=where))
        os.environ["RAY_TMPDIR"] = str(self.folder)
        self.reaper = Reaper(self.folder)
        settings = {"include_dashboard": False, "object_store_memory": store}
        if not self.cfg.simulate:
            self.ray.init(
                address="local",
                num_cpus=planned[0].cores,
                num_gpus=0,
                log_to_driver=False,
                logging_level="error",
                **settings,
            )
            return
        from ray.cluster_utils import Cluster  # type: ignore[import-not-found]

        first, *others = planned
        self.cluster = Cluster(
            initialize_head=True,
            head_node_args={"num_cpus": first.cores, "num_gpus": 0, **settings},
        )
        for node in others:
            self.add_node(node.cores)
        self.ray.init(address=self.cluster.address, log_to_driver=False, logging_level="error")

    def add_node(self, cores: int) -> Any:
        """Lets another simulated node join. Returns Ray's object for it."""
        assert self.cluster is not None, "only simulated nodes can be added"
        return self.cluster.add_node(num_cpus=cores, num_gpus=0, object_store_memory=self.cfg.store_mb * 2**20)

    def _join(self) -> None:
        """Joins a cluster that is there."""
        if not self.cfg.allow_open and not self._wants_token():
            raise UserError(
                f"the Ray cluster at {self.cfg.address} wants no token, so anybody who reaches its ports may run code"
                " there. Start it with RAY_AUTH_MODE=token and the same token on every machine (docs/cluster.md), or"
                f" accept this with {self.option}allow_open=true"
            )
        with _one_sentence(f"{self.option}address={self.cfg.address}: no Ray cluster could be joined there"):
            self.ray.init(address=self.cfg.address, log_to_driver=False, logging_level="error")

    def _wants_token(self) -> bool:
        """Tells whether the cluster refuses those who have no token. It is tried in a process of its own.

        Raises UserError where that cannot be found out."""
        self._check_reached()
        code = "import os, ray; ray.init(os.environ['RLRUN_TRIED'], log_to_driver=False, logging_level='error')"
        environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_AUTH")} | {
            "RAY_AUTH_MODE": "disabled",
            "RLRUN_TRIED": str(self.cfg.address),
        }
        try:
            tried = subprocess.run(
                [sys.executable, "-c", code],
                env=environment,
                capture_output=True,
                timeout=PROBE_SEC,
            )
        except subprocess.TimeoutExpired:
            raise UserError(
                f"{self.option}address={self.cfg.address}: nobody there said within {PROBE_SEC:g} s whether it wants a"
                " token; the machine may be too busy, so try again"
            ) from None
        return tried.returncode != 0

    def _check_reached(self) -> None:
        """Raises UserError where nobody answers at the address. Ray itself would try for a minute."""
        host, colon, port = str(self.cfg.address).rpartition(":")
        if not colon or not port.isdecimal():
            return  # "auto", or what Ray has to judge
        try:
            socket.create_connection((host.strip("[]"), int(port)), REACH_SEC).close()
        except OSError as error:
            raise UserError(
                f"{self.option}address={self.cfg.address}: no Ray cluster could be joined there:"
                f" {error.strerror or error}"
            ) from None

    def close(self) -> None:
        """Leaves a cluster that was there before, and ends one that this run has started."""
        atexit.unregister(self.close)
        if self in RUNNING:
            RUNNING.remove(self)
        with _signals_kept():
            if self.ray.is_initialized():
                self.ray.shutdown()
            if self.cluster is not None:
                self.cluster.shutdown()
                self.cluster = None
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
            os.environ.pop("RAY_TMPDIR", None)
            self.folder = None
        if self.reaper is not None:
            self.reaper.close()
            self.reaper = None

    # -- engine.Engine -------------------------------------------------------------------------------------------------

    def _check_head(self) -> None:
        """Raises RunFailed where the head of the cluster is lost. Calls of Ray that need it would wait for it."""
        now = time.monotonic()
        if not self.headless and now - self.looked < HEAD_LOOK_SEC:
            return
        if now - self.looked > HEAD_GONE_SEC:  # nobody has looked for long, as in a long update
            self.answered = now
        self.looked = now
        try:
            socket.create_connection(self.head, HEAD_LOOK_SEC).close()
            self.answered, self.headless = now, False
        except OSError as error:
            self.headless = True
            if now - self.answered > HEAD_GONE_SEC:
                raise RunFailed(
                    f"the head of the cluster at {self.head[0]}:{self.head[1]} does not answer any more"
                    f" ({error.strerror or error}): its machine or its Ray has ended"
                ) from None

    def nodes(self) -> list[Node]:
        while True:
            self._check_head()
            if not self.headless:
                break
            time.sleep(0.5)
        alive = [one for one in self.ray.nodes() if one["Alive"]]
        head = self.ray.get_runtime_context().get_node_id()
        alive.sort(key=lambda one: (one["NodeID"] != head, one["NodeManagerAddress"], one["NodeManagerPort"]))
        for one in alive:
            if one["NodeID"] not in self.names:
                name, used = one["NodeName"] or one["NodeManagerAddress"], set(self.names.values())
                more = next(n for n in itertools.count(1) if (name if n == 1 else f"{name}#{n}") not in used)
                self.names[one["NodeID"]] = name if more == 1 else f"{name}#{more}"
        return [Node(self.names[one["NodeID"]], int(one["Resources"].get("CPU", 0))) for one in alive]

    def address(self) -> str:
        if self.cfg.address is None:  # what runs on this machine alone is not shown to others
            return "127.0.0.1"
        here = self.ray.get_runtime_context().get_node_id()
        return str(next(one["NodeManagerAddress"] for one in self.ray.nodes() if one["NodeID"] == here))

    def start(self, kind: str, name: str, node: str, brief: bytes, spare: bool = False) -> Host:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        place = next(number for number, known in self.names.items() if known == node)
        cores = 0 if spare else min(len_of(brief), next((one.cores for one in self.nodes() if one.name == node), 1))
        actor = self.remote.options(
            num_cpus=cores,
            max_restarts=0,
            max_task_retries=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(place, soft=False),
        ).remote(kind, brief, [folder for folder in sys.path if folder])
        return _Host(actor, name, node)

    def submit(self, kind: str, name: str, brief: bytes, cores: int, gpus: int) -> Host:
        """Makes an object of the class `kind` on any machine that has so many cores and GPUs free, now or later."""
        actor = self.remote.options(num_cpus=cores, num_gpus=gpus, max_restarts=0, max_task_retries=0).remote(
            kind, brief, [folder for folder in sys.path if folder]
        )
        return _Host(actor, name, "?")

    def room(self) -> list[tuple[str, int, int]]:
        """Returns (name, cores, GPUs) of the machines that are there now."""
        names = [node.name for node in self.nodes()]  # which names them
        there = {self.names[one["NodeID"]]: one["Resources"] for one in self.ray.nodes() if one["Alive"]}
        have = [(name, there[name]) for name in names if name in there]
        return [(name, int(resources.get("CPU", 0)), int(resources.get("GPU", 0))) for name, resources in have]

    def put(self, value: Any) -> Any:
        return self.ray.put(value)

    def wait(self, answers: Sequence[Any], timeout: float) -> list[Any]:
        self._check_head()
        ready, _ = self.ray.wait(list(answers), num_returns=1, timeout=timeout or 0)
        if ready and len(answers) > 1:  # those that are there beside the first
            ready, _ = self.ray.wait(list(answers), num_returns=len(answers), timeout=0)
        return ready

    def get(self, answer: Any) -> Any:
        errors = self.ray.exceptions
        try:
            return self.ray.get(answer, timeout=GET_SEC)
        except errors.ActorUnavailableError:
            raise HostLost("its process does not answer any more", machine=True) from None
        except errors.ActorUnschedulableError:  # the machine was gone before the host could start there
            raise HostLost(GONE, machine=True) from None
        except errors.GetTimeoutError:
            raise HostLost(f"its answer did not arrive within {GET_SEC:g} s", machine=True) from None
        except (errors.RayActorError, errors.ObjectLostError, errors.NodeDiedError) as error:
            if getattr(error, "actor_init_failed", False):  # as where the machine lacks a package: it would fail again
                raise RunFailed(_last_line(error)) from None
            said = _short(error)
            raise HostLost(said, machine=said == GONE) from None
        except errors.RuntimeEnvSetupError as error:
            raise RunFailed(_short(error)) from None
        except errors.RayTaskError as error:
            raise RunFailed(_last_line(error)) from None
        except errors.RayError as error:
            raise RunFailed(f"Ray failed: {_short(error)}") from None

    def stop(self, hosts: Sequence[Host], end_sec: float = Limits().end_sec) -> None:
        ends = []
        for host in hosts:
            with contextlib.suppress(Exception):  # it may be gone
                ends.append(host.call("stop"))
        end = time.monotonic() + end_sec
        if ends:
            with contextlib.suppress(Exception):
                self.ray.wait(ends, num_returns=len(ends), timeout=max(0.0, end - time.monotonic()))
        for host in hosts:
            with contextlib.suppress(Exception):
                self.ray.kill(host.actor)  # type: ignore[attr-defined]


def len_of(brief: bytes) -> int:
    """The number of samplers that a brief asks for."""
    import json

    return int(json.loads(brief).get("workers", 1))


def _last_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[-1].strip()


def _short(error: BaseException) -> str:
    """The reason that Ray gives for a loss, in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = next((line for line in lines if any(word in line for word in _ENDS)), (lines or [type(error).__name__])[0])
    if "node" in said:
        return GONE
    return "its process has died" if "died" in said else said.rstrip(".")


_ENDS = ("died", "killed", "lost", "terminated")
