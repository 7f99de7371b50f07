"""MLflow's stores and experiments. loggers/mirror.py sends a run there, and loggers/mirroring.py does so during a run.

The default store is one sqlite file in the runs' root. A lock guards its creation, because two processes that create it
at the same time would break it. A new store is made under another name and gets its own when it is complete, because
MLflow makes it in hundreds of steps, and a process that ended between two of them would leave a store that no run could
use.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import platform
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from rlrun.core.errors import UserError
from rlrun.core.passwords import masked, whole
from rlrun.core.run_lock import held

LOCK_SEC = 300.0  # on a busy machine, another run may take a minute to create the store
BESIDE = ("-journal", "-wal", "-shm")  # ends of the names of the files that SQLite keeps beside a store
LOCK, FILES = ".mlflow.lock", "mlartifacts"  # what is beside the store in a runs' root
URI_VARIABLE = "MLFLOW_TRACKING_URI"
LONGEST_NAME = 250  # characters of the name of a metric or parameter
STATUS = {"COMPLETED": "FINISHED", "STOPPED": "FINISHED", "INTERRUPTED": "KILLED", "FAILED": "FAILED"}


def available() -> bool:
    import importlib.util

    return importlib.util.find_spec("mlflow") is not None


def _set_up(uri: str) -> None:
    """Imports MLflow, and makes it quiet and quick to give up."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    # With the default number of retries, a dead server blocks for over a minute.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "5")
    os.environ.setdefault("MLFLOW_ALLOW_PICKLE_DESERIALIZATION", "false")
    import mlflow  # noqa: F401

    for name in ("mlflow", "mlflow.store.db.utils", "alembic"):  # comes after the import, which sets the loggers up
        logging.getLogger(name).setLevel(logging.WARNING)
    # It warns of every attempt at a server that is away, which loggers/mirroring.py says once.
    logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)
    if not uri.startswith("http"):
        # MLflow would ask a database that is away for minutes before it raises; loggers/mirroring.py asks again itself.
        from mlflow.store.db import utils

        utils.MAX_RETRY_COUNT = 1


def _client(uri: str):
    _set_up(uri)
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=uri)


def store_uri(root: Path) -> str:
    return _address((root / "mlflow.db").resolve())


def _address(file: Path) -> str:
    """The address of an SQLite store. SQLAlchemy would read "%" and "?" as the beginning of an escape and of options.

    MLflow makes the folder above a store without reading the escapes, which leaves an empty one beside the folder."""
    return f"sqlite:///{str(file).replace('%', '%25').replace('?', '%3F')}"


def absolute_address(uri: str | None) -> str | None:
    """The address of a store. One that names an SQLite file by a relative path gets the file's absolute path, so that
    it stays the address of this file in other working directories. Others stay as they are."""
    name = (uri or "").removeprefix("sqlite:///")
    if name in (uri, "", ":memory:") or name.startswith(("/", "file:")):
        return uri
    return f"{_address(Path.cwd())}/{name}"  # the name keeps its own escapes and options


def make_root(uri: str | None, root: str | Path) -> None:
    """Makes the folder of the SQLite store that a new run or sweep will write to; uri: as in the config.

    store_root() takes a folder that is missing for one that has been moved away."""
    if uri is not None:
        return
    try:
        Path(root).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"runs_root={root}: {error.strerror}; runs and MLflow's store would be there, and runs_root=DIR names"
            " another folder"
        ) from None


def store_root(saved: str | Path, folder: Path) -> Path:
    """The folder that holds the MLflow store of a run or a sweep. folder: that of the run or the sweep.

    It is the folder that the config has saved, if it is still there. Results that have been moved have their store in
    the nearest folder above them that holds one, or else it is made in the folder above them."""
    if Path(saved).is_dir():
        return Path(saved)
    above = list(folder.resolve().parents)
    return next((one for one in above if (one / "mlflow.db").is_file()), above[0])


def other_address(uri: str | None) -> str | None:
    """Returns a note where MLflow's own variable names a store that is not the one in the runs' root. A run does not
    read it, because a resume with another environment would look for its rows elsewhere. uri: as in the config."""
    theirs = os.environ.get(URI_VARIABLE, "").strip()
    if uri is not None or not theirs:
        return None
    return (
        f"MLflow's rows go to the store in runs_root, because rlrun does not read {URI_VARIABLE};"
        f" logger.mlflow.uri={masked(theirs)} sends them there"
    )


