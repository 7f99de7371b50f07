"""rlrun evaluate RUN_DIR [episodes=10 checkpoint=last|best|<env steps> greedy=true seed=0 opponent=PLAYER] [--json]

Plays full games with seeds that training never used. A lost life does not end a game, and rewards are not clipped.
With opponent, the run plays every agent in turn, in as many episodes each, against a player who plays all others:
random, the directory of another run, or package.module:Name, a subclass of rlrun.Exploration. Returns are then those of
the run's agent."""

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


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions(PlayOptions):
    opponent: str | None


DEFAULTS = {"checkpoint": "last", "greedy": True, "seed": 0}


def _outcomes(returns: list[float]) -> dict[str, list[bool]]:
    """Which games were won, drawn and lost."""
    return {"won": [r > 0 for r in returns], "drawn": [r == 0 for r in returns], "lost": [r < 0 for r in returns]}


def main(words: list[str]) -> int:
    if any(word in ("-h", "--help") for word in words):
        print(__doc__)
        return 0
    trusted, words = take_trust(words)
    as_json = "--json" in words
    path, rest = run_dir_argument([word for word in words if word != "--json"], "evaluate")
    options = typed(EvaluateOptions, DEFAULTS | {"episodes": 10, "opponent": None} | parse_assignments(rest))
    if not as_json:
        print(f"rlrun evaluate: {path}, {options.episodes} episode{'s' * (options.episodes > 1)}", flush=True)

    import torch

    from rlrun.bench.charts import t95
    from rlrun.core.policy import Mode
    from rlrun.core.seeding import Seeds
    from rlrun.envs.registry import Factory
    from rlrun.runtime.opponents import matches
    from rlrun.runtime.trained import load
    from rlrun.samplers.evaluator import Evaluator

    torch.set_num_threads(1)
    trained = load(path, str(options.checkpoint), trusted)
    seeds = Seeds(options.seed)
    factory = Factory(cfg=trained.config.env, spec=trained.spec, seeds=seeds, stream="evaluate", learning=False)
    mode: Mode = "greedy" if options.greedy else "explore"
    played = matches(trained, options.opponent, options.episodes, trusted)
    evaluator = Evaluator(factory, min(options.episodes, 8), seeds)
    games: list[tuple[float, int]] = []
    try:
        for number, match in enumerate(played):
            games += evaluator.play(match.policy, match.episodes, mode, trained.clock, number, agent=match.agent)
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
    against = ""
    if options.opponent is not None:
        shares = {word: sum(test) / len(returns) for word, test in _outcomes(returns).items()}
        result |= {"opponent": options.opponent, **shares}
        told = ", ".join(f"{share:.1%} {word}" for word, share in shares.items())
        against = f", against {options.opponent}: {told}"
    if as_json:
        print(json.dumps(result))
    else:
        print(
            f"{trained.spec.name} at {trained.clock.env_steps:,} env steps: return"
            f" {mean:.2f}{'' if error is None else f' +- {error:.2f} (95%)'} over {len(returns)} full"
            f" game{'s' * (len(returns) > 1)}, {min(returns):g} to {max(returns):g},"
            f" {'greedy' if options.greedy else 'sampled'}{against}"
        )
    return 0
