"""docs/algorithms.md: what every algorithm can do, by the plans that rlrun makes of it, and what its file says."""

from __future__ import annotations

import re
from typing import Any

from layout import MADE, ROOT, table

from rlrun.commands.list import docstring
from rlrun.config.paths import inner_algorithm, options, runner_of
from rlrun.core.errors import UserError
from rlrun.machine.machine import Machine

ACTIONS = {
    "discrete": "one choice",
    "multi_discrete": "several choices",
    "multi_binary": "switches",
    "box": "numbers",
    "nested": "Dict and Tuple",
}
TEAM = {"multi_discrete": "each agent's choice", "box": "each agent's numbers"}

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
  checkpoint, the replay, unless it is larger than `replay.checkpoint_max_gb`. Episodes begin anew with other seeds, and
  the order in which several processes finish is not fixed. [Questions](faq.md#what-survives-an-interruption) lists all
  that begins anew.
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
