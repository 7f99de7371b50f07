"""scripts/make_offline_data [cartpole pendulum ...] [--folder data] [--rows 200000] [--levels random,medium,expert]
                          [--train]

Makes data sets as D4RL's are: of a random, a medium and an expert policy, and the replay of the run that led to the
medium one. --levels replay makes the replay of the whole run that led to the expert, which trains it again. The
sampling policies of this repository (tuned/offline/NAME-LEVEL.safetensors, with NAME.json saying how they were trained)
play; with --train they are trained anew and replaced, and the replay is recorded meanwhile. Without names, cartpole and
pendulum are made; halfcheetah, hopper and walker2d need '.[mujoco]'. Without --levels, sets are made where a policy is.
Each set is FOLDER/NAME-LEVEL, and holds the mean returns of the random and the expert policy as references for
normalised scores, which are measured in 100 episodes each. `medium` is the first policy that gets a third of the way
from the random return to the expert's. Where nobody has trained an expert yet, sets hold no references, and
`medium` is the last policy of its run (`last` in NAME.json). A set has another name until it is complete. The sum that is printed with it is
that of its rows (`rlrun data` shows it too): on one kind of machine, a set that is made again has the same one, wherever
and whenever it is made."""

from __future__ import annotations

import argparse
import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from rlrun.core.checkpoint import write_atomically
from rlrun.core.errors import UserError
from rlrun.core.schedule import Clock
from rlrun.datasets.content import ContentSum
from rlrun.datasets.parquet import ParquetSource
from rlrun.datasets.parquet_writer import set_references
from rlrun.runtime.record import Wish, record
from rlrun.runtime.trained import Trained

ROOT = Path(__file__).resolve().parents[2]
POLICIES = ROOT / "tuned" / "offline"
LEVELS = ("random", "medium", "medium_replay", "expert")
ALL = (*LEVELS, "replay")
THIRD = 1.0 / 3.0  # of the way from the random return to the expert's
REFERENCE_EPISODES = 100


def described(name: str) -> dict[str, Any]:
    """What NAME.json says: the words of the command, and for each level its env steps and its return."""
    return json.loads((POLICIES / f"{name}.json").read_text())


def loaded(name: str, level: str) -> Trained:
    """A sampling policy of this repository, as rlrun.load() would return it."""
    from safetensors.torch import load_file

    from rlrun.cli import compose
    from rlrun.config.automatic import settled
    from rlrun.config.run import type_config
    from rlrun.config.types import plain
    from rlrun.models.model import Model
    from rlrun.runtime.fitting import make_spec

    facts = described(name)
    found: list[dict[str, Any]] = []
    compose(facts["words"], lambda cfg, choices: found.append(plain(cfg)) or 0)
    config = type_config(settled(found[0])[0])
    spec = make_spec(config, config.algorithm.needs(config.algo))
    policy = config.algorithm.make_policy(spec, Model(config.run.model), config.algo)
    # Random actions need no weights.
    if level != "random":
        policy.load_state_dict(load_file(str(POLICIES / f"{name}-{level}.safetensors")))
    policy.requires_grad_(False)
    steps = 0 if level == "random" else int(facts["levels"][level]["env_steps"])
    return Trained(POLICIES, config, spec, policy, Clock(steps, 0))


def last_level(name: str) -> str:
    """The level of the policy at the end of a run: expert, or medium where no expert has been trained."""
    return described(name).get("last", "expert")


def can_make(name: str, level: str, train: bool = False) -> bool:
    """Whether a set can be made: by random actions, or by a policy that is there or will be trained."""
    policy = {"medium_replay": "medium", "replay": "expert"}.get(level, level)
    if train:
        return policy != "expert" or last_level(name) == "expert"
    return policy == "random" or policy in described(name)["levels"]


def sampled(name: str, level: str, folder: Path, rows: int, command: str, seed: int = 0) -> dict[str, Any]:
    """Records a set. Policies are sampled, as D4RL's are."""
    way: Any = "random" if level == "random" else "explore"
    return record(loaded(name, level), folder, Wish(None, rows), way, seed, 8, command)


@functools.cache
def reference(name: str, level: str) -> float:
    """The mean return of REFERENCE_EPISODES episodes: random, or the expert's greedy ones."""
    with tempfile.TemporaryDirectory() as made:
        way: Any = "random" if level == "random" else "greedy"
        wish = Wish(REFERENCE_EPISODES, None)
        return record(loaded(name, level), Path(made) / "set", wish, way, 1000, 8, "")["return_mean"]


