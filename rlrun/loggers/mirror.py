"""Sends what a run directory holds to an MLflow run.

Everything that is sent is read from the directory: parameters from config.yaml, metrics from progress.jsonl, and the
status from summary.json. mlflow.json in the directory remembers what has arrived:

    uri, run_id, experiment_id   the MLflow run; the address is without passwords
    run_dir                      the run directory, by which a copy of it is known
    id                           a tag of the MLflow run, by which it is found if its run_id never came back
    offset                       bytes of progress.jsonl that have been sent
    offered                      [bytes, CRC-32] of the part of progress.jsonl that may have arrived, from its beginning
    marks                        earlier values of offered, oldest first and denser towards the end: the newest one that
                                 progress.jsonl still begins with says which rows stand after some were taken back
    repeated                     [env steps, ...] behind which rows were taken back that may have arrived
    replaces                     the run_id of an MLflow run whose rows are not the run's any more, until it is marked
    sessions                     [[offset, seconds since 1970], ...]: where a session's rows begin, and when their
                                 time_sec was 0
    parameters                   whether they have been sent
    names                        {name: what it is called in MLflow} of the metrics
    files                        {path there: [bytes, modification time in ns]} of the artifacts that have been sent
    status                       the last status that was sent

So nothing is lost while a server is away, and sending again sends only what is missing. A batch of which the answer is
lost is sent a second time; it has the same times and steps then, and MLflow keeps one of two equal points.

A run that goes on from an older checkpoint takes rows back, but MLflow cannot delete points. Where few such rows may
have arrived, as after a kill, the run goes on in its MLflow run, which then has two points for some env steps. Where
they are more, it is logged anew with all of its rows, and the old MLflow run is marked as replaced. What is sent again
is at most 1 / MOST_REPEATED times what was taken back, so that a store does not grow with the square of a run's kills.
"""

from __future__ import annotations

import getpass
import json
import sys
import time
import uuid
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from rlrun.core.checkpoint import Checkpoints, write_atomically
from rlrun.core.open_loop import FOLDER
from rlrun.core.outputs import tell
from rlrun.core.passwords import masked
from rlrun.loggers.jsonl import PART_BYTES, rows_behind
from rlrun.loggers.mlflow import (
    FILES,
    STATUS,
    Names,
    flatten,
    has_become,
    keeps_files,
    lies_beside,
    open_experiment,
    store_uri,
)

MEMORY = "mlflow.json"
METRICS, PARAMETERS = 1000, 100  # numbers that MLflow takes at a time
# Numbers of the first batch of rows. Each batch that arrives doubles the next, and one that does not is followed by
# batches of this size again, because a slow server would never answer in time for a large one.
FIRST_METRICS = 60
LONGEST = 6000  # characters of a parameter's value
# The largest share of the rows offered to MLflow that a run may take back and still go on in its MLflow run. A run of
# some hours loses less by a kill; whoever goes back further on purpose wants curves without the old rows.
MOST_REPEATED = 0.25
MARKS = 60  # of these, every second one is dropped
TAGGED = 100  # places of repeated rows that a tag names: the last ones, because a store limits its length
REPLACED = " (replaced)"  # the end of the name of an MLflow run whose rows are not the run's any more
CHECKPOINT = ("policy.pt", "run.json", "manifest.json")  # files of a checkpoint that become artifacts


def say(text: str) -> None:
    """Prints a sentence about MLflow."""
    tell(f"rlrun: mlflow: {masked(text)}", sys.stderr)


class Sent(NamedTuple):
    """What one call of send() sent."""

    rows: int
    files: int
    parameters: bool
    status: str | None  # MLflow's word for how the run ended, if it was sent

    def __str__(self) -> str:
        parts = [f"{self.rows:,} row{'s' * (self.rows != 1)}"] if self.rows else []
        parts += ["the options"] if self.parameters else []
        parts += [f"{self.files} file{'s' * (self.files != 1)}"] if self.files else []
        parts += [f"the status {self.status}"] if self.status else []
        return f"sent {', '.join(parts)}" if parts else "nothing was missing"


class MlflowPlace(NamedTuple):
    """Where a run is logged."""

    uri: str | None  # with its password; None: the SQLite file in `root`
    root: Path
    experiment: str
    parent: str | None = None  # the id of the parent MLflow run


