"""scripts/docs [--check]

Makes those pages of docs/ whose facts are in the code, in conf/, in tuned/ and in tuned/results/."""

from __future__ import annotations

import json
import re
import statistics
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
sys.path.insert(0, str(ROOT))

from rlrun.commands.list import docstring  # noqa: E402
from rlrun.config.paths import inner_algorithm, options, runner_of  # noqa: E402
from rlrun.config.texts import options_of  # noqa: E402
from rlrun.core.errors import UserError  # noqa: E402
from rlrun.machine.machine import Machine  # noqa: E402

MADE = "<!-- scripts/docs makes this page; change what it is made from. -->\n"
ACTIONS = {
    "discrete": "one choice",
    "multi_discrete": "several choices",
    "multi_binary": "switches",
    "box": "numbers",
    "nested": "Dict and Tuple",
}
TEAM = {"multi_discrete": "each agent's choice", "box": "each agent's numbers"}


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = list(head)
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(" ".join(str(cell).replace("|", "\\|").split()) for cell in line) + " |" for line in lines) + "\n"


# -- algorithms --------------------------------------------------------------------------------------------------------


MACHINE = Machine(cores=4, env_step_sec=lambda make_env, count: 1e-3)  # a small one without a GPU


def planned(*words: str) -> Any:
    """The plan of `rlrun train words...` on MACHINE. Raises UserError."""
    from hydra import compose, initialize_config_dir

    from rlrun.config.hydra_plugins import install
    from rlrun.config.run import type_config
    from rlrun.config.types import plain
    from rlrun.runtime.plan import plan

    install()
    with initialize_config_dir(version_base="1.3", config_dir=str(ROOT / "conf")):
        values = plain(compose("train", overrides=[*words, "logger=[]"]))
    return plan(type_config(values), MACHINE)


# Environments of which each algorithm can learn one.
ENVIRONMENTS = (
    "CartPole-v1",
    "Pendulum-v1",
    "MultiAgentCartPole-v0",
    "CartPoleSparse-v0",
    "rlrun/InterestExploration-v0",
    "PendulumMass-v0",
)
# What makes algorithms that learn from data learn from an environment, which can be planned without data.
PLAYING = {name: ["runner=replay"] for name in ("bc", "cql", "crr", "discrete_cql", "implicit_q", "td3_bc")} | {
    "marwil": ["runner=on_policy", "algo.learns_from=experience"]
}


def algorithms() -> str:
    rows, papers = [], []
    for name in options("algo"):
        needs = _planned_somewhere(name).needs
        core = inner_algorithm(name)
        source = "recorded data" if runner_of(name) == "offline" else "replay" if needs.replay else "new rows"
        if needs.population:
            source = "returns of perturbed policies"
        kinds = [TEAM.get(kind, ACTIONS[kind]) if needs.joint else ACTIONS[kind] for kind in needs.actions]
        actions = "those of the algorithm inside" if core else ", ".join(kinds)
        agents = "a team, together" if needs.joint else "a policy for each" if needs.several else "one policy"
        rows.append(
            (
                f"[`{name}`](#{name})",
                actions,
                source,
                agents,
                _can(name, "model=lstm", *_with_memory(name)),
                _can(name, "resources.num_learners=2", *_with_learners(name)),
                runner_of(name) or runner_of(core or "") or "that of the algorithm inside",
            )
        )
        papers.append(f"### {name}\n\n{_paragraphs(docstring(name))}\n")
    head = ("algorithm", "actions", "learns from", "agents", "memory (LSTM)", "several learners", "runner")
    return f"""{MADE}
# Algorithms

Each algorithm is one file of `rlrun/algos`, which names its paper and what differs from it. `rlrun explain NAME` prints
that, every option with its comment, and the names that RLlib and the paper have for it.

{table(head, rows)}
- *one choice* is a Discrete space, *several choices* MultiDiscrete, *switches* MultiBinary, *numbers* a Box. Observations
  may be vectors, images, discrete numbers, and nested Dict and Tuple spaces of these. Text, graphs and sequences of
  changing length cannot be observed.
- Algorithms with *one policy* train games with several agents as well: all agents then share it. `algo=multi` gives
  each agent, or each group, a policy of its own, and [Several agents](multi_agent.md) says more.
- For algorithms around another one (`apex`, `apex_ddpg`, `icm`, `rnd`, `re3`, `multi`, `self_play`), the table shows
  what holds with the algorithm that is inside by default. With `algo@algo.inner=NAME`, the memory, rows and runner can
  differ: Ape-X around `r2d2` has an LSTM.
- With `resources=debug`, a run that is resumed from its newest checkpoint ends with the same weights, to the bit, as a
  run that saved there and went on. Every save and every evaluation that saves ends all episodes, so both runs must save
  and evaluate at the same env steps. With a replay, a resume from an older checkpoint (`checkpoint=`) gives other
  weights, because only the newest checkpoint holds the replayed rows.
- Without `resources=debug`, a resumed run is not the same to the bit. It gets back what was learnt and, from the last
  checkpoint, the replay. Episodes begin anew, parameter noise adapts its deviation anew, and the order in which several
  processes finish is not fixed.
- *Several learners* sum their gradients, on GPUs of their own or on the cores of a CPU (`resources.num_learners=2`).
  `lin_ts` and `lin_ucb` learn from one row at a time by default, and need a batch with a row for each (`algo.batch_size=2`).

## What each file says

{chr(10).join(papers)}"""




