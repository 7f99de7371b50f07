"""The throughput of every algorithm, each measured by `rlrun benchmark throughput` in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rlrun.config.paths import options
from rlrun.core.errors import UserError, closest
from rlrun.experiments.view import text_table
from rlrun.runtime.rundir import command_line, hardware, versions

SMALL = "env=CartPole-v1"
# Where CartPole does not fit, or where an algorithm learns something else than to balance it.
OTHERS = {
    "alphazero": "env=ConnectFour-v0",
    "apex_ddpg": "env=Pendulum-v1",
    "ddpg": "env=Pendulum-v1",
    "dreamer": "tuned=dreamer/cartpole_swingup",
    "iql": "env=TwoStepGame-v0",
    "lin_ts": "tuned=lin_ts/simple_bandit",
    "lin_ucb": "tuned=lin_ucb/simple_bandit",
    "maddpg": "env=simple_spread_v3",
    "maml": "tuned=maml/cartpole_mass",
    "mbmpo": "tuned=mbmpo/cartpole",
    "multi": "env=simple_spread_v3",
    "neural_linear": "tuned=neural_linear/wheel",
    "qmix": "env=TwoStepGame-v0",
    "r2d2": "env=StatelessCartPole-v0",
    "sac": "env=Pendulum-v1",
    "self_play": "env=connect_four_v3",
    "slateq": "tuned=slateq/interest_evolution",
    "td3": "env=Pendulum-v1",
    "tqc": "env=Pendulum-v1",
    "vdn": "env=TwoStepGame-v0",
}
# The environments whose random play the algorithms that need data learn from.
DATA = {
    "bc": "CartPole-v1",
    "cql": "Pendulum-v1",
    "crr": "Pendulum-v1",
    "discrete_cql": "CartPole-v1",
    "implicit_q": "Pendulum-v1",
    "marwil": "CartPole-v1",
    "td3_bc": "Pendulum-v1",
}
DATA_ROWS = 20_000


def words_of(algo: str, given: Sequence[str], folder: Path) -> list[str]:
    """The words with which an algorithm is measured. folder: where the data sets are, by the environment's name."""
    own = any(word.startswith(("env=", "tuned=", "data.path=")) for word in given)
    if own:
        return [f"algo={algo}", *given]
    if algo in DATA:
        return [f"algo={algo}", f"env={DATA[algo]}", f"data.path={folder / DATA[algo]}", *given]
    chosen = OTHERS.get(algo, SMALL)
    return [*([] if chosen.startswith("tuned=") else [f"algo={algo}"]), chosen, *given]


def measure_all(words: Sequence[str], seconds: float, keep: Callable[[dict[str, Any]], None]) -> None:
    """Measures every algorithm, or those of algo=NAME,NAME, with the options `words`, and prints a line for each.

    keep: is called after each algorithm, so that little is lost where the rest cannot be measured, with {results:
    {algo: what throughput returns, or {refused: why}}, hardware, versions, command}."""
    known = options("algo")
    chosen = [name for word in words if word.startswith("algo=") for name in word[5:].split(",")]
    for name in chosen:
        if name not in known:
            raise UserError(f"There is no algorithm {name!r}.{closest(name, known)} (rlrun list algos)")
    given = [word for word in words if not word.startswith("algo=")]
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        for algo in chosen or known:
            asked = words_of(algo, given, folder)
            print(f"{algo}: {' '.join(word for word in asked if not word.startswith('data.path='))}", flush=True)
            refused = _recorded(algo, asked, folder)
            results[algo] = {"refused": refused} if refused else _measured(asked, seconds, folder / "result.json")
            print(f"  {_line(results[algo])}", flush=True)
            keep({"results": results, "hardware": hardware(), "versions": versions(), "command": command_line()})
    print(table(results))


def _rlrun(*words: str) -> str | None:
    """Runs a command, which ends when this process does, and returns why it failed, or None."""
    done = subprocess.run([sys.executable, "-m", "rlrun.experiments.job", *words], capture_output=True, text=True)
    if done.returncode == 0:
        return None
    # Sentences may name commands with the folder of this installation, which a table that others read should not.
    here = f"{Path(sys.executable).parent}/"
    said = [line.replace(here, "") for line in (done.stderr + done.stdout).splitlines() if line.startswith("rlrun: ")]
    return said[-1].removeprefix("rlrun: ") if said else f"it ended with exit code {done.returncode}"


def _recorded(algo: str, asked: Sequence[str], folder: Path) -> str | None:
    """Records the data set that an algorithm is measured with, if it needs one of ours; returns why it could not."""
    path = folder / DATA.get(algo, "")
    if f"data.path={path}" not in asked or path.exists():
        return None
    return _rlrun("train", "algo=a2c", f"env={DATA[algo]}", f"env_steps={DATA_ROWS}", "logger=[]", "resources=debug",
                  f"record={path}", f"run_dir={path}-run")  # fmt: skip


def _measured(asked: Sequence[str], seconds: float, file: Path) -> dict[str, Any]:
    refused = _rlrun("benchmark", "throughput", *asked, f"seconds={seconds:g}", "--json", str(file))
    if refused:
        return {"refused": refused}
    result: dict[str, Any] = json.loads(file.read_text())
    del result["command"]  # it names the folder of this measurement
    return {**result, "words": [word for word in asked if not word.startswith("data.path=")]}


def _line(result: dict[str, Any]) -> str:
    if "refused" in result:
        return f"not measured: {result['refused']}"
    return f"{result['reached']:,.0f} of {result['bound']:,.0f} env steps/s, {result['ratio']:.2f} of the bound"


def rows_of(results: dict[str, Any]) -> list[tuple[str, ...]]:
    """A row for each algorithm that was measured: its name, the environment, env steps/s reached and of the bound,
    their ratio, updates/s, and the parts alone."""
    rows: list[tuple[str, ...]] = []
    for algo, one in results.items():
        if "refused" not in one:
            parts = ", ".join(f"{name} {rate:,.0f}" for name, rate in one["parts"].items())
            speed = (f"{one['reached']:,.0f}", f"{one['bound']:,.0f}", f"{one['ratio']:.2f}")
            rows.append((algo, one["env"], *speed, f"{one['updates']['reached']:.3g}", parts))
    return rows


HEAD = ("algorithm", "environment", "env steps/s", "bound", "ratio", "updates/s", "parts alone, env steps/s")


def table(results: dict[str, Any]) -> str:
    """The table as text, with the algorithms that were not measured below it."""
    left = [f"{algo} was not measured: {one['refused']}" for algo, one in results.items() if "refused" in one]
    return "\n".join(["", text_table(rows_of(results), HEAD), *left])