def _found(client: Any, run_id: str) -> Any:
    """A run of a store, or None if the store does not have it."""
    from mlflow.exceptions import MlflowException

    try:
        return client.get_run(run_id)
    except MlflowException as error:
        if error.error_code == "RESOURCE_DOES_NOT_EXIST":
            return None
        raise


class Mirror:
    """The MLflow run of one run directory. Methods that talk to the server raise whatever MLflow raises."""

    def __init__(self, run_dir: Path, place: MlflowPlace):
        self.run_dir, self.place = run_dir, place
        self.uri = place.uri or store_uri(place.root)
        self.client: Any = None
        self.files_to: str | None = None  # where MLflow keeps files of the experiment
        self.run_files: str | None = None  # and those of the run, where the store is the one in the runs' root
        self.tagged = False
        self.most = FIRST_METRICS
        self.left = False  # whether nobody waits for it any more, so that `rlrun sync` may send the rest
        self.memory = self._remembered()
        self.renamed = False  # whether it has been said that a name is another one in MLflow

    def _remembered(self) -> dict[str, Any]:
        new: dict[str, Any] = {"uri": masked(self.uri), "id": uuid.uuid4().hex, "run_id": None, "experiment_id": None}
        new |= {"offset": 0, "offered": [0, 0], "sessions": [], "parameters": False, "names": {}, "files": {}}
        new |= {"marks": [], "repeated": [], "status": None, "replaces": None, "run_dir": str(self.run_dir.resolve())}
        try:
            known = json.loads((self.run_dir / MEMORY).read_text())
        except (OSError, ValueError):
            return new
        if not isinstance(known, dict):
            return new
        if has_become(known.get("uri"), self.uri):
            known["uri"] = new["uri"]
        if known.get("uri") != new["uri"]:
            return new  # the run is logged elsewhere from now on, with all of its rows
        if self._is_copy(known):
            say(f"this run was copied from {known['run_dir']}, so it is logged as a run of its own, with all rows")
            return new
        if "offset" not in known:  # earlier versions sent every row at once
            known = {**known, "offset": self._size(), "parameters": True}
        known = new | known | {"run_dir": new["run_dir"]}
        if self._took_back(known):
            if (repeating := self._repeating(known)) is not None:
                return repeating
            kept = {name: known[name] for name in ("sessions", "names")}
            return {**new, **kept, "replaces": known["run_id"] or known["replaces"]}
        return known

    def _is_copy(self, known: Mapping[str, Any]) -> bool:
        """Whether this memory was copied with the run directory of another run, which is still there. One that is gone
        was moved here."""
        other = Path(str(known.get("run_dir") or self.run_dir)).resolve()
        try:
            if other.samefile(self.run_dir):  # also where one folder is mounted at two places
                return False
            theirs = json.loads((other / MEMORY).read_text())
        except (OSError, ValueError):
            return False
        return isinstance(theirs, dict) and theirs.get("id") == known.get("id")

    def _took_back(self, known: Mapping[str, Any]) -> bool:
        """Whether progress.jsonl has lost rows that may have arrived, as far as this memory knows. Others may stand in
        their place."""
        length, crc = known["offered"]
        return max(length, known["offset"]) > self._size() or self._crc(length) != crc

    def _repeating(self, known: Mapping[str, Any]) -> dict[str, Any] | None:
        """The memory of a run that took back few rows, or None where they are many. Rows since the newest mark that
        stands are offered again; those that have arrived give equal points, of which MLflow keeps one."""
        standing, at, size = [], [0, 0], self._size()
        for length, crc in known["marks"]:
            if length > size or (found := self._crc(length, *at)) != crc:
                break
            at = [length, found]
            standing.append(at)
        offered = max(known["offered"][0], known["offset"])
        if known["run_id"] is None or at[0] < (1 - MOST_REPEATED) * offered:
            return None
        steps = [int(row["env_steps"]) for after, row in self._rows(0) if after <= at[0]]
        repeated = [*known["repeated"], *steps[-1:]]
        offset = min(known["offset"], at[0])
        return {**known, "offered": at, "offset": offset, "marks": standing, "repeated": repeated[-TAGGED:]}

    def _crc(self, length: int, known: int = 0, crc: int = 0) -> int:
        """The CRC-32 of so many bytes at the beginning of progress.jsonl. crc: that of the first `known` ones."""
        with suppress(FileNotFoundError), (self.run_dir / "progress.jsonl").open("rb") as file:
            file.seek(known)
            length -= known
            while part := file.read(min(PART_BYTES, length)):
                crc, length = zlib.crc32(part, crc), length - len(part)
        return crc

    def _size(self) -> int:
        try:
            return (self.run_dir / "progress.jsonl").stat().st_size
        except OSError:
            return 0

    def _write(self) -> None:
        if self.left:
            raise InterruptedError("the run is over, and rlrun sync sends the rest")
        write_atomically(self.run_dir / MEMORY, json.dumps(self.memory, indent=1) + "\n")

    def begin_session(self) -> None:
        """Notes that rows from now on belong to a new session. Call it before the first of them is written."""
        size = self._size()
        last = 0.0
        for _, row in self._rows(0):
            last = float(row.get("time_sec") or 0.0)
        # A resumed run has dropped the rows behind its checkpoint.
        sessions = [one for one in self.memory["sessions"] if one[0] < size]
        self.memory["sessions"] = [*sessions, [size, time.time() - last]]
        self.memory["status"] = None
        self._write()

    @property
    def in_file(self) -> bool:
        """Whether the store is a file of this machine, and no server."""
        return self.uri.startswith("sqlite:")

    @property
    def link(self) -> str | None:
        """The page that lists the experiment's runs, if MLflow is a server and has answered."""
        if not self.uri.startswith("http") or self.memory["experiment_id"] is None:
            return None
        # MLflow 3 shows experiments as traces of language models unless it is told that models are trained.
        page = f"experiments/{self.memory['experiment_id']}/runs?workflowType=machine_learning"
        return f"{masked(self.uri).rstrip('/')}/#/{page}"

    def missing(self, status: str | None) -> str:
        """What has not arrived, in words; empty if nothing is missing. status: how the run ended."""
        rows = sum(1 for _ in self._rows(self.memory["offset"]))
        parts = [f"{rows:,} row{'s' * (rows != 1)}"] if rows else []
        if not self.memory["parameters"]:
            parts.append("the options")
        if status is not None and self.memory["status"] != STATUS[status]:
            parts.append("how the run ended")
        return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)

    def send(self, values: Mapping[str, Any], facts: Mapping[str, Any], ended: str | None = None) -> Sent:
        """Sends what is missing.

        values: the run's config. facts: those of summary.json. ended: COMPLETED, STOPPED, INTERRUPTED or FAILED if the
        run is over; its last files and its status are sent then."""
        self._connect(values)
        self._tag(facts)
        parameters = not self.memory["parameters"]
        if parameters:
            self._send_parameters(values)
        rows = self._send_rows()
        files = sum(self._send_file(file, folder) for file, folder in self._files(ended is not None))
        status = None
        if ended is not None and self.memory["status"] != STATUS[ended]:
            status = STATUS[ended]
            self.client.set_terminated(self.memory["run_id"], status, end_time=self._end())
            self.memory["status"] = status
            self._write()
        return Sent(rows, files, parameters, status)

    def _connect(self, values: Mapping[str, Any]) -> None:
        if self.client is not None:
            return
        client, experiment = open_experiment(self.place.uri, self.place.root, self.place.experiment)
        if self.memory["run_id"] is not None and not self._knows(client):
            say("the store does not know this run any more, so it is logged there anew, with all rows")
            sessions = self.memory["sessions"]
            (self.run_dir / MEMORY).unlink(missing_ok=True)
            self.memory = self._remembered() | {"sessions": sessions}
        memory = self.memory
        self.files_to = client.get_experiment(experiment).artifact_location
        if not keeps_files(self.files_to):
            say(f"its files are kept in {self.files_to}, which is gone, so that no files are sent")
        if memory["run_id"] is None:
            self._write()  # the id is known before the run exists, so that the run can be found by it
            found = client.search_runs([experiment], f"tags.`rlrun.id` = '{memory['id']}'", max_results=1)
            if found:
                memory["run_id"] = found[0].info.run_id
            else:
                name = f"{values['algo']['name']} {values['env']['name']} seed {values['seed']} ({self.run_dir.name})"
                tags = {"rlrun.id": memory["id"]}
                began = self._sessions()[0][1]
                made = client.create_run(experiment, start_time=int(began * 1000), tags=tags, run_name=name)
                memory["run_id"] = made.info.run_id
        memory["experiment_id"] = experiment
        if self.place.uri is None:
            self.run_files = client.get_run(memory["run_id"]).info.artifact_uri
            if keeps_files(self.files_to) and not (self._beside(self.files_to) and self._beside(self.run_files)):
                say(
                    f"its files are kept in {self.run_files}, which is not in {self.place.root / FILES}, so that no"
                    " files are sent: the store may have been made by somebody else"
                )
        if memory["replaces"] is not None:
            self._mark_replaced(client)
        if memory["status"] is None:
            client.update_run(memory["run_id"], status="RUNNING")
        self._write()
        self.client = client

    def _knows(self, client: Any) -> bool:
        """Whether the store has the run that the memory names, and it is this run. A memory that came with a run from
        elsewhere may name any run of a store. Runs of early versions have no tag."""
        found = _found(client, self.memory["run_id"])
        return found is not None and found.data.tags.get("rlrun.id", self.memory["id"]) == self.memory["id"]

    def _beside(self, address: str | None, file: Path | None = None) -> bool:
        return lies_beside(address, self.place.root, file)

    def _mark_replaced(self, client: Any) -> None:
        """Marks the MLflow run that has rows which the run has taken back."""
        old, new = self.memory["replaces"], self.memory["run_id"]
        found = _found(client, old)
        if found is not None and found.info.lifecycle_stage == "active":
            client.set_tag(old, "rlrun.replaced_by", new)
            name = (found.info.run_name or old).removesuffix(REPLACED)  # an earlier answer may have been lost
            client.update_run(old, status="KILLED", name=f"{name}{REPLACED}")
            client.set_tag(new, "rlrun.replaces", old)
            say("MLflow has rows that the run took back, so it is logged anew, with all rows; the old run is marked")
        self.memory["replaces"] = None

    def _tag(self, facts: Mapping[str, Any]) -> None:
        if self.tagged:
            return
        tags = {f"rlrun.{name}": facts[name] for name in ("pid", "host", "command", "git_commit") if name in facts}
        tags |= {"rlrun.run_dir": str(self.run_dir.resolve())}
        # MLflow's own names, which its pages show as the run's user, source and version.
        shown = {"command": "mlflow.source.name", "git_commit": "mlflow.source.git.commit"}
        tags |= {name: facts[fact] for fact, name in shown.items() if facts.get(fact)}
        tags |= {"mlflow.source.type": "LOCAL"}
        with suppress(OSError, KeyError, ImportError):  # a container's user may have no name
            tags["mlflow.user"] = getpass.getuser()
        if self.memory["repeated"]:
            tags["rlrun.repeated_behind"] = ", ".join(str(steps) for steps in self.memory["repeated"])
        if self.place.parent is not None:
            tags["mlflow.parentRunId"] = self.place.parent
        for name, value in tags.items():
            self.client.set_tag(self.memory["run_id"], name, str(value))
        self.tagged = True

    def _send_parameters(self, values: Mapping[str, Any]) -> None:
        from mlflow.entities import Param

        names = Names({})
        params = [Param(self._named(name, names), str(value)[:LONGEST]) for name, value in flatten(dict(values))]
        for start in range(0, len(params), PARAMETERS):
            self.client.log_batch(self.memory["run_id"], params=params[start : start + PARAMETERS])
        self.memory["parameters"] = True
        self._write()

    def _send_rows(self) -> int:
        """Sends the rows that have not been sent, and returns their number."""
        from mlflow.entities import Metric

        metrics: list[Metric] = []
        sent, waiting, end = 0, 0, self.memory["offset"]
        sessions, names = self._sessions(), Names(self.memory["names"])
        last = max((after for after, _ in self._rows(end)), default=end)
        if last > end:
            # It goes on from what was offered before, because the whole file may be large.
            length, crc = self.memory["offered"]
            self.memory["offered"] = [last, self._crc(last, length, crc) if length <= last else self._crc(last)]
            if self.memory["offered"] not in self.memory["marks"][-1:]:
                self.memory["marks"].append(self.memory["offered"])
            if len(self.memory["marks"]) > MARKS:
                self.memory["marks"] = self.memory["marks"][::2]
            self._write()

        def flush() -> None:
            nonlocal metrics, sent, waiting
            if metrics:
                self._send_metrics(metrics)
            sent, waiting, metrics = sent + waiting, 0, []
            self.memory["offset"] = end
            self._write()

        for after, row in self._rows(self.memory["offset"]):
            if after > last:
                break  # it is new, and may not arrive before it is among the offered ones
            base = next((at for begin, at in reversed(sessions) if begin < after), sessions[0][1])
            stamp = int((base + float(row.get("time_sec") or 0.0)) * 1000)
            made = [
                Metric(self._named(name, names), float(value), stamp, int(row["env_steps"]))
                for name, value in row.items()
                if name != "env_steps" and isinstance(value, int | float)
            ]
            if metrics and len(metrics) + len(made) > self.most:
                flush()
            while len(made) > METRICS:  # a row of very many numbers
                self._send_metrics(made[:METRICS])
                made = made[METRICS:]
            metrics, end, waiting = metrics + made, after, waiting + 1
        if waiting:
            flush()
        return sent

    def _named(self, name: str, names: Names) -> str:
        """What a name is called in MLflow. Says it of the first that is changed."""
        made = names[name]
        if made != name and not self.renamed:
            self.renamed = True
            say(f'MLflow cannot take the name "{name}", which is "{made}" there; others like it are changed too')
        return made

    def _send_metrics(self, metrics: list[Any]) -> None:
        before, self.most = self.most, FIRST_METRICS
        self.client.log_batch(self.memory["run_id"], metrics=metrics)
        self.most = min(METRICS, 2 * before)

    def _rows(self, offset: int) -> Iterator[tuple[int, dict[str, Any]]]:
        return rows_behind(self.run_dir / "progress.jsonl", offset)

    def _sessions(self) -> list[list[float]]:
        """Where sessions begin. A run that began without MLflow has one, which began when its summary says."""
        if self.memory["sessions"]:
            return self.memory["sessions"]
        try:
            started = json.loads((self.run_dir / "summary.json").read_text())["started"]
            return [[0, datetime.fromisoformat(started).timestamp()]]
        except (OSError, ValueError, KeyError, TypeError):
            return [[0, (self.run_dir / "config.yaml").stat().st_mtime]]

    def _end(self) -> int:
        """The time of the last row, in milliseconds since 1970, or now if it has none."""
        last = None
        for _, row in self._rows(0):
            last = row
        if last is None:
            return int(time.time() * 1000)
        return int((self._sessions()[-1][1] + float(last.get("time_sec") or 0.0)) * 1000)

    def _files(self, over: bool) -> Iterator[tuple[Path, str | None]]:
        """Yields the files that become artifacts, each with its folder there."""
        yield self.run_dir / "config.yaml", None
        for file in sorted((self.run_dir / FOLDER).glob("*.*")):
            if file.suffix in (".png", ".gif"):
                yield file, FOLDER
        if not over:
            return
        yield self.run_dir / "summary.json", None
        checkpoints = Checkpoints(self.run_dir / "checkpoints", 1)
        name = checkpoints.best() or next(iter(reversed(checkpoints.names())), None)
        for part in CHECKPOINT if name else ():
            # One folder for all sessions, or a run that is often resumed would fill the store with its policies.
            yield self.run_dir / "checkpoints" / str(name) / part, "checkpoint"

    def _send_file(self, file: Path, folder: str | None) -> bool:
        """Sends a file unless it has been sent as it is. Returns whether it was sent."""
        if not keeps_files(self.files_to):
            return False
        if self.place.uri is None:
            target = Path(folder or "", file.name)
            if not self._beside(self.files_to) or not self._beside(self.run_files, target):
                return False
        try:
            found = file.stat()
        except OSError:
            return False
        version, key = [found.st_size, found.st_mtime_ns], file.name if folder is None else f"{folder}/{file.name}"
        if self.memory["files"].get(key) == version:
            return False
        self.client.log_artifact(self.memory["run_id"], str(file), folder)
        self.memory["files"][key] = version
        self._write()
        return True