def _planned_somewhere(name: str, *words: str) -> Any:
    """The plan of an algorithm on the first environment that it can learn, with all checks before a run starts."""
    from rlrun.runtime.preflight import preflight

    errors = []
    for env in ENVIRONMENTS:
        try:
            made = planned(f"algo={name}", f"env={env}", *PLAYING.get(name, ()), *words)
            preflight(made, MACHINE)
            return made
        except UserError as error:
            errors.append(str(error))
    raise UserError("; ".join(errors))


def _with_memory(name: str) -> list[str]:
    if name == "bc":
        return ["algo.sequence_length=5", "algo.batch_size=20"]
    if name in ("ddpg", "td3", "sac", "tqc", "cql", "crr", "implicit_q", "td3_bc"):
        return ["algo.sequence_length=10", "algo.burn_in=5"]
    return []


def _with_learners(name: str) -> list[str]:
    """What gives each of two learners a row, where one row is a batch by default."""
    return ["algo.batch_size=2"] if name in ("lin_ts", "lin_ucb") else []


def _can(name: str, *words: str) -> str:
    try:
        _planned_somewhere(name, *words)
    except UserError:
        return ""
    return "yes"


def _paragraphs(text: str) -> str:
    """A docstring as Markdown: a capitalised label and a colon at a line's beginning begin a paragraph.

    The line before must end with a full stop, because a sentence may go on with such words too."""
    return re.sub(r"(\.\)?)\n(?=[A-Z][A-Za-z ]{2,40}: )", r"\1\n\n", text)


# -- results -----------------------------------------------------------------------------------------------------------


def results() -> str:
    met, missed, waiting = [], [], []
    for name in options("tuned"):
        values = yaml.safe_load((ROOT / "tuned" / f"{name}.yaml").read_text())
        bar, found = values.get("expected"), values.get("measured")
        if not bar or bar.get("return") is None:
            continue
        mark = f"{float(bar['return']):g} within {float(bar['env_steps']):,.0f}"
        if bar.get("metric") == "greedy":
            mark += ", greedy"
        if not found or found.get("return") is None:
            waiting.append((f"`{name}`", mark, bar["source"]))
            continue
        returns, steps, seconds, seeds = (_list(found.get(key)) for key in ("return", "env_steps", "wall_sec", "seeds"))
        reached = [float(r) >= float(bar["return"]) and float(at) <= 1.01 * float(bar["env_steps"]) for r, at in zip(returns, steps)]
        row = (
            f"`{name}`",
            mark,
            bar["source"],
            ", ".join(f"{float(r):g}" for r in returns) + _of_games(_list(found.get("games")), len(returns)),
            ", ".join(f"{float(at):,.0f}" for at in steps),
            ", ".join(f"{float(sec):,.0f}" for sec in seconds) or "not noted",
            ", ".join(map(str, seeds)) or "not noted",
            f"`{found['command']}`" if found.get("command") else "not noted",
            found.get("machine", "not noted"),
        )
        (met if all(reached) else missed).append(row)
    bars = ("tuned file", "bar (return within env steps)", "where the bar is from")
    head = (*bars, "return", "at env steps", "seconds", "seeds", "command", "machine")
    return f"""{MADE}
# Results

A tuned file holds hyperparameters, a bar ([words](start.md#words-of-these-pages)) and, if it was run, the result.
`rlrun train tuned=NAME` uses it. A return is that of the full game, never clipped. It is the mean of the last 100 training games
or, where the bar says greedy, of 100 greedy games on seeds that training never used; where it is the mean of another
number of games, the row says so. Env steps are decisions of the agent; in Atari games each is four frames. Other work
ran beside most of these runs, so that seconds are upper bounds. `rlrun benchmark tuned` measures them again. Some bars
are weaker than the figure that they are from, which the column beside them quotes.

RLlib's published tables, with what rlrun measured beside them, are in [TABLES.md](../tuned/results/TABLES.md). The
defaults of rlrun beside those of other libraries are in [learning.md](learning.md).

## Bars that are met on the seeds named

{table(head, met)}
## Bars that are not met yet

{table(head, missed)}
## Tuned files that have not been run to their bar

{table(bars, waiting)}
## Curves

The curves of the runs in [RLlib's tables](../tuned/results/TABLES.md) are in `tuned/results/tables.html`.

![Pong at 42x42](../tuned/results/pong42.png)

`rlrun train tuned=rainbow/pong42 seed=1` and `rlrun train tuned=pqn/pong42 seed=1`, drawn by `rlrun plot` from
`tuned/results/rainbow_pong42.json` and `tuned/results/pqn_pong42.json`.
"""


