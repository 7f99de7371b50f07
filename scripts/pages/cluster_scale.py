"""docs/cluster_scale.md: simulated clusters, and what they are made from."""

from __future__ import annotations

import statistics
from typing import Any

from layout import MADE, ROOT, table

VARIANTS = {
    "core": "Updates on a core of the learner's machine",
    "gpu": "Updates on a GPU, weights after every update",
    "gpu, weights after 10 updates": "Updates on a GPU, weights after every 10 updates (`runner.broadcast_interval=10`)",
    "gpu, large updates": "Updates on a GPU from 24 fragments each (`algo.batch_size`), weights after every update",
    "gpu, 1 Gbit/s": "Updates on a GPU, weights after every 10 updates, networks of 1 Gbit/s",
}


def cluster_scale() -> str:
    from rlrun.bench.cluster import BAR, CLUSTER, COST, GPU_STEPS, met, read

    found = read(ROOT / "tuned/results/cluster/impala_pong.json")
    facts, check, sizes = found["facts"], found["check"], found["sizes"]
    cost, off = 1 - check["one"] / check["local"], check["predicted"] / check["measured"] - 1
    named = {"local": "one machine, shared memory", "1": "1 node", "2": "2 simulated nodes"}
    speeds = {kind: [run["steps_per_sec"] for run in check["runs"][kind]] for kind in named}
    runs = [(named[kind], ", ".join(f"{x:,.0f}" for x in each), f"{statistics.median(each):,.0f}") for kind, each in speeds.items()]
    vectors, (game, images) = sizes["vectors"], next((name, size) for name, size in sizes.items() if name != "vectors")
    steps = facts["rows"] * facts["columns"]
    return f"""{MADE}
# Simulated clusters

**No run on two real machines has been made.** The figures of larger clusters on this page come from a simulation
(`rlrun/bench/cluster_model.py`) of what a run with `resources=ray` does. It is made from what one machine measured, and
from what a cluster is assumed to have. [Several machines](cluster.md) says how to start a cluster.

## What was measured

`{found["command"]}` on {found["hardware"]["cores"]} cores of {found["hardware"]["cpu"]}, {found["started"][:10]}. Parts are measured
alone on one thread, in seconds of a core. The frames are those of an untrained policy.

{measured_parts(facts, game, images, vectors)}
## The simulation beside a measurement

A run in shared memory, a run with one node and a run with two simulated nodes took turns on this machine. One factor for
all times of the processor ({check["slowdown"]:.2f}) is fitted to the runs with one node (their median), and the simulation then says
what two nodes make. This rule was committed before the runs were made.

{table(("run", "env steps/s of each run", "median"), runs)}
With one node, the median run was {abs(cost):.0%} {"slower" if cost > 0 else "faster"} than in shared memory. It may be at most {COST:.0%} slower, which is
{_bold(met(cost <= COST))}. Two nodes made
{check["measured"]:,.0f} env steps/s (median), and {check["predicted"]:,.0f} were predicted ({off:+.0%}). The bar is a difference of at most
{BAR:.0%}, which is {_bold(met(abs(off) <= BAR))}. Two nodes of one machine share its cores, so this tests the simulated work of hosts and
learner. It says nothing about networks.

## Larger clusters

IMPALA on {game}: machines of {CLUSTER["cores"]} such cores with as many samplers of {facts["columns"]} environments, and the learner on the first of
them. Assumed, and not measured here: {CLUSTER["bandwidth"] / 1e6:,.0f} MB/s into and out of each machine (what Ray reaches with 10 Gbit/s) and
{CLUSTER["head_bandwidth"] / 1e6:,.0f} MB/s for the learner's (25 Gbit/s), {CLUSTER["latency_sec"] * 1e3:.1f} ms for a message, {facts["call_sec"] * 1e3:.0f} ms of the learner for a call and its answer, and {GPU_STEPS:,} env steps/s for updates on a GPU
(IMPALA's paper reports 250,000 frames/s). The narrowest part is the one that works for the largest share of the time; "round
trips" means that all parts wait for each other. Where the learner is the narrowest, more machines only make rows older.

{chr(10).join(larger(found['table'], CLUSTER['cores']))}
`rlrun benchmark cluster --simulate nodes=64 gpu=true broadcast=10` simulates one such cluster, and other facts can be
given: `bandwidth=1e9`, `samplers=8`, `calls_ahead=4`, `fragments=8`.

Weights are {facts["weights_bytes"] / 1e6:.2f} MB and a packed fragment is {steps * facts["step_bytes"] / 1e3:,.0f} kB. A machine fetches weights with each call, so small
updates fill its network with weights and not with rows. `runner.broadcast_interval` and a larger `algo.batch_size` help.
"""


def measured_parts(facts: dict[str, Any], game: str, images: dict[str, Any], vectors: dict[str, Any]) -> str:
    """The table of an env step's and an update's costs on one machine."""
    micro = {name: f"{facts[f'{name}_sec'] * 1e6:,.1f} us" for name in ("pack", "unpack")}
    steps = facts["fragments"] * facts["rows"] * facts["columns"]
    rows = [
        ("bytes of an env step in memory", f"{images['raw_bytes']:,.0f}", f"{vectors['raw_bytes']:,.0f}"),
        ("bytes of an env step on its way", f"{images['packed_bytes']:,.0f}", f"{vectors['packed_bytes']:,.0f}"),
        ("packing an env step", micro["pack"], f"{vectors['pack_us']:.2f} us"),
        ("unpacking an env step", micro["unpack"], f"{vectors['unpack_us']:.2f} us"),
        ("an env step with its inference", f"{facts['step_sec'] * 1e6:,.0f} us", ""),
        (f"an update from {steps:,} env steps, one thread", f"{facts['update_sec'] * 1e3:,.0f} ms", ""),
        ("weights", f"{facts['weights_bytes'] / 1e6:.2f} MB", ""),
        ("publishing weights; taking them in", f"{facts['put_sec'] * 1e3:.1f} ms; {facts['load_sec'] * 1e3:.1f} ms", ""),
    ]
    return table(("what", game, "HalfCheetah's shape"), rows)


def larger(simulated: list[dict[str, Any]], cores: int) -> list[str]:
    """A table for each of VARIANTS, of clusters of machines with so many cores."""
    parts = []
    for variant, title in VARIANTS.items():
        rows = [
            (
                row["nodes"],
                f"{row['nodes'] * cores:,}",
                f"{row['steps_per_sec']:,}",
                f"{row['lag']:.1f}",
                f"{row['narrowest']} ({row['busy'].get(row['narrowest'], 0):.0%})" if row["narrowest"] in row["busy"] else row["narrowest"],
            )
            for row in simulated
            if row["variant"] == variant
        ]
        parts.append(f"### {title}\n\n{table(('machines', 'cores', 'env steps/s', 'policy lag, updates', 'narrowest (works)'), rows)}")
    return parts


def _bold(text: str) -> str:
    return text if text == "met" else f"**{text}**"
