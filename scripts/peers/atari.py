"""scripts/compare_peers --learning --atari [--only ppo/Pong,...] [--jobs 1] [--folder tuned/results/learning]
                                         [--markdown docs/learning_atari.md] [--fresh] [--only-render]

Trains rlrun's defaults on Atari games for 500,000 env steps with seed 1, and compares the last 100 training games with
100 games of uniformly random actions. Scores are those of full games without clipping. Each run is kept in FOLDER as a
JSON file, so that a comparison that was interrupted goes on; --fresh runs all of them again, and --only-render draws the
table of those that are there. The exit code is 1 if a run failed, or if an algorithm of which all games were asked for
is above random play by three standard errors on fewer than four of them."""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from compare import ROOT, Failed, last

from rlrun.commands.compare import commit
from rlrun.config.types import load_yaml
from rlrun.core.seeding import Seeds
from rlrun.envs.atari import AtariConfig
from rlrun.envs.registry import Factory, make_spec
from rlrun.runtime.rundir import hardware

ALGOS = ("ppo", "impala", "a2c")
# Those of RLlib's tables, and Seaquest. Pong pays so rarely that 500,000 env steps say little.
GAMES = ("BeamRider", "Breakout", "Pong", "Qbert", "Seaquest", "SpaceInvaders")
ENOUGH = 4  # games on which an algorithm must be above random play
ENV_STEPS, EPISODES = 500_000, 100
ERRORS = 3.0  # standard errors that a run must be above random play


def config_of(game: str) -> AtariConfig:
    """The environment that rlrun's defaults make of a game."""
    from rlrun.cli import compose
    from rlrun.config.types import plain, typed

    made: list[AtariConfig] = []
    compose(
        ["algo=ppo", f"env={game}"], lambda cfg, choices: made.append(typed(AtariConfig, plain(cfg)["env"], "env")) or 0
    )
    return made[0]


def random_play(game: str) -> list[float]:
    """The returns of games of uniformly random actions."""
    cfg, seeds, columns = config_of(game), Seeds(1), 4
    env = Factory(cfg=cfg, spec=make_spec(cfg), seeds=seeds, stream="evaluate", learning=False)(0, columns)
    draw, choices = np.random.default_rng(1), env.spec.action.n
    returns, found, quota = np.zeros(columns), [[] for _ in range(columns)], EPISODES // columns
    env.reset(0)
    while any(len(games) < quota for games in found):
        step = env.step(draw.integers(choices, size=columns))
        returns += step.paid
        for column in np.flatnonzero(step.is_first):
            found[column].append(float(returns[column]))
            returns[column] = 0.0
    env.close()
    return [value for games in found for value in games[:quota]]


