"""Which algorithms can do what, read from their configs."""

from conftest import compose

from rlrun.config.paths import options
from rlrun.config.run import type_config


def _needs(algo: str):
    config = type_config(compose(f"algo={algo}", "env=CartPole-v1"))
    return config.algorithm.needs(config.algo)


EVERY = {algo: _needs(algo) for algo in options("algo")}
JOINT = [algo for algo, needs in EVERY.items() if needs.joint]  # learn all agents of an environment together
SEVERAL = [algo for algo, needs in EVERY.items() if needs.several]  # learn several policies
# Of the joint ones those that choose by action values.
JOINT_VALUES = [algo for algo in JOINT if "box" not in EVERY[algo].actions]
NEEDS = {algo: needs for algo, needs in EVERY.items() if algo not in JOINT + SEVERAL}  # learn one policy of one agent
REPLAYING = [algo for algo, needs in NEEDS.items() if needs.replay is not None]
EVOLVING = [algo for algo, needs in NEEDS.items() if needs.population is not None]  # learn from returns, not from rows
ROWS = [algo for algo in NEEDS if algo not in EVOLVING]
FRESH = [algo for algo in ROWS if NEEDS[algo].replay is None]  # learn from rows as they come
DISCRETE = [algo for algo in ROWS if "discrete" in NEEDS[algo].actions]
BOX = [algo for algo in ROWS if "box" in NEEDS[algo].actions]
ANY_ACTION = [algo for algo, needs in NEEDS.items() if "nested" in needs.actions]
ACTORS = [
    algo for algo, needs in NEEDS.items() if needs.replay is not None and "box" in needs.actions
]  # actor and critics, learnt from a replay
SAMPLING = ["sac", "tqc"]  # of them those whose policy is a distribution
MEMORY = [*ANY_ACTION, "r2d2"]  # take model=lstm


def fits(algo: str, case: str) -> bool:
    """Whether an algorithm can do one of test_all's cases."""
    if algo in JOINT:
        return case == "agents" or (case == "agents' numbers" and algo not in JOINT_VALUES)
    if case in ("discrete", "masked"):
        return algo in DISCRETE
    if case.startswith("agents"):
        return False
    return (
        algo in ANY_ACTION
        or (case == "lstm" and algo in MEMORY)
        or (case == "box" and algo in BOX)
        or (case in ("beta", "squashed") and algo in SAMPLING)
    )


def simple(algo: str) -> str:
    """A small environment whose actions the algorithm can take."""
    if algo in JOINT + SEVERAL:
        return "MultiAgentCartPole-v0"
    return "CartPole-v1" if algo in DISCRETE else "Pendulum-v1"