def _of_games(games: list[int], returns: int) -> str:
    """How many games each return is the mean of, where they are not 100."""
    if not games:
        return ""
    return f" ({', '.join(map(str, games))} games{' each' * (len(games) < returns)})"


def _list(value: Any) -> list:
    return value if isinstance(value, list) else [] if value is None else [value]


# -- speed -------------------------------------------------------------------------------------------------------------

NAMES = {
    "rlrun": "rlrun",
    "rllib": "RLlib",
    "sample_factory": "Sample Factory",
    "stable_baselines3": "Stable-Baselines3",
    "cleanrl_style": "a plain loop in one file",
}


def speed() -> str:
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

{chr(10).join(f"### On {machine}{chr(10)}{chr(10)}{chr(10).join(tables)}" for machine, tables in parts.items())}
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

{_on_a_gpu()}
"""


def _on_a_gpu() -> str:
    """What scripts/gpu_check and two measurements of IMPALA printed on a machine with a GPU."""
    found = json.loads((ROOT / "tuned/results/gpu/check_h100.json").read_text())
    again = json.loads((ROOT / "tuned/results/gpu/check_h200.json").read_text())
    last = json.loads((ROOT / "tuned/results/gpu/check_h200_again.json").read_text())
    long, speed = again["run"], again["run"]["env_steps_per_sec"]
    parts, tests, pong = found["parts"], found["tests"], found["parts"]["pong"]
    impala = parts["impala_pong"]
    worlds = [(f"`{run['run']}`", str(run["seed"]), f"{run['return']:g}", f"{run['env_steps']:,}", str(run["wall_sec"])) for run in found["worlds"]]
    emulator = parts["emulator"]["env_steps_per_sec"]

    def measured(several: dict[str, Any]) -> list[tuple[str, ...]]:
        reached = {name: part for name, part in several.items() if "reached" in part}
        return [
            (name, f"{part['reached']:,.0f}", f"{part['reached'] / emulator:.2f}", f"{part['bound']:,.0f}", f"`{_command_today(part)}`")
            for name, part in reached.items()
        ]

    every, pong_now, pong_before = last["every"], last["impala_pong"], last["impala_pong_before"]
    updates = [(name, *(f"{ways[way]:.2f}" for way in next(iter(found["updates_ms"].values())))) for name, ways in found["updates_ms"].items()]
    return f"""{found["gpu"]}, {found["cores"]} cores of an {found["cpu"].split(" (")[0]}, torch {found["torch"]}, {found["date"]}, one run each.
The emulator alone makes {emulator:,.0f} env steps/s of Pong there, in one process for each core, and no training can be faster.
RLlib's page says that its IMPALA reached about 30,000 with two V100 GPUs and 128 CPU workers.

