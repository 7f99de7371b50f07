"""docs/speed.md: rlrun beside other libraries, its parts and their bound, growth, and a GPU."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable

from gpu import parts_on_a_gpu, runs_on_a_gpu
from layout import MADE, ROOT, table

NAMES = {
    "rlrun": "rlrun",
    "rllib": "RLlib",
    "sample_factory": "Sample Factory",
    "stable_baselines3": "Stable-Baselines3",
    "cleanrl_style": "a plain loop in one file",
}


def beside_others() -> str:
    """A section for each machine, with the tables of all libraries on it; processors with bf16 come first."""
    peers = json.loads((ROOT / "tuned/results/peers_2cores.json").read_text())
    older = peers["machine"].removeprefix("of the first two runs: ")
    parts: dict[str, list[str]] = {}  # by machine; the newer one is shown first
    for run in sorted(peers["runs"], key=lambda run: not run.get("note", "").startswith("2 cores")):
        rows = []
        for algo, sides in run["results"].items():
            ours = dict(map(tuple, sides["rlrun"]["rates"]))
            for side, found in sides.items():
                rates = dict(map(tuple, found["rates"]))
                faster = "" if side == "rlrun" else _spread([ours[at] / rates[at] for at in rates if at in ours], ".1f")
                version = next((f" {v}" for k, v in found["versions"].items() if k not in ("torch", "gymnasium", "rlrun")), "")
                rows.append((algo, NAMES.get(side, side) + version * (side != "cleanrl_style"), _spread(rates.values(), ",.0f"), faster))
        head = ("algorithm", "library", "env steps/s on Pong", "speed of rlrun divided by this library's, round by round")
        note = run.get("note", "")
        if note.startswith("2 cores"):
            machine, _, when = note.partition(", ")
            date, _, note = when.partition("; ")
        else:
            (machine, _, beside), date = older.partition("; "), peers["date"]
            note = f"{beside}; {note}" if note else beside
        said = f"`{run['command']}`, {date}{f' ({note})' if note else ''}:"
        parts.setdefault(machine, []).append(f"{said}\n\n{table(head, rows)}")
    return "\n".join(f"### On {machine}\n\n{chr(10).join(tables)}" for machine, tables in parts.items())


def speed() -> str:
    growth = json.loads((ROOT / "tuned/results/growth_impala_pong_bf16.json").read_text())
    rows = [
        (axis, point["label"], f"{point['result']['reached']:,.0f}", f"{point['result']['ratio']:.2f}")
        for run in growth["runs"]
        for axis, points in run["axes"].items()
        for point in points
    ]
    learners = json.loads((ROOT / "tuned/results/growth_learners.json").read_text())
    by_learners = [
        (point["label"], f"{point['result']['reached']:,.0f}", f"{point['result']['bound']:,.0f}")
        for point in learners["axes"]["learners"]
    ]
    return f"""{MADE}
# Speed

An env step is a decision of the agent, four frames of an Atari game. On a machine with two shared cores, the speed of
the same program changes by a tenth from one minute to the next, and by a third in bad hours. Therefore libraries take
turns in one run, and figures are medians with the lowest and the highest in parentheses.

## Beside other libraries

All train networks of the same size on the same batches, except where a note says otherwise. Each library runs with the
fastest of its settings on that machine. The number format is each library's default: bf16 for rlrun where the processor
has it, and float32 for the others. Each heading names the machine. The tables of processors with bf16 are the most
relevant. On the first machine, DQN was measured again a day later with four environments.

On this page, no library normalises pixels, and rlrun does so only where a table or a run [on a GPU](#on-a-gpu) says it.
Since 28 November 2026, however, PPO, DD-PPO, APPO, IMPALA, A2C and A3C normalise pixels by default, which makes their
updates about a fifth longer on a CPU. To measure as on this page, set `model.observation_filter=none`. With a tuned
file that sets `model.observation_clip`, add `model.observation_clip=10`.

{beside_others()}
## Parts and bound

`rlrun benchmark throughput algo=impala env=Pong` times each part alone on one core and shows what training
reaches. The bound is the speed at which every core does all parts with no time lost: the number of cores that the run
uses, divided by the sum of the parts' seconds for one env step. Noise can push a measurement above it.
`rlrun benchmark throughput --all` does so for every algorithm, on a small environment or on the one that `env=` names.

{_every_algorithm()}
## Growth

`rlrun benchmark growth algo=impala env=Pong` measures how speed depends on the number of samplers and learners, the
environments per sampler, the fragment's length and the model, with one short run for each point. The table has several
rounds of the same points, of {growth['date']} on {growth['machine'].partition(", ")[0]}. No other job of ours ran on this
machine, but the measurements were noisy:

{table(("axis", "value", "env steps/s", "share of the bound"), rows)}
![Growth with environments per sampler](../tuned/results/growth_impala_pong_envs.png)

`{" ".join(learners["command"])}`, {learners["date"]} on {learners["machine"]}:

{table(("learners", "env steps/s", "bound"), by_learners)}
Two samplers and one learner fill two cores already, so that a second learner makes training slower there. Growth with
more cores, or with several GPUs, has not been measured.

## On a GPU

{parts_on_a_gpu()}
## Runs on a GPU

{runs_on_a_gpu()}
"""


def _every_algorithm() -> str:
    """The table of `benchmark throughput --all --json tuned/results/throughput_2cores.json`, if it has been made."""
    file = ROOT / "tuned/results/throughput_2cores.json"
    if not file.is_file():
        return ""
    from rlrun.bench.throughput_all import HEAD, rows_of

    found = json.loads(file.read_text())
    left = [f"`{algo}` was not measured: {one['refused']}." for algo, one in found["results"].items() if "refused" in one]
    where = f"`{found['command']}` on {found['hardware']['cores']} cores of {found['hardware']['cpu']}. {found.get('note', '')}"
    return "\n\n".join([where.strip(), table(HEAD, rows_of(found["results"])), *left]) + "\n"


def _spread(values: Iterable[float], form: str) -> str:
    values = sorted(values)
    return f"{statistics.median(values):{form}} ({values[0]:{form}} to {values[-1]:{form}})" if values else "not measured"
