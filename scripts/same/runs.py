"""scripts/same_numbers BASE [HEAD] [--only WORD ...] [--list] [--keep DIR]

Trains every algorithm for a moment in two versions of rlrun on this machine and compares what they computed to the bit:
weights, optimiser states, random streams, replayed rows, counters and every logged metric. Then HEAD resumes a run that
BASE has made half of, and must end where BASE's whole run ended. It prints one line for each case, and exits with 1 if
any case differs.

BASE and HEAD are git commits. Without HEAD the working tree is compared. --only keeps the cases whose name contains one
of the words, --list prints the cases. --keep keeps all runs in this directory, where those of the same BASE are used again. The tiny options of each algorithm are
those of HEAD's tests/small/<algo>.yaml.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
VERSION_OF_TIME = (
    "time/",
    "time_sec",
    "sample/env_steps_per_sec",
    "sample/queued_fragments",
)  # these measure the machine

STEPS = {"es": 1600, "ars": 1600}  # env steps of a whole run; the others take 200
LSTM = ["model=lstm", "model.memory.size=4"]
GTRXL = ["model=gtrxl", "model.memory.size=4", "model.memory.length=3", "model.memory.layers=2"]
# name: (algorithm, options beside the tiny ones, whether it can be resumed exactly)
VARIANTS: dict[str, tuple[str, list[str], bool]] = {
    "impala every space": ("impala", ["env=rlrun/EverySpace-v0", "model.observation_filter=mean_std"], True),
    "impala image lstm": ("impala", ["env=rlrun/EverySpace-v0", "++env.kwargs.image=true", *LSTM], True),
    "impala gtrxl": ("impala", GTRXL, True),
    "impala masked": ("impala", ["env=rlrun/Masked-v0"], True),
    "impala fragments used again": (
        "impala",
        ["runner.num_sgd_iter=2", "runner.minibatch_buffer_size=2"],
        True,
    ),
    "impala value_lr": ("impala", ["algo.value_lr=1e-3", "model.share_value=false", "algo.loss_reduction=mean"], True),
    "impala runner=on_policy": ("impala", ["runner=on_policy"], True),
    "ppo lstm": ("ppo", LSTM, True),
    "ppo gru, two trunks": ("ppo", ["model=gru", "model.memory.size=4", "model.share_value=false"], True),
    "ppo gtrxl": ("ppo", GTRXL, True),
    "ppo filter, box": ("ppo", ["env=Pendulum-v1", "model.observation_filter=mean_std"], True),
    "ppo every option": (
        "ppo",
        [
            "algo.kl_coef=0.1",
            "algo.normalize_reward=true",
            "algo.normalize_value=true",
            "algo.normalize_advantage=minibatch",
            "algo.value_clip=0.2",
            "algo.reward_clip=none",
            "algo.lr_kl_target=0.01",
        ],
        True,
    ),
    "ppo complete episodes": ("ppo", ["runner.complete_episodes=true"], True),
    "ppo autoregressive": ("ppo", ["env=rlrun/EverySpace-v0", "model.autoregressive=true"], True),
    "ppo evaluation": ("ppo", ["eval.every=100", "eval.episodes=3"], True),
    "appo every option": ("appo", ["algo.kl_coef=0.1", "algo.target_update_interval=2", *LSTM], True),
    "appo gae": ("appo", ["algo.vtrace=false", "env=Pendulum-v1"], True),
    "a2c microbatches": ("a2c", ["algo.microbatch_size=10", "algo.normalize_advantage=true"], True),
    "pg baseline": ("pg", ["algo.baseline=true", "algo.normalize_advantage=true"], True),
    "dqn prioritized": ("dqn", ["replay=prioritized", "algo.input_priorities=true", "algo.n_step=[2,3]"], True),
    "dqn noisy, masked": ("dqn", ["env=rlrun/Masked-v0", "algo.head.noisy=true", "algo.exploration.epsilon=0"], True),
    "dqn parameter noise": ("dqn", ["algo.exploration.kind=parameter_noise"], True),
    "dqn soft_q": ("dqn", ["algo.exploration.kind=soft_q", "algo.exploration.epsilon_min=0.01"], True),
    "dqn filter, plain": (
        "dqn",
        ["model.observation_filter=mean_std", "algo.double=false", "algo.head.dueling=false"],
        True,
    ),
    "c51 noisy": ("c51", ["algo.head.noisy=true", "replay=prioritized"], True),
    "rainbow noisy": ("rainbow", ["algo.head.noisy=true"], True),
    "iqn noisy": ("iqn", ["algo.head.noisy=true"], True),
    "ddpg parameter noise": ("ddpg", ["algo.exploration.kind=parameter_noise"], True),
    "ddpg ou": ("ddpg", ["algo.exploration.kind=ou", "algo.l2=0.01"], True),
    "ddpg prioritized": ("ddpg", ["replay=prioritized", "algo.input_priorities=true"], True),
    "td3 gaussian, filter": (
        "td3",
        ["algo.exploration.kind=gaussian", "model.observation_filter=mean_std", "algo.random_steps=50"],
        True,
    ),
    "sac choices": ("sac", ["env=CartPole-v1"], True),
    "sac beta": ("sac", ["env=Pendulum-v1", "model.action_distribution=beta", "algo.l2=0.01"], True),
    "tqc prioritized": ("tqc", ["env=Pendulum-v1", "replay=prioritized"], True),
    "icm a2c": ("icm", ["algo@algo.inner=a2c"], True),
    "apex qr_dqn": ("apex", ["algo@algo.inner=qr_dqn"], True),
    "ppo inference=local": ("ppo", ["resources.inference=local", "resources.num_samplers=2"], False),
    "ppo num_learners=2": (
        "ppo",
        ["resources.num_learners=2", "resources.num_samplers=2", "algo.normalize_reward=true", "algo.reward_clip=none"],
        False,
    ),
    "pg num_learners=2": (
        "pg",
        ["resources.num_learners=2", "resources.num_samplers=2", "algo.baseline=true", "algo.normalize_advantage=true"],
        False,
    ),
    "ddppo num_learners=2": (
        "ddppo",
        ["resources.num_learners=2", "resources.num_samplers=auto", "algo.cut_share=1"],
        False,
    ),
    "pqn num_learners=2": ("pqn", ["resources.num_learners=2", "resources.num_samplers=2"], False),
    "dqn num_learners=2": (
        "dqn",
        ["resources.num_learners=2", "resources.num_samplers=2", "replay=prioritized"],
        False,
    ),
    "iqn num_learners=2": ("iqn", ["resources.num_learners=2", "resources.num_samplers=2"], False),
    "td3 num_learners=2": ("td3", ["resources.num_learners=2", "resources.num_samplers=2"], False),
    "sac num_learners=2": ("sac", ["resources.num_learners=2", "resources.num_samplers=2", "algo.l2=0.01"], False),
    "tqc num_learners=2": ("tqc", ["resources.num_learners=2", "resources.num_samplers=2"], False),
    "r2d2 num_learners=2": ("r2d2", ["resources.num_learners=2", "resources.num_samplers=2"], False),
    "icm num_learners=2": ("icm", ["resources.num_learners=2", "resources.num_samplers=2"], False),
}
# Where an algorithm inside is exchanged, these of its tiny options do not fit it.
NOT_INSIDE = {"icm a2c": ("algo.inner.minibatch_size", "algo.inner.num_epochs", "algo.inner.sequence_length")}
BOX_ONLY = ("ddpg", "td3", "sac", "tqc", "td3_bc", "cql", "apex_ddpg")
# Its learning rate falls over all env steps, of which a run that ends in the middle has fewer.
CONSTANT = {"implicit_q": ["algo.actor_lr=3e-4"]}


def cases(small: Path) -> dict[str, dict[str, Any]]:
    """{name: {words, exact}}; `small` is HEAD's tests/small."""
    import yaml

    made = {}
    algorithms = {path.stem: yaml.safe_load(path.read_text())["tiny"] for path in sorted(small.glob("*.yaml"))}
    every = {algo: (algo, LSTM if algo == "r2d2" else [], True) for algo in algorithms} | VARIANTS
    for name, (algo, options, exact) in every.items():
        steps = STEPS.get(algo, 200)
        words = [
            f"algo={algo}",
            "resources=debug",
            "logger=[]",
            f"env_steps={steps}",
            f"checkpoint.every={steps // 2}",
            "log_every_sec=1e-9",
        ]
        if not any(word.startswith("env=") for word in options):
            words.append(f"env={'Pendulum-v1' if algo in BOX_ONLY else 'CartPole-v1'}")
        left = NOT_INSIDE.get(name, ())
        if algo != "r2d2" and not any(memory in word for word in options for memory in ("lstm", "gru", "gtrxl")):
            left += ("algo.sequence_length", "algo.inner.sequence_length")  # only for models with memory
        tiny = [word for word in algorithms[algo] if not word.startswith(left)]
        if any("learning_starts" in word for word in tiny):
            words.append("replay.checkpoint=true")
        words += [*tiny, *options, *CONSTANT.get(algo, [])]
        if not exact:
            words.append("resources.exact=false")
        made[name] = {"words": words, "exact": exact, "half": steps // 2}
    return made


# -- in a process of one version -------------------------------------------------------------------------------------


def drive(orders: list[dict[str, Any]]) -> None:
    """Runs rlrun's command line for every order, each in a fork of this process, which has imported everything once."""
    import rlrun.cli

    for module in ("rlrun.session", "rlrun.runtime.session"):  # where it was, and where it is
        try:
            __import__(module)
        except ModuleNotFoundError:
            continue
    for order in orders:
        started = time.monotonic()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
                os.dup2(log, 1)
                os.dup2(log, 2)
                sys.argv = ["rlrun", *order["words"]]
                rlrun.cli.main()
            except SystemExit as end:
                code = int(end.code or 0)
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print(
            json.dumps({"name": order["name"], "code": code, "sec": round(time.monotonic() - started, 2)}), flush=True
        )


def driven(checkout: Path, orders: list[dict[str, Any]], folder: Path) -> subprocess.Popen:
    """Starts drive() in this version of rlrun."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "orders.json"
    file.write_text(json.dumps(orders))
    return subprocess.Popen(
        [sys.executable, str(Path(__file__).resolve()), "--drive", str(file)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(checkout)},
        stdout=subprocess.PIPE,
        text=True,
    )


def results(process: subprocess.Popen, codes: dict[str, int], known: Path | None = None) -> None:
    """Adds {name: exit code} to codes, and BASE's to the file `known` at once; waits for the end."""
    assert process.stdout is not None
    for said in map(json.loads, process.stdout):
        codes[said["name"]] = said["code"]
        if known is not None:
            known.write_text(
                json.dumps({name: code for name, code in codes.items() if name.startswith(("base/", "half/"))})
            )
    if process.wait() != 0:
        raise SystemExit("same_numbers: the process that makes the runs failed; its message is above")
    return codes


# -- comparing ---------------------------------------------------------------------------------------------------------


def numbers(run: Path, after: int = 0) -> dict[str, Any]:
    """{name: bytes or value} of everything that the run computed, except times; of checkpoints and logged rows after
    so many env steps."""
    import torch

    found: dict[str, Any] = {}

    def note(path: str, value: Any) -> None:
        if isinstance(value, torch.Tensor):
            found[path] = (
                str(value.dtype),
                tuple(value.shape),
                value.contiguous().view(-1).view(torch.uint8).numpy().tobytes(),
            )
        elif isinstance(value, dict):
            for name, part in value.items():
                note(f"{path}/{name}", part)
        elif isinstance(value, list | tuple):
            for number, part in enumerate(value):
                note(f"{path}/{number}", part)
        else:
            found[path] = repr(value)

    for folder in sorted(path for path in (run / "checkpoints").glob("[0-9]*") if int(path.name) > after):
        for file in sorted(folder.iterdir()):
            name = f"{folder.name}/{file.name}"
            if file.suffix == ".pt":
                note(name, torch.load(file, weights_only=True, map_location="cpu"))
            elif file.suffix == ".bin":
                found[name] = file.read_bytes()
            elif file.name == "run.json":
                note(name, {key: value for key, value in json.loads(file.read_text()).items() if key != "wall_sec"})
    for line in (run / "progress.jsonl").read_text().splitlines():
        row = json.loads(line)
        if row["env_steps"] > after:
            values = {key: value for key, value in row.items() if not key.startswith(VERSION_OF_TIME)}
            note(f"progress at {row['env_steps']} env steps and {row['updates']} updates", values)
    return found


def difference(base: Path, head: Path, after: int = 0) -> str | None:
    """None where both runs computed the same, else a sentence."""
    mine, theirs = numbers(base, after), numbers(head, after)
    if not any("algorithm.pt" in name for name in mine):
        return "BASE saved no algorithm"
    last = max((base / "checkpoints").glob("[0-9]*"))
    if json.loads((last / "run.json").read_text())["updates"] == 0:
        return "BASE made no update, so that nothing was compared"
    missing, more = sorted(mine.keys() - theirs.keys()), sorted(theirs.keys() - mine.keys())
    if missing or more:
        return f"HEAD lacks {', '.join(missing[:3]) or 'nothing'} and has {', '.join(more[:3]) or 'nothing'} beside"
    unequal = [name for name, value in mine.items() if theirs[name] != value]
    return f"{len(unequal)} of {len(mine)} values differ, first {', '.join(unequal[:3])}" if unequal else None


def last_line(run: Path) -> str:
    log = Path(f"{run}.log")
    lines = log.read_text().strip().splitlines() if log.is_file() else []
    return lines[-1] if lines else "it printed nothing"


def checked_out(commit: str, place: Path) -> Path:
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    archive = subprocess.Popen(["git", "-C", str(ROOT), "archive", commit], stdout=subprocess.PIPE)
    subprocess.run(["tar", "-x", "-C", str(place)], stdin=archive.stdout, check=True)
    if archive.wait() != 0:
        raise SystemExit(f"same_numbers: {commit} is not a commit of this repository")
    return place


def main() -> int:
    if sys.argv[1:2] == ["--drive"]:
        drive(json.loads(Path(sys.argv[2]).read_text()))
        return 0
    parser = argparse.ArgumentParser(
        prog="scripts/same_numbers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("base", nargs="?", help="a commit")
    parser.add_argument("head", nargs="?", help="a commit; without it the working tree")
    parser.add_argument("--only", action="append", default=[], metavar="WORD")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--keep", type=Path, metavar="DIR")
    asked = parser.parse_args()
    if not asked.base and not asked.list:
        parser.error("say which commit to compare with")
    with tempfile.TemporaryDirectory(prefix="same-numbers-") as temporary:
        place = asked.keep.resolve() if asked.keep else Path(temporary)
        place.mkdir(parents=True, exist_ok=True)
        head = checked_out(asked.head, place / "head-tree") if asked.head else ROOT
        chosen = cases(head / "tests" / "small")
        if asked.only:
            chosen = {name: case for name, case in chosen.items() if any(word in name for word in asked.only)}
        if asked.list or not chosen:
            print(
                "\n".join(f"{name}: rlrun train {' '.join(case['words'])}" for name, case in chosen.items())
                or "no case has such a name"
            )
            return 0 if chosen else 2
        found = subprocess.run(
            ["git", "-C", str(ROOT), "rev-parse", "--verify", "-q", f"{asked.base}^{{commit}}"],
            capture_output=True,
            text=True,
        )
        if found.returncode:
            parser.error(f"{asked.base} is not a commit of this repository")
        return compared(found.stdout.strip(), head, chosen, place)


def order(name: str, run: Path, words: list[str]) -> dict[str, Any]:
    run.parent.mkdir(parents=True, exist_ok=True)
    return {"name": name, "words": words, "log": f"{run}.log"}


def compared(base: str, head: Path, chosen: dict[str, dict[str, Any]], place: Path) -> int:
    """Makes all runs, prints a line for each case; 1 where any differs."""
    started = time.monotonic()

    def run(side: str, name: str) -> Path:
        return place / side / re.sub(r"\W+", "-", name)

    def train(side: str, name: str, *more: str) -> dict[str, Any]:
        place = run(side, name)
        shutil.rmtree(place, ignore_errors=True)
        return order(f"{side}/{name}", place, ["train", *chosen[name]["words"], *more, f"run_dir={place}"])

    known = place / f"{base}.json"  # exit codes of BASE's runs that are there already
    codes: dict[str, int] = json.loads(known.read_text()) if known.is_file() else {}
    orders = [train("base", name) for name in chosen if f"base/{name}" not in codes]
    orders += [
        train("half", name, f"env_steps={case['half']}")
        for name, case in chosen.items()
        if case["exact"] and f"half/{name}" not in codes
    ]
    heads = driven(head, [train("head", name) for name in chosen], place / "head")
    if orders:
        results(driven(checked_out(base, place / "base-tree"), orders, place / "base"), codes, known)
    results(heads, codes)
    exact = [
        name for name, case in chosen.items() if case["exact"] and codes[f"base/{name}"] == codes[f"half/{name}"] == 0
    ]
    orders = []
    for name in exact:
        shutil.rmtree(run("resumed", name), ignore_errors=True)
        shutil.copytree(run("half", name), run("resumed", name))
        orders.append(
            order(
                f"resumed/{name}",
                run("resumed", name),
                ["resume", str(run("resumed", name)), f"env_steps={2 * chosen[name]['half']}"],
            )
        )
    if orders:
        results(driven(head, orders, place / "resumed"), codes)
    failed = 0
    for name, case in chosen.items():
        said = [
            f"{side.upper()} failed: {last_line(run(side, name))}"
            for side in ("base", "half", "head")
            if codes.get(f"{side}/{name}", 0) != 0
        ]
        if not said:
            unequal = difference(run("base", name), run("head", name))
            said += [unequal] if unequal else []
        if not said and case["exact"]:
            if codes[f"resumed/{name}"] != 0:
                said.append(f"HEAD cannot resume it: {last_line(run('resumed', name))}")
            else:
                unequal = difference(run("base", name), run("resumed", name), case["half"])
                said += [f"resumed in the middle: {unequal}"] if unequal else []
        failed += bool(said)
        print(
            f"{'DIFFERENT' if said else 'equal    '}  {name}{': ' + '; '.join(said) if said else '' if case['exact'] else ' (not resumed)'}"
        )
    print(f"{len(chosen) - failed} of {len(chosen)} cases are equal, {time.monotonic() - started:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