def has_become(known: str | None, uri: str) -> bool:
    """Whether the SQLite file of the first address may be that of the other now: it is gone, or it is the same file,
    because earlier versions wrote addresses differently."""
    file, other = _sqlite_file(known or ""), _sqlite_file(uri)
    return file is not None and other is not None and (file == other or not file.is_file())


def keeps_files(address: str | None) -> bool:
    """Whether MLflow can keep files at this address. It cannot in a folder of this machine that has been moved away,
    which MLflow would make anew."""
    place = urlsplit(address or "")
    return place.scheme != "file" or Path(unquote(place.path)).parent.is_dir()


def lies_beside(address: str | None, root: Path, file: Path | None = None) -> bool:
    """Whether the place where a store in `root` keeps files is its own folder beside it, and so is that of a file.

    A store may have been made by somebody else, who can have named any folder of this machine, and have put links
    there, or an address that is used with this user's passwords."""
    place, own = urlsplit(address or ""), (root / FILES).resolve()
    if place.scheme not in ("", "file") or place.netloc or not place.path:
        return False
    found = (Path(unquote(place.path)) / (file or "")).resolve()
    if found.is_relative_to(own):
        return True
    # One folder may be mounted at two places.
    return own.is_dir() and any(one.is_dir() and one.samefile(own) for one in (found, *found.parents))


def refuse_linked_store(root: Path) -> None:
    """Raises UserError if parts of the store in a folder are symbolic links, because what they name would be
    overwritten."""
    for part in (*sorted(root.glob("mlflow.db*")), root / LOCK, root / FILES):
        if part.is_symlink():
            raise UserError(
                f"{part} is a symbolic link, and MLflow would write to what it names: remove the link, or name the"
                " store with logger.mlflow.uri=sqlite:////FOLDER/mlflow.db"
            )


def _sqlite_file(uri: str) -> Path | None:
    """The absolute path of the file of an SQLite store, or None if the store is something else, is in memory or is
    opened with options."""
    name = uri.removeprefix("sqlite:///")
    if name in (uri, "", ":memory:") or name.startswith("file:") or "?" in name:
        return None
    return Path(unquote(name)).absolute()


def _create(file: Path) -> None:
    """Creates an SQLite store, whole or not at all, unless the file is there. The caller holds the lock."""
    if file.exists():
        return
    _set_up(_address(file))
    from mlflow.store.tracking import DEFAULT_LOCAL_FILE_AND_ARTIFACT_PATH
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    beginning = f".{file.name}.new-"
    for rest in file.parent.iterdir():
        if rest.name.startswith(beginning):
            rest.unlink()  # an attempt that failed, or whose process ended early, has left it
    new = file.with_name(f"{beginning}{time.time_ns():x}")  # MLflow keeps what it knows of a store under its name
    store = SqlAlchemyStore(_address(new.absolute()), DEFAULT_LOCAL_FILE_AND_ARTIFACT_PATH)
    store.engine.dispose()  # closes the file, so that its journal is gone too
    if file.exists():  # somebody who does not know the lock has made it
        new.unlink()
        return
    for end in BESIDE:
        file.with_name(file.name + end).unlink(missing_ok=True)  # SQLite would take them for a part of the new store
    os.replace(new, file)