def train(name: str, folder: Path) -> None:
    """Trains a policy anew, keeps the expert and the medium one, and records the run up to the medium one. That takes a
    second run where the medium policy is only known at the end of the first."""
    from safetensors.torch import save_file

    facts = described(name)
    with tempfile.TemporaryDirectory() as made:
        run = Path(made) / "run"
        every = f"checkpoint.every={facts['checkpoint_every']}"
        words = [*facts["words"], every, "checkpoint.keep=1000", "checkpoint.every_sec=null", "logger=[]"]
        if last_level(name) == "medium":
            words += ["resources=debug", f"record={folder}"]
        command = [sys.executable, "-m", "rlrun", "train", *words, f"run_dir={run}"]
        subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        steps = sorted(int(path.name) for path in (run / "checkpoints").glob("[0-9]*"))
        from rlrun.runtime.trained import load

        def played(at: int) -> float:
            """The mean return of sampled actions, which data sets are made of."""
            with tempfile.TemporaryDirectory() as other:
                wish = Wish(20, None)
                return record(load(run, str(at)), Path(other) / "set", wish, "explore", 2000, 8, "")["return_mean"]

        kept = {last_level(name): steps[-1]}
        if "medium" not in kept:
            random, best = reference(name, "random"), played(steps[-1])
            wanted = random + THIRD * (best - random)
            kept = {"medium": next(at for at in steps if played(at) >= wanted), **kept}
        facts["levels"] = {}
        for level, at in kept.items():
            weights = load(run, str(at)).policy.state_dict()
            path = POLICIES / f"{name}-{level}.safetensors"
            save_file({key: value.contiguous() for key, value in weights.items()}, str(path))
            assert path.stat().st_size < 1_000_000, f"{path} is larger than a megabyte"
            facts["levels"][level] = {"env_steps": at, "sampled_return": played(at)}
        write_atomically(POLICIES / f"{name}.json", json.dumps(facts, indent=1) + "\n")
    if last_level(name) != "medium":
        replay(name, folder, "medium")


def replay(name: str, folder: Path, level: str) -> None:
    """Records a run from its beginning to the env steps of a policy."""
    facts = described(name)
    steps = facts["levels"][level]["env_steps"]
    with tempfile.TemporaryDirectory() as made:
        words = [*facts["words"], "resources=debug", f"env_steps={steps}", "logger=[]", f"record={folder}"]
        words.append(f"run_dir={Path(made) / 'run'}")
        command = [sys.executable, "-m", "rlrun", "train", *words]
        subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})


def content(folder: Path) -> str:
    """The sum of a set's rows, in words."""
    source = ParquetSource(folder)
    made = ContentSum(source.facts)
    for piece in range(source.pieces()):
        for one in source.read(piece):
            made.add(one)
    return f"has {source.most_rows:,} rows, whose sha256 sum is {made.hex()}"


def main() -> int:
    known = sorted(path.stem for path in POLICIES.glob("*.json"))
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("names", nargs="*", default=[name for name in known if "extra" not in described(name)])
    parser.add_argument("--folder", type=Path, default=Path("data"))
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--levels", help=f"of {', '.join(ALL)}")
    parser.add_argument("--train", action="store_true")
    said = parser.parse_args()
    levels = said.levels.split(",") if said.levels else list(LEVELS)
    unknown = set(said.names) - set(known) | set(levels) - set(ALL)
    if unknown:
        parser.error(f"{', '.join(sorted(unknown))}: there are {', '.join(known)}, and the levels {', '.join(ALL)}")
    wanted = {name: [level for level in levels if can_make(name, level, said.train)] for name in said.names}
    missing = [f"{name}-{level}" for name in said.names for level in levels if level not in wanted[name]]
    if missing and said.levels:
        parser.error(f"nobody has trained a policy for {', '.join(missing)} yet")
    torch.set_num_threads(1)
    for name in said.names:
        if said.train:
            train(name, said.folder / f"{name}-medium_replay")
        for level in wanted[name]:
            folder = said.folder / f"{name}-{level}"
            if folder.exists() and not (said.train and level == "medium_replay"):
                print(f"{folder} is there already")
                continue
            made = folder.with_name(f".{folder.name}-unfinished")
            shutil.rmtree(made, ignore_errors=True)
            if level == "replay":
                replay(name, made, "expert")
            elif level != "medium_replay":
                sampled(name, level, made, said.rows, f"scripts/make_offline_data {name} --rows {said.rows}")
            elif said.train:
                folder.rename(made)  # train() has recorded it
            else:
                replay(name, made, "medium")
            if can_make(name, "expert"):
                set_references(made, reference(name, "random"), reference(name, "expert"))
            made.rename(folder)
            print(f"{folder} {content(folder)}", flush=True)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UserError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