{table(("algorithm", "env steps/s on Pong", "divided by the emulator's own speed", "bound of the parts", "command"), measured(parts))}
{last["gpu"]}, {last["cores"]} cores of an {last["cpu"]}, torch {last["torch"]}, {last["date"]}, one run each, with normalised pixels in
IMPALA and PPO. The emulator's speed is that of the machine above, where all cores ran it.

{table(("algorithm", "env steps/s on Pong", "divided by the emulator's own speed", "bound of the parts", "command"), measured(last["parts"]))}
IMPALA is not faster there with 14 samplers. Shorter turns of Python's threads (`sys.setswitchinterval(0.0002)` in a
`sitecustomize.py`) changed its speed by 2 %. DQN is faster than on the machine above because its replay now writes and draws rows with
recorded graphs: inserting takes 52 us of the learner's time for an env step, and it took 105.

An update, with the copy of its rows to the GPU, in milliseconds:

{table(("update", *next(iter(found["updates_ms"].values()))), updates)}
`{tests["command"]}`: {tests["passed"]} passed and {tests["failed"]} failed in {tests["seconds"]:.0f} s ({tests["note"]}).
On an {again["gpu"]} of {again["date"]}, `{again["tests"]["command"]}`: {again["tests"]["passed"]} passed and {again["tests"]["failed"]} failed.
On one of {last["date"]}, with `-n 6`: {last["tests"]["passed"]} passed and {last["tests"]["failed"]} failed.

`{every["command"]}` trains every algorithm by the command line, goes on with the run on the GPU, and evaluates it. In
{every["seconds"]} s on the {last["gpu"]}, {len(every["whole"])} algorithms passed all three steps. {len(every["only_on_a_cpu"])} trained, and then refused to go on with the GPU, because they learn on a CPU only
({", ".join(every["only_on_a_cpu"])}). The time ran out before the other {len(every["no_turn"])} had their turn ({", ".join(every["no_turn"])}).

## Runs on a GPU

PPO reached {pong["return"]} on Pong after {pong["env_steps"]:,} env steps. {pong["wall_sec"]:.0f} s passed between the start of the command
`{pong["command"]}` and its end. The learner spent
{100 * pong["shares_of_the_learner"]["wait"]:.0f} % of its time waiting for samples, and {100 * pong["shares_of_the_learner"]["learn"]:.0f} % learning.

PPO reached {long["return"]} on Breakout after {long["env_steps"]:,} env steps and {long["wall_sec"]:.0f} s on an {again["gpu"]} with {again["cores"]} cores
(`{long["command"]}`). It made {speed["median"]:,} env steps/s
({speed["lowest"]:,} to {speed["highest"]:,}, in the {speed["over"]}, when the tests beside it had ended).
The learner spent {100 * long["shares_of_the_learner"]["wait"]:.0f} % of its time waiting for samples, and samplers spent {100 * long["env_share_of_samplers"]:.0f} % of theirs in the emulator:
cores decide how fast PPO is there, not the GPU.

IMPALA reached {pong_now["return"]} on Pong after {pong_now["env_steps"]:,} env steps on an {last["gpu"]}. {pong_now["wall_sec"]} s passed between the start of the command
`{pong_now["command"]}` and its end, at {pong_now["env_steps_per_sec"]:,} env steps/s and with a policy lag of {pong_now["policy_lag"]} updates. Before
the GPU computed the moments of the screens, a core did, and the same run made {pong_before["env_steps_per_sec"]:,} env steps/s.

An earlier run with 240 environments did **not** reach 18: its return was {impala["return"]} after {impala["env_steps"]:,} env steps and
{impala["wall_sec"]:.0f} s, {impala["note"]}.
{impala["why"]} Today there are 60 environments, and the warm-up and normalised pixels are defaults.

IMPALA reached {found["cartpole"]["return"]:.0f} on CartPole in {found["cartpole"]["wall_sec"]:.0f} s of training.

DreamerV3 learns on a GPU in minutes what takes a CPU hours. Up to four runs shared the GPU at a time. FrozenLake's and CartPole's
returns are means of 100 greedy games, and Pendulum's of the last 100 episodes of training:

