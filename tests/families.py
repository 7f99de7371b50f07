"""Which algorithms can do what, read from their configs."""

import os

from conftest import compose

from rlrun.config.paths import options
from rlrun.config.run import type_config


def _needs(algo: str):
    config = type_config(compose(f"algo={algo}", "env=CartPole-v1"))
    return config.algorithm.needs(config.algo)


# The suite's second process begins at the other end, so that each process finds half of the configs composed already.
_found = {algo: _needs(algo) for algo in options("algo")[:: -1 if os.environ.get("PYTEST_XDIST_WORKER") == "gw1" else 1]}
EVERY = {algo: _found[algo] for algo in options("algo")}
JOINT = [algo for algo, needs in EVERY.items() if needs.joint]  # learn all agents of an environment together
SEVERAL = [algo for algo, needs in EVERY.items() if needs.several]  # learn several policies
SEARCHING = [algo for algo, needs in EVERY.items() if needs.simulator]  # need an environment with a simulator
# Of the joint ones those that choose by action values.
JOINT_VALUES = [algo for algo in JOINT if "box" not in EVERY[algo].actions]
# Imagine the rows that they learn from, for which the environment must be a known one; tests/algos/test_mbmpo.py.
IMAGINING = ["mbmpo"]
# Learn one policy of one agent.
NEEDS = {algo: needs for algo, needs in EVERY.items() if algo not in JOINT + SEVERAL + SEARCHING + IMAGINING}
DREAMING = ["dreamer", "dreamerv3"]  # learn in dreams, which have no action masks
SLATES = ["slateq"]  # answer with slates of candidates that they are shown
IMITATING = ["bc", "marwil"]  # learn the actions of data, and do not explore
REPLAYING = [algo for algo, needs in NEEDS.items() if needs.replay is not None and algo not in IMITATING]
BANDITS = ["lin_ucb", "lin_ts", "neural_linear"]  # learn rewards alone, and not what follows a row
EVOLVING = [algo for algo, needs in NEEDS.items() if needs.population is not None]  # learn from returns, not from rows
ROWS = [algo for algo in NEEDS if algo not in EVOLVING]
EXPLORING = [algo for algo in ROWS if algo not in IMITATING]
# Learn from rows as they come. Tests let marwil learn from experience.
FRESH = [algo for algo in ROWS if NEEDS[algo].replay is None or algo == "marwil"]
DISCRETE = [algo for algo in ROWS if "discrete" in NEEDS[algo].actions]
BOX = [algo for algo in ROWS if "box" in NEEDS[algo].actions]
ADAPTING = [algo for algo, needs in NEEDS.items() if needs.tasks is not None]  # adapt to tasks, without a memory
ANY_ACTION = [algo for algo, needs in NEEDS.items() if "nested" in needs.actions and algo not in ADAPTING]
# Actor and critics, learnt from a replay.
ACTORS = [algo for algo in REPLAYING if "box" in NEEDS[algo].actions and algo not in DREAMING]
SAMPLING = ["sac", "tqc", "cql", "implicit_q", "crr"]  # of them those whose policy is a distribution
MEMORY = [*ANY_ACTION, "r2d2"]  # take model=lstm
# What algorithms with a memory need besides it.
REMEMBERING = {"bc": ["algo.sequence_length=5", "algo.batch_size=20"]}


def fits(algo: str, case: str) -> bool:
    """Whether an algorithm can do one of test_all's cases."""
    if algo in SEARCHING or case == "simulator":
        return algo in SEARCHING and case == "simulator"
    if algo in JOINT:
        return case == "agents" or (case == "agents' numbers" and algo not in JOINT_VALUES)
    if case == "slates" or algo in SLATES:
        return case == "slates" and algo in SLATES
    if algo in IMAGINING:
        return False
    if case in ("discrete", "masked"):
        return algo in DISCRETE and not (case == "masked" and algo in DREAMING)
    if case.startswith("agents"):
        return False
    if algo in ADAPTING:
        return case in ("box", "every space")
    return (
        algo in ANY_ACTION
        or (case == "lstm" and algo in MEMORY)
        or (case == "box" and algo in BOX)
        or (case in ("beta", "squashed") and algo in SAMPLING)
    )


def remembering(algo: str, words) -> list[str]:
    """What an algorithm needs besides a memory, if one of the words gives it one."""
    memory = any(word.startswith(("model=lstm", "model=gru", "model=gtrxl", "model/memory=")) for word in words)
    return REMEMBERING.get(algo, []) if memory else []


def simple(algo: str) -> str:
    """A small environment whose actions the algorithm can take."""
    if algo in JOINT + SEVERAL:
        return "MultiAgentCartPole-v0"
    if algo in SEARCHING:
        return "CartPoleSparse-v0"
    if algo in SLATES:
        return "rlrun/InterestExploration-v0"  # no two candidates are alike
    return "CartPole-v1" if algo in DISCRETE else "Pendulum-v1"
