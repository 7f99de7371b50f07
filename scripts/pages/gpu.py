"""What docs/speed.md says about GPUs."""

from __future__ import annotations

import json
from typing import Any

from layout import ROOT, table

# What was printed on an H100 and, twice, on an H200.
CHECKS = [json.loads((ROOT / f"tuned/results/gpu/{name}.json").read_text()) for name in ("check_h100", "check_h200", "check_h200_again")]


def parts_on_a_gpu() -> str:
    """What scripts/gpu_check printed on machines with a GPU."""
    found, again, last = CHECKS
    parts, tests, every = found["parts"], found["tests"], last["every"]
    emulator = parts["emulator"]["env_steps_per_sec"]

    def measured(several: dict[str, Any]) -> list[tuple[str, ...]]:
        reached = {name: part for name, part in several.items() if "reached" in part}
        return [
            (name, f"{part['reached']:,.0f}", f"{part['reached'] / emulator:.2f}", f"{part['bound']:,.0f}", f"`{_command_today(part)}`")
            for name, part in reached.items()
        ]

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
"""


def runs_on_a_gpu() -> str:
    """Runs to their bars on machines with a GPU."""
    found, again, last = CHECKS
    long, speed, pong = again["run"], again["run"]["env_steps_per_sec"], found["parts"]["pong"]
    impala, pong_now, pong_before = found["parts"]["impala_pong"], last["impala_pong"], last["impala_pong_before"]
    worlds = [(f"`{run['run']}`", str(run["seed"]), f"{run['return']:g}", f"{run['env_steps']:,}", str(run["wall_sec"])) for run in found["worlds"]]
    return f"""PPO reached {pong["return"]} on Pong after {pong["env_steps"]:,} env steps. {pong["wall_sec"]:.0f} s passed between the start of the command
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