{table(("run", "seed", "return", "env steps", "seconds"), worlds)}
`scripts/gpu_check` tests and measures rlrun on
a machine with a GPU, in under ten minutes.
"""


def _command_today(part: dict[str, Any]) -> str:
    """A command as it was typed, and what it needs in addition since a default or a tuned file has changed."""
    return " ".join(filter(None, (part["command"].split(" --json")[0], part.get("needed_today"))))


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


# -- clusters ----------------------------------------------------------------------------------------------------------

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
    parts = []
    for variant, title in VARIANTS.items():
        rows = [
            (
                row["nodes"],
                f"{row['nodes'] * CLUSTER['cores']:,}",
                f"{row['steps_per_sec']:,}",
                f"{row['lag']:.1f}",
                f"{row['narrowest']} ({row['busy'].get(row['narrowest'], 0):.0%})" if row["narrowest"] in row["busy"] else row["narrowest"],
            )
            for row in found["table"]
            if row["variant"] == variant
        ]
        parts.append(f"### {title}\n\n{table(('machines', 'cores', 'env steps/s', 'policy lag, updates', 'narrowest (works)'), rows)}")
    named = {"local": "one machine, shared memory", "1": "1 node", "2": "2 simulated nodes"}
    speeds = {kind: [run["steps_per_sec"] for run in check["runs"][kind]] for kind in named}
    runs = [(named[kind], ", ".join(f"{x:,.0f}" for x in each), f"{statistics.median(each):,.0f}") for kind, each in speeds.items()]
    vectors, (game, images) = sizes["vectors"], next((name, size) for name, size in sizes.items() if name != "vectors")
    steps = facts["rows"] * facts["columns"]
    micro = {name: f"{facts[f'{name}_sec'] * 1e6:,.1f} us" for name in ("pack", "unpack")}
    return f"""{MADE}
# Simulated clusters

**No run on two real machines has been made.** The figures of larger clusters on this page come from a simulation
(`rlrun/bench/cluster_model.py`) of what a run with `resources=ray` does. It is made from what one machine measured, and
from what a cluster is assumed to have. [Several machines](cluster.md) says how to start a cluster.

## What was measured

`{found["command"]}` on {found["hardware"]["cores"]} cores of {found["hardware"]["cpu"]}, {found["started"][:10]}. Parts are measured
alone on one thread, in seconds of a core. The frames are those of an untrained policy.

{
        table(
            ("what", game, "HalfCheetah's shape"),
            [
                ("bytes of an env step in memory", f"{images['raw_bytes']:,.0f}", f"{vectors['raw_bytes']:,.0f}"),
                ("bytes of an env step on its way", f"{images['packed_bytes']:,.0f}", f"{vectors['packed_bytes']:,.0f}"),
                ("packing an env step", micro["pack"], f"{vectors['pack_us']:.2f} us"),
                ("unpacking an env step", micro["unpack"], f"{vectors['unpack_us']:.2f} us"),
                ("an env step with its inference", f"{facts['step_sec'] * 1e6:,.0f} us", ""),
                (f"an update from {facts['fragments'] * steps:,} env steps, one thread", f"{facts['update_sec'] * 1e3:,.0f} ms", ""),
                ("weights", f"{facts['weights_bytes'] / 1e6:.2f} MB", ""),
                ("publishing weights; taking them in", f"{facts['put_sec'] * 1e3:.1f} ms; {facts['load_sec'] * 1e3:.1f} ms", ""),
            ],
        )
    }
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

{chr(10).join(parts)}
`rlrun benchmark cluster --simulate nodes=64 gpu=true broadcast=10` simulates one such cluster, and other facts can be
given: `bandwidth=1e9`, `samplers=8`, `calls_ahead=4`, `fragments=8`.

Weights are {facts["weights_bytes"] / 1e6:.2f} MB and a packed fragment is {steps * facts["step_bytes"] / 1e3:,.0f} kB. A machine fetches weights with each call, so small
updates fill its network with weights and not with rows. `runner.broadcast_interval` and a larger `algo.batch_size` help.
"""


def _bold(text: str) -> str:
    return text if text == "met" else f"**{text}**"


# -- options -----------------------------------------------------------------------------------------------------------


def every_option() -> str:
    """All files of conf/, each option with its default and its comment."""
    parts = []
    groups = {path.relative_to(ROOT / "conf").parts[0] for path in (ROOT / "conf").rglob("*.yaml") if path.parent.name != "conf"}
    for file in [ROOT / "conf" / "train.yaml", *(f for g in sorted(groups) for f in sorted((ROOT / "conf" / g).rglob("*.yaml")))]:
        name = file.relative_to(ROOT / "conf").with_suffix("").as_posix()
        rows = [(f"`{key}`", default and f"`{default}`", comment) for key, default, comment in options_of(file.read_text())]
        if name.startswith("benchmark/"):  # tables are chosen by name, and their options are not typed
            continue
        said = _inherited(name, bool(rows))
        if rows or said:
            parts.append(f"## {name}\n\n{said}{table(('option', 'default', 'what it does'), rows) if rows else ''}")
    return f"""{MADE}
