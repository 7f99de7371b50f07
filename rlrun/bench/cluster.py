"""rlrun benchmark cluster --simulate nodes=64 [cores=16] [samplers=16] [gpu=true] [bandwidth=250e6] [any other fact]
rlrun benchmark cluster --measure [seconds=60] [rounds=3] [--json FILE]
rlrun benchmark cluster --table [--json FILE]

--simulate says what a run of IMPALA on Pong would do on many machines: env steps/s, the policy lag, how busy each part
is, and which is the narrowest. What it is simulated from was measured on one machine, and is in --json FILE
(tuned/results/cluster/impala_pong.json); any fact can be given another value. Sizes are bytes, times are seconds and
bandwidths are bytes/s. --measure makes such a file: it measures parts, trains in shared memory, with one node and with
two simulated nodes in turn, and compares the last with what the simulation makes of one node. It needs ale-py and Ray.
--table simulates up to 128 machines of 16 cores and writes the table into the file, from which docs/cluster_scale.md is
made. No run on two real machines has been made."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlrun.bench.cluster_model import ClusterFacts, Result, simulate
from rlrun.bench.results import default_folder, digest
from rlrun.config.types import parse_assignments, typed
from rlrun.core.checkpoint import write_atomically
from rlrun.core.errors import UserError

# What a cluster is assumed to have, which no measurement on one machine can tell.
CLUSTER: dict[str, Any] = {
    "cores": 16,
    "bandwidth": 250e6,  # what Ray brings into a machine with 10 Gbit/s (issue 42632 of Ray: 200 to 300 MB/s)
    "head_bandwidth": 1.25e9,  # 25 Gbit/s, of which Ray uses less than half
    "latency_sec": 2e-4,
    "gpu": False,
    "shared": False,
    "broadcast": 1,
}
GPU_STEPS = 60_000  # env steps/s that one GPU learns from: IMPALA's paper reports 250,000 frames/s with one learner
SIZES = (1, 2, 4, 8, 16, 32, 64, 128)  # nodes of the table
BAR = 0.15  # largest difference between prediction and measurement
COST = 0.10  # largest share of its speed that a run in shared memory may lose as a cluster of one node


def main(words: list[str]) -> int:
    modes = [word for word in ("--simulate", "--measure", "--table") if word in words]
    if any(word in ("-h", "--help") for word in words) or not words:
        print(__doc__)
        return 0 if words else 2
    if len(modes) != 1:
        raise UserError("rlrun benchmark cluster needs one of --simulate, --measure and --table")
    words = [word for word in words if word not in modes]
    file = default_folder() / "cluster" / "impala_pong.json"
    if "--json" in words:
        at = words.index("--json")
        file = Path("".join(words[at + 1 : at + 2]))
        if file.is_dir():  # as the current folder is, where no name is given
            raise UserError("--json needs a file name")
        words = words[:at] + words[at + 2 :]
    given = parse_assignments(words)
    if modes == ["--measure"]:
        from rlrun.bench.cluster_measure import MeasureOptions, measure

        found = measure(typed(MeasureOptions, {"seconds": 60.0, "rounds": 3, "env": "Pong"} | given))
        print(comparison(found))
        write(file, found | {"table": table_rows(found)})
    elif modes == ["--table"]:
        if given:
            raise UserError(f"--table takes no {next(iter(given))}=: --simulate simulates one cluster")
        found = read(file)
        write(file, found | {"table": table_rows(found)})
    else:
        facts = facts_of(read(file), given)
        print(shown(facts, simulate(facts)))
    return 0


def facts_of(found: Mapping[str, Any], given: Mapping[str, Any]) -> ClusterFacts:
    """The facts of a cluster: measured ones, what a cluster is assumed to have, and what was given."""
    values = {**found["facts"], **CLUSTER, **given}
    values.setdefault("nodes", 1)
    values["samplers"] = given.get("samplers", values["cores"])
    if values["gpu"] and "update_sec" not in given:
        values["update_sec"] = values["fragments"] * values["rows"] * values["columns"] / GPU_STEPS
    return typed(ClusterFacts, {name: _number(value) for name, value in values.items()})


def _number(value: Any) -> Any:
    """250e6 is a text in YAML."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def shown(facts: ClusterFacts, found: Result) -> str:
    """A simulated run as text."""
    said = [
        f"{facts.nodes} machines of {facts.cores} cores, {facts.nodes * facts.samplers:,} samplers,"
        f" updates on {'a GPU' if facts.gpu else 'a core'}, weights after every"
        f" {'update' if facts.broadcast == 1 else f'{facts.broadcast} updates'}",
        f"env steps/s                             {found.steps_per_sec:>12,.0f}",
        f"updates/s                               {found.updates_per_sec:>12,.1f}",
        f"policy lag, updates                     {found.lag:>12,.1f}",
        *(f"{name + ' works':<40}{share:>12.0%}" for name, share in found.busy.items()),
        f"narrowest: {found.narrowest}",
        "No run on two real machines has been made; these figures are simulated.",
    ]
    return "\n".join(said)


