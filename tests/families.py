"""Which algorithms can do what, read from their configs."""

from conftest import compose

from rlrun.paths import options
from rlrun.wiring import type_config


def _needs(algo: str):
    config = type_config(compose(f"algo={algo}", "env=CartPole-v1"))
    return config.algorithm.needs(config.algo)


NEEDS = {algo: _needs(algo) for algo in options("algo")}
REPLAYING = [algo for algo, needs in NEEDS.items() if needs.replay is not None]
FRESH = [algo for algo, needs in NEEDS.items() if needs.replay is None]  # learn from rows as they come
ANY_ACTION = [algo for algo, needs in NEEDS.items() if "box" in needs.actions]
MEMORY = [*ANY_ACTION, "r2d2"]  # take model=lstm


def fits(algo: str, case: str) -> bool:
    """Whether an algorithm can do one of test_all's cases."""
    return algo in ANY_ACTION or case in ("discrete", "masked") or (case == "lstm" and algo in MEMORY)