# Every option

Groups are chosen by `algo=NAME`, `env=NAME`, `runner=NAME`, `replay=NAME`, `model=NAME`, `resources=NAME` and
`logger=NAME`. Their options are written with the group in front: `algo.lr=1e-3`. Options under `acting`, `bandit`,
`evolution`, `off_policy` and `q_learning` belong to algorithms: `algo.num_envs=8`. Those under `optimizer` are
`algo.optimizer.NAME`, and those under `model/output` are `model.NAME`. Where a section has the options of another one
too and both list an option, the default in the section itself counts. `rlrun explain NAME` shows all options of one
algorithm together. An option that is a number or a schedule takes each of
[these forms](commands.md#numbers-and-schedules).

{chr(10).join(parts)}"""


def _inherited(file: str, has_own: bool) -> str:
    """A paragraph with links to the sections whose options a file of conf/ has too; empty where there are none."""
    also, inner = dict.fromkeys(_sources(file)), _inner(file)
    linked = _listed([_link(name) for name in also]) if also else ""
    said = f"It also has the options of {linked}.\n" if has_own else f"It has the options of {linked}, and none of its own.\n"
    said = said if also else ""
    if inner:
        said += f"The algorithm inside is {_link(f'algo/{inner}')} by default; its options are `algo.inner.NAME`.\n"
    return said and f"{said}\n"


def _inner(file: str) -> str | None:
    group, _, name = file.partition("/")
    return inner_algorithm(name) if group == "algo" else None


def _sources(file: str) -> Iterator[str]:
    """The files of conf/ whose options a file has as its own, by its defaults list, the nearest first.

    Choices of other groups (override /replay@_global_.replay) and the algorithm inside another one are left out."""
    if file == "train":  # its defaults list chooses the groups
        return
    group = file.rpartition("/")[0]
    lines = (yaml.safe_load((ROOT / "conf" / f"{file}.yaml").read_text()) or {}).get("defaults", [])
    replaced = {key.split()[1] for line in lines if isinstance(line, dict) for key in line if key.startswith("override ")}
    found = []
    for line in lines:
        for key, value in ({"": line} if isinstance(line, str) else line).items():
            name = key.removeprefix("override ").partition("@")[0]
            if value != "_self_" and not key.startswith(("override /", "/algo@inner")):
                found.append(f"{name[1:]}/{value}" if name.startswith("/") else "/".join(filter(None, (group, name, value))))
    for source in found:
        if list(options_of((ROOT / "conf" / f"{source}.yaml").read_text())):
            yield source
        # A choice that this file replaces, such as model/memory/none, is not its own.
        gone = [f"{group}/{name}/" for name in replaced if not source.startswith(f"{group}/{name}/")]
        yield from (one for one in _sources(source) if not one.startswith(tuple(gone)))


def _link(file: str) -> str:
    return f"[{file}](#{file.replace('/', '')})"


def _listed(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


# -- all ---------------------------------------------------------------------------------------------------------------

PAGES = {
    "algorithms.md": algorithms,
    "results.md": results,
    "speed.md": speed,
    "options.md": every_option,
    "cluster_scale.md": cluster_scale,
}


def main() -> int:
    words = set(sys.argv[1:])
    if words - {"--check"}:
        print(__doc__)
        return 2
    stale = []
    for name, make in PAGES.items():
        text, path = make().rstrip() + "\n", DOCS / name
        if not path.exists() or path.read_text() != text:
            stale.append(f"docs/{name}")
            if "--check" not in words:
                path.write_text(text)
    for name in stale:
        print(f"{name} {'is not what scripts/docs writes' if '--check' in words else 'is written'}")
    return int("--check" in words and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
