"""rlrun evaluate RUN_DIR [episodes=10 checkpoint=last|best|<env steps> greedy=true seed=0] [--json]

Plays full games with seeds that training never used. A lost life does not end a game, and rewards are not clipped."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Annotated

from rlrun.cli import run_dir_argument, take_trust
from rlrun.config.types import parse_assignments, typed
from rlrun.core.ranges import Count, NotNegative


@dataclass(frozen=True, kw_only=True)
class PlayOptions:
    """The checkpoint, and the games that it plays. `watch` takes these options too."""

    episodes: Annotated[int, Count]
    checkpoint: str | int
    greedy: bool
    seed: Annotated[int, NotNegative]


DEFAULTS = {"checkpoint": "last", "greedy": True, "seed": 0}


def main(words: list[str]) -> int:
    if any(word in ("-h", "--help") for word in words):
        print(__doc__)
        return 0
    trusted, words = take_trust(words)
    as_json = "--json" in words
    path, rest = run_dir_argument([word for word in words if word != "--json"], "evaluate")
    options = typed(PlayOptions, DEFAULTS | {"episodes": 10} | parse_assignments(rest))
    if not as_json:
        print(f"rlrun evaluate: {path}, {options.episodes} episode{'s' * (options.episodes > 1)}", flush=True)

    import torch

    from rlrun.bench.charts import t95
    from rlrun.core.seeding import Seeds
    from rlrun.envs.registry import Factory
    from rlrun.runtime.trained import load
    from rlrun.samplers.evaluator import Evaluator

    torch.set_num_threads(1)
    trained = load(path, str(options.checkpoint), trusted)
    seeds = Seeds(options.seed)
    factory = Factory(cfg=trained.config.env, spec=trained.spec, seeds=seeds, stream="evaluate", learning=False)
    evaluator = Evaluator(factory, min(options.episodes, 8), seeds)
    try:
        games = evaluator.play(
            trained.policy, options.episodes, "greedy" if options.greedy else "explore", trained.clock
        )
    finally:
        evaluator.close()
    returns = [ret for ret, _ in games]
    mean = sum(returns) / len(returns)
    deviation = math.sqrt(sum((r - mean) ** 2 for r in returns) / (len(returns) - 1)) if len(returns) > 1 else 0.0
    error = t95(len(returns)) * deviation / math.sqrt(len(returns)) if len(returns) > 1 else None
    result = {
        "run_dir": str(path),
        "env": trained.spec.name,
        "checkpoint_env_steps": trained.clock.env_steps,
        "episodes": len(returns),
        "return_mean": mean,
        "return_std": deviation,
        "return_mean_95": None if error is None else [mean - error, mean + error],
        "return_min": min(returns),
        "return_max": max(returns),
        "episode_length_mean": sum(length for _, length in games) / len(games),
        "greedy": options.greedy,
        "seed": options.seed,
        "returns": returns,
    }
    if as_json:
        print(json.dumps(result))
    else:
        print(
            f"{trained.spec.name} at {trained.clock.env_steps:,} env steps: return"
            f" {mean:.2f}{'' if error is None else f' +- {error:.2f} (95%)'} over {len(returns)} full"
            f" game{'s' * (len(returns) > 1)}, {min(returns):g} to {max(returns):g},"
            f" {'greedy' if options.greedy else 'sampled'}"
        )
    return 0