def comparison(found: Mapping[str, Any]) -> str:
    """What one node costs beside shared memory, and what two simulated nodes made beside what was predicted."""
    check = found["check"]
    cost, off = 1 - check["one"] / check["local"], check["predicted"] / check["measured"] - 1
    return (
        f"env steps/s: shared memory {check['local']:,.0f}, one node {check['one']:,.0f} ({-cost:+.0%}; the bar is"
        f" {-COST:.0%}, which is {met(cost <= COST)}); two simulated nodes {check['measured']:,.0f}, predicted"
        f" {check['predicted']:,.0f} ({off:+.0%}; the bar is {BAR:.0%}, which is {met(abs(off) <= BAR)})"
    )


def met(reached: bool) -> str:
    return "met" if reached else "not met"


VARIANTS: dict[str, dict[str, Any]] = {
    "core": {},
    "gpu": {"gpu": True},
    "gpu, weights after 10 updates": {"gpu": True, "broadcast": 10},
    "gpu, large updates": {"gpu": True, "fragments": 24},
    "gpu, 1 Gbit/s": {"gpu": True, "broadcast": 10, "bandwidth": 1e8, "head_bandwidth": 1.2e8},
}


def table_rows(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The simulated runs of docs/cluster_scale.md."""
    rows = []
    for variant, given in VARIANTS.items():
        for nodes in SIZES:
            result = simulate(facts_of(found, {"nodes": nodes, **given}))
            busy = {name: round(share, 3) for name, share in result.busy.items()}
            speed, lag = round(result.steps_per_sec), round(result.lag, 2)
            rows.append(
                {"variant": variant, "nodes": nodes, "steps_per_sec": speed, "lag": lag}
                | {"busy": busy, "narrowest": result.narrowest}
            )
    return rows


def write(file: Path, values: Mapping[str, Any]) -> None:
    values = {name: value for name, value in values.items() if name != "sha256"}
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, json.dumps({**values, "sha256": digest(values)}, indent=1) + "\n")
    print(f"{file} is written")


def read(file: Path) -> dict[str, Any]:
    """A file that write() has made. UserError where there is none or where it was altered."""
    try:
        values = json.loads(file.read_text())
    except FileNotFoundError:
        raise UserError(
            f"there is no {file}: rlrun benchmark cluster --measure makes it, or --json names another"
        ) from None
    except (OSError, ValueError) as error:
        raise UserError(f"{file} cannot be read: {error}") from None
    if not isinstance(values, dict) or values.get("sha256") != digest(values):
        raise UserError(f"{file} was altered after it was written: its sha256 does not match its contents")
    known = {field.name for field in dataclasses.fields(ClusterFacts)} - CLUSTER.keys() - {"nodes", "samplers"}
    if not isinstance(values.get("facts"), dict) or values["facts"].keys() != known:
        raise UserError(f"{file} has other facts than this rlrun simulates from; --measure makes it anew")
    return values
