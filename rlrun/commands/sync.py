"""rlrun sync RUN_DIR|SWEEP_DIR ... [logger.mlflow.uri=ADDRESS] [--trust]

Sends to MLflow what is missing there of runs and sweeps that are over: options, rows, files and how a run ended. A
server may have been away during a run, or the run may have ended before everything was sent. What is there already is
not sent again, so the command may be repeated.

logger.mlflow.uri gives the address once more if it has a password, which no run saves. It also sends a run to another
store, or one that did not log to MLflow. --trust is for runs from elsewhere whose config names modules of your own, or
that are sent to the store beside them, which may have come with them and says where files are written."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from rlrun.cli import printable, take_trust
from rlrun.config.types import load_yaml, parse_assignments
from rlrun.core.errors import RunFailed, UserError, closest

OPTIONS = ("logger.mlflow.uri", "logger.mlflow.experiment")


class Target(NamedTuple):
    run_dir: Path
    parent: str | None  # the id of the sweep's MLflow run


def main(words: list[str]) -> int:
    if any(word in ("-h", "--help") for word in words):
        print(__doc__)
        return 0
    trusted, words = take_trust(words)
    flags = [word for word in words if word.startswith("-")]
    if flags:
        raise UserError(f"{flags[0]} is not a flag of rlrun sync; there is --trust")
    places = [Path(word) for word in words if "=" not in word or os.path.isdir(word)]
    given = parse_assignments([word for word in words if "=" in word and not os.path.isdir(word)])
    for key in given:
        if key not in OPTIONS:
            raise UserError(f"rlrun sync has no option {key}.{closest(key, OPTIONS)} There are {', '.join(OPTIONS)}.")
        if given[key] is not None and not isinstance(given[key], str):
            raise UserError(f"{key} must be a text, not {given[key]!r}")
    if not places:
        raise UserError("rlrun sync takes the directories of runs or sweeps")
    for place in places:
        if not (place / "config.yaml").is_file() and not (place / "sweep.json").is_file():
            raise UserError(f"{place} is neither a run nor a sweep: it has no config.yaml and no sweep.json")
    from rlrun.loggers.mlflow import available

    if not available():
        raise UserError("mlflow is not installed (pip install mlflow)")
    # A run gives up soon and asks again; here somebody waits for a server that may be slow.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "60")
    failed = False
    for place in places:
        for name, said in sync(place, given, trusted):
            if isinstance(said, Exception):
                failed = True
                print(f"rlrun: {name}: {printable(said)}", file=sys.stderr, flush=True)
            else:
                print(f"{name}: {said}", flush=True)
    return 1 if failed else 0


def sync(place: Path, given: dict[str, Any], trusted: bool) -> Iterator[tuple[Path, str | Exception]]:
    """Sends what is missing of a run, or of a sweep and its runs. Yields what was sent of each, or why it was not."""
    if not (place / "sweep.json").is_file():
        yield place, _attempt(Target(place, None), given, trusted)
        return
    from rlrun.experiments.outcomes import known
    from rlrun.experiments.record import Parent, held, read

    with held(place):
        record = read(place, trusted)
        if record.mlflow is not None:
            record = record._replace(mlflow={**record.mlflow, **{key.split(".")[-1]: v for key, v in given.items()}})
        outcomes = [known(job) for job in record.jobs]
        ended = statuses(place)
        for one in outcomes:
            one.status = ended.get(one.job.name, one.status) if one.status == "WAITING" else one.status
        try:
            parent = Parent(record, place, later=True)
            if parent.client is not None and not parent.ended:
                parent.close(outcomes, interrupted=any(one.status in ("WAITING", "RUNNING") for one in outcomes))
                yield place, "sent the sweep's own run"
        except UserError:
            raise
        except Exception as error:
            yield place, _away(error)
            return
        for job in record.jobs:
            if (job.run_dir / "config.yaml").is_file():
                yield job.run_dir, _attempt(Target(job.run_dir, parent.run_id), given, trusted)


def statuses(sweep: Path) -> dict[str, str]:
    """How the jobs of a sweep ended when it was last run, by name: failed ones and pruned ones will not run again by
    themselves, although they have no result."""
    from rlrun.experiments.runs import outcomes

    try:
        return {name: status for name, status, _ in outcomes(sweep)}
    except UserError:  # a damaged file keeps no run from being sent
        return {}


def _attempt(target: Target, given: dict[str, Any], trusted: bool) -> str | Exception:
    try:
        return sync_run(target, given, trusted)
    except (UserError, RunFailed) as error:
        return error


def _away(error: Exception) -> RunFailed:
    why = (str(error).splitlines() or [type(error).__name__])[0]
    return RunFailed(f"MLflow does not take what is missing: {why}")


def sync_run(target: Target, given: dict[str, Any], trusted: bool) -> str:
    """Sends what is missing of one run, and says what was sent.

    Raises UserError if the run goes on or does not log to MLflow, and RunFailed if MLflow does not answer."""
    from rlrun.config.saved import read_config, saved_config, theirs
    from rlrun.core.passwords import check_logger, whole
    from rlrun.loggers.mirror import Mirror, MlflowPlace
    from rlrun.loggers.mlflow import store_root
    from rlrun.runtime.rundir import RunDir

    path = target.run_dir
    found = read_config(path, trusted)
    values = saved_config(path, trusted, {*given, "resources.ray.address"}, found)  # nothing is run
    node = (values.get("logger") or {}).get("mlflow") or {"enabled": False}
    node = {"uri": None, "experiment": "rlrun", "parent": None} | node | {k.split(".")[-1]: v for k, v in given.items()}
    if not node["enabled"] and "logger.mlflow.uri" not in given:
        raise UserError("it does not log to MLflow; logger.mlflow.uri=ADDRESS sends it there all the same")
    if node["uri"] is None and not found.own:
        raise UserError(f"not sent, {theirs(path)}")
    check_logger({"logger": {"mlflow": node}})
    directory = RunDir(path)
    directory.acquire()  # a run that goes on sends by itself
    try:
        facts = directory.known
        status = facts.get("status", "FAILED")
        place = MlflowPlace(
            whole(node["uri"]),
            store_root(values["runs_root"], path),
            node["experiment"],
            target.parent or node["parent"],
        )
        try:
            sent = Mirror(path, place).send(written(path, values), facts, status)
        except Exception as error:  # each server has its own exceptions
            raise _away(error) from None
        return str(sent)
    finally:
        directory.release()


def written(path: Path, values: dict[str, Any]) -> dict[str, Any]:
    """The config as its file has it, because options that newer versions add were none of the run."""
    made = load_yaml(path / "config.yaml")
    return made if "algo" in made else values