@contextmanager
def _creation_lock(root: Path) -> Iterator[None]:
    """Holds the lock of the store."""
    root.mkdir(parents=True, exist_ok=True)
    try:
        descriptor = os.open(root / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise UserError(f"{root / LOCK} is a symbolic link: remove it") from None
        raise
    with os.fdopen(descriptor, "r+") as file:
        began = time.monotonic()
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() - began > LOCK_SEC:
                    raise TimeoutError(f"another run has held {root / LOCK} for {LOCK_SEC:.0f} s") from None
                time.sleep(0.1)
        yield


def open_experiment(uri: str | None, root: Path, experiment: str) -> tuple[Any, str]:
    """A client and the id of the experiment, which is created if it is new. uri None means the store in root."""
    address = uri or store_uri(root)
    file = _sqlite_file(address)
    if uri is None:
        refuse_linked_store(root)
    with _creation_lock(root if file is None else file.parent):
        if file is not None:
            _create(file)
        client = _client(address)
        found = client.get_experiment_by_name(experiment)
        artifacts = None if uri else (root / FILES).resolve().as_uri()
        return client, found.experiment_id if found else client.create_experiment(
            experiment, artifact_location=artifacts
        )


class Names:
    """The names of metrics, or those of parameters, in MLflow.

    MLflow refuses some names, and with one it refuses the whole batch. Such a name is changed, and no two names become
    the same. A name stays what it has once become."""

    def __init__(self, known: dict[str, str]):
        """known: what names have become, to which new ones are added."""
        self.known, self.taken = known, set(known.values())

    def __getitem__(self, name: str) -> str:
        if name not in self.known:
            made, number = _accepted(name[:LONGEST_NAME]), 1
            while made in self.taken:
                number += 1
                made = f"{_accepted(name[: LONGEST_NAME - 10])}_{number}"
            self.known[name] = made
            self.taken.add(made)
        return self.known[name]


def _accepted(name: str) -> str:
    """The name with "_" in place of every character that MLflow refuses where it stands: anything but letters, digits,
    blanks and "_.:/-", a slash at an end or behind another one, and dots with nothing else between two slashes."""
    name = re.sub(r"[^\w .:/-]|^/|/\Z|(?<=/)/", "_", name)
    return re.sub(r"(?<![^/])\.+(?![^/])|^\.\.", lambda dots: "_" * len(dots[0]), name) or "_"


def flatten(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The pairs of dotted key and value in a nested config, such as ("algo.lr", 0.0005). Lists stay values."""
    for name, value in values.items():
        if isinstance(value, dict) and value:
            yield from flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def add_artifact(run_dir: Path, file: Path, uri: str | None, root: Path) -> None:
    """Adds a file to the MLflow run of this run directory, if there is one.

    uri, root: those of the run's config, so that mlflow.json cannot send the file and its passwords elsewhere.
    """
    memory = run_dir / "mlflow.json"
    if memory.exists() and available():
        known = json.loads(memory.read_text())
        address = uri or store_uri(root)
        if known["uri"] != masked(address) and not has_become(known["uri"], address):
            raise UserError(f"{memory} names another store than the run's config")
        client = _client(whole(address) or "")
        kept_in = client.get_experiment(known["experiment_id"]).artifact_location
        if not keeps_files(kept_in):
            raise UserError(f"files of its runs are kept in {kept_in}, which is gone")
        if uri is None:
            refuse_linked_store(root)
            target = client.get_run(known["run_id"]).info.artifact_uri
            if not lies_beside(target, root, Path(file.name)):
                raise UserError(f"{target} is not in {root / FILES}, and the store may have been made by somebody else")
        client.log_artifact(known["run_id"], str(file))


def stale_runs(root: Path, fix: bool = False, status: str = "KILLED") -> list[str]:
    """Names of runs in <root>/mlflow.db that are marked RUNNING although their process on this host is gone.

    fix marks them with `status`.
    """
    import psutil

    if not (root / "mlflow.db").exists() or not available():
        return []
    client = _client(store_uri(root))
    stale = []
    for experiment in client.search_experiments():
        for run in client.search_runs([experiment.experiment_id], "attributes.status = 'RUNNING'"):
            tags = run.data.tags
            # A run that was resumed has a younger process than its start, but it holds the lock of its directory.
            alive = _runs(psutil, int(tags.get("rlrun.pid", 0)), run.info.start_time / 1000)
            alive = alive or ("rlrun.run_dir" in tags and held(Path(tags["rlrun.run_dir"])))
            if tags.get("rlrun.host") == platform.node() and not alive:
                stale.append(run.info.run_name or run.info.run_id)
                if fix:
                    client.set_terminated(run.info.run_id, status)
    return stale


def _runs(psutil: Any, pid: int, since: float) -> bool:
    try:
        return psutil.Process(pid).create_time() <= since + 1
    except psutil.NoSuchProcess:
        return False
