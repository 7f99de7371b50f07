"""rlrun record RUN_DIR [to=DIR episodes=100|env_steps=N greedy|explore|random checkpoint=last|best|<env steps> seed=0
num_envs=8 env=NAME] [--json]

Plays the environment of a run with its policy and records what happens, as a data set for runner=offline, rlrun data
and rlrun estimate. The policy explores as in training (explore, the default), takes its best actions (greedy), or
random legal actions are taken (random). With episodes=, whole episodes are recorded, the same number in every
environment; with env_steps=, recording ends when so many steps were taken, and episodes that are not over then are
marked as cut. Data are written to to=DIR, by default RUN_DIR/data, and are added to those that are there. Environment
seeds are those of no training and no evaluation; another seed= gives other episodes. env= names the environment for a
run that learnt from data alone; by default it is the one of the data."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from rlrun.cli import run_dir_argument, take_trust
from rlrun.config.types import parse_assignments, typed
from rlrun.core.errors import UserError
from rlrun.core.ranges import Count, Seed

WAYS = ("explore", "greedy", "random")


@dataclass(frozen=True, kw_only=True)
class RecordOptions:
    to: str | None
    episodes: Annotated[int, Count] | None
    env_steps: Annotated[int, Count] | None
    checkpoint: str | int
    seed: Annotated[int, Seed]
    num_envs: Annotated[int, Count]
    env: str | None


DEFAULTS = {
    "to": None,
    "episodes": None,
    "env_steps": None,
    "checkpoint": "last",
    "seed": 0,
    "num_envs": 8,
    "env": None,
}


def main(words: list[str]) -> int:
    if any(word in ("-h", "--help") for word in words):
        print(__doc__)
        return 0
    trusted, words = take_trust(words)
    as_json = "--json" in words
    ways = [word for word in words if word in WAYS]
    path, rest = run_dir_argument([word for word in words if word != "--json" and word not in WAYS], "record")
    if len(ways) > 1:
        raise UserError(f"the actions are chosen in one way: {' or '.join(ways)}")
    options = typed(RecordOptions, DEFAULTS | parse_assignments(rest))
    if options.episodes is not None and options.env_steps is not None:
        raise UserError("episodes= and env_steps= both say how much to record; give one of them")
    episodes = 100 if options.episodes is None and options.env_steps is None else options.episodes

    import torch

    from rlrun.runtime.played_env import in_environment
    from rlrun.runtime.record import Wish, record
    from rlrun.runtime.rundir import command_line
    from rlrun.runtime.trained import load

    torch.set_num_threads(1)
    trained = in_environment(load(path, str(options.checkpoint), trusted), options.env)
    folder = Path(options.to) if options.to is not None else path / "data"
    way = ways[0] if ways else "explore"
    if not as_json:
        much = f"{episodes} episodes" if episodes is not None else f"{options.env_steps:,} env steps"
        print(f"rlrun record: {much} of {trained.spec.name}, {way}, into {folder}", flush=True)
    wish = Wish(episodes, options.env_steps)
    made = record(trained, folder, wish, way, options.seed, options.num_envs, command_line())  # type: ignore[arg-type]
    if as_json:
        print(json.dumps({"folder": str(folder), **made}))
        return 0
    mean = "" if made["return_mean"] is None else f", mean return {made['return_mean']:.2f}"
    print(f"  {made['episodes']:,} trajectories, {made['env_steps']:,} decisions{mean}")
    if not made["log_prob"]:
        print("  The probabilities of actions are not known for this policy, so that estimators cannot use these data.")
    print(f"  rlrun data {folder} shows them.")
    return 0