def train(algo: str, game: str) -> dict[str, Any]:
    """Trains once and returns what the last row of its progress says. Raises Failed."""
    with tempfile.TemporaryDirectory() as made:
        run = Path(made) / "run"
        words = [f"algo={algo}", f"env={game}", f"env_steps={ENV_STEPS}", "seed=1"]
        command = [sys.executable, "-m", "rlrun", "train", *words]
        quiet = ["logger=[]", "checkpoint.best_every_sec=null", f"run_dir={run}"]
        with (Path(made) / "out").open("w+") as out:
            env = {**os.environ, "OMP_NUM_THREADS": "1"}
            code = subprocess.run(
                [*command, *quiet], stdout=out, stderr=subprocess.STDOUT, cwd=made, env=env
            ).returncode
            out.seek(0)
            lines = out.read().strip().splitlines()
        if code:
            raise Failed(last(lines, code))
        rows = [json.loads(line) for line in (run / "progress.jsonl").read_text().splitlines()]
        summary = json.loads((run / "summary.json").read_text())
        chosen = load_yaml(run / "config.yaml")["model"]["observation_filter"]
    played = [row for row in rows if row.get("sample/return_mean") is not None]
    if not played:
        raise Failed("no game ended")
    return {
        "final": played[-1]["sample/return_mean"],
        "std": played[-1]["sample/return_std"],
        "episodes": min(played[-1]["sample/episodes"], EPISODES),
        "curve": [[row["env_steps"], row["sample/return_mean"]] for row in played][:: max(1, len(played) // 100)],
        "env_steps": summary["env_steps"],
        "wall_sec": summary["wall_sec"],
        "observation_filter": chosen,
        "seed": 1,
        "command": f"rlrun train {' '.join(words)}",
        "versions": {name: summary["versions"][name] for name in ("rlrun", "torch", "gymnasium")},
        "git_commit": summary["git_commit"],
        "hardware": summary["hardware"],
        "resources": summary["resources"],
    }


def errors_above(one: dict[str, Any], random: dict[str, Any]) -> float:
    """How many standard errors of the difference a run's mean is above that of random play."""
    error = math.sqrt(one["std"] ** 2 / one["episodes"] + random["std"] ** 2 / random["episodes"])
    return (one["final"] - random["final"]) / error if error > 0 else 0.0


def reached(found: dict[tuple[str, str], dict[str, Any]], randoms: dict[str, dict[str, Any]]) -> dict[str, list[str]]:
    """The games on which each algorithm is enough errors above random play."""
    above: dict[str, list[str]] = {algo: [] for algo, _ in found}
    for (algo, game), one in found.items():
        if errors_above(one, randoms[game]) >= ERRORS:
            above[algo].append(game)
    return above


def markdown(found: dict[tuple[str, str], dict[str, Any]], randoms: dict[str, dict[str, Any]]) -> str:
    lines = [
        "<!-- scripts/compare_peers --learning --atari makes this page; change what it is made from. -->",
        "# Defaults on Atari games",
        "",
        f"Every run trained with the defaults that its algorithm had then, for {ENV_STEPS:,} env steps with seed 1. The score is the",
        f"mean return of the last {EPISODES} training games, which are full games without clipped rewards, and its",
        f"standard deviation over games. Random play is {EPISODES} games of uniformly random actions.",
        "",
        "Rows marked \"no\" were measured before normalised pixels became the default. To make them again, add",
        "`model.observation_filter=none`.",
        "",
        "| algorithm, game | normalised pixels | score | random play | standard errors above it | wall time |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for (algo, game), one in found.items():
        above, random = errors_above(one, randoms[game]), randoms[game]
        score, base = (f"{row['final']:.1f} (deviation {row['std']:.1f})" for row in (one, random))
        said = f"{above:.1f}" + ("" if above >= ERRORS else ", BELOW 3")
        pixels = "yes" if one.get("observation_filter") == "mean_std" else "no"
        lines.append(f"| {algo}, {game} | {pixels} | {score} | {base} | {said} | {one['wall_sec'] / 60:.0f} min |")
    machines = sorted(
        {
            f"{one['hardware']['cores']} core{'s' * (one['hardware']['cores'] > 1)} of an {one['hardware']['cpu']}"
            for one in found.values()
        }
    )
    commits = sorted({commit(one["git_commit"]) for one in found.values()})
    lines += [
        "",
        f"Each algorithm should be at least {ERRORS:g} standard errors above random play on at least {ENOUGH} games:",
        "; ".join(
            f"{algo} reaches this on {len(games)} ({', '.join(games)})" for algo, games in reached(found, randoms).items()
        )
        + ".",
        "",
        f"Each run is the command `rlrun train algo=ALGORITHM env=GAME env_steps={ENV_STEPS} seed=1`, by rlrun at",
        f"{', '.join(commits)} on {' and '.join(machines)}, with other work on the",
        "machine. Each run is a file of tuned/results/learning. `scripts/compare_peers --learning --atari --markdown",
        "docs/learning_atari.md` made this.",
        "",
    ]
    return "\n".join(lines)


def main() -> int:
    names = [f"{algo}/{game}" for game in GAMES for algo in ALGOS]
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--learning", action="store_true")
    parser.add_argument("--atari", action="store_true")
    parser.add_argument("--only", default=",".join(names))
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=ROOT / "tuned" / "results" / "learning")
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--fresh", action="store_true")
    parser.add_argument("--only-render", action="store_true")
    said = parser.parse_args()
    unknown = set(said.only.split(",")) - set(names)
    if unknown:
        parser.error(f"--only: {', '.join(sorted(unknown))} is none of {', '.join(names)}")
    said.folder.mkdir(parents=True, exist_ok=True)
    failed = False

    def one(name: str) -> None:
        nonlocal failed
        algo, game = name.split("/")
        base, path = said.folder / f"random-{game}.json", said.folder / f"atari-{algo}-{game}-{ENV_STEPS}-seed1.json"
        if not base.is_file():
            returns = random_play(game)
            played = {"final": statistics.mean(returns), "std": statistics.pstdev(returns), "episodes": len(returns)}
            base.write_text(json.dumps({**played, "game": game, "returns": returns, "hardware": hardware()}) + "\n")
        if path.is_file() and not said.fresh:
            return
        try:
            made = train(algo, game)
        except Failed as error:
            failed = True
            print(f"{name}: failed: {error}", flush=True)
            return
        path.write_text(json.dumps({"algo": algo, "game": game, **made}) + "\n")
        above = errors_above(made, json.loads(base.read_text()))
        print(f"{name}: {made['final']:.1f}, {above:.1f} standard errors above random play", flush=True)

    wanted = [name for name in names if name in said.only.split(",")]
    with concurrent.futures.ThreadPoolExecutor(said.jobs) as pool:
        list(pool.map(one, [] if said.only_render else wanted))
    found, randoms = {}, {}
    for algo, game in (name.split("/") for name in wanted):
        path = said.folder / f"atari-{algo}-{game}-{ENV_STEPS}-seed1.json"
        if path.is_file():
            found[algo, game] = json.loads(path.read_text())
            randoms[game] = json.loads((said.folder / f"random-{game}.json").read_text())
    text = markdown(found, randoms)
    print(text)
    if said.markdown:
        said.markdown.parent.mkdir(parents=True, exist_ok=True)
        said.markdown.write_text(text)
    whole = [algo for algo in ALGOS if {f"{algo}/{game}" for game in GAMES} <= set(wanted)]
    above = reached(found, randoms)
    return 1 if failed or any(len(above.get(algo, [])) < ENOUGH for algo in whole) else 0


if __name__ == "__main__":
    sys.exit(main())
