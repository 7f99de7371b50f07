"""rlrun benchmark growth [algo=impala] [env=Pong] [any option of rlrun train] [--seconds 8]
                       [--axes samplers,learners,envs,fragment,model] [--json FILE] [--plot FILE.png]

Measures how training speed grows along five axes: the number of samplers (1 to twice the cores), the number of learners
that share every update (1 to the cores), the number of environments that a sampler steps together (1 to 256), the rows
in a fragment, and the size of the model. All other options stay as they are, except that the train batch is adjusted to
fit, and that there are as many samplers for each learner. Each point is a run of `benchmark throughput`
in a process of its own. The knee of an axis is the smallest value that gives 90% of the highest speed; the output also
names what limits the speed there."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rlrun.bench.arguments import check_results_file, check_seconds, write_results
from rlrun.cli import compose, take_flags
from rlrun.core.errors import UserError, closest
from rlrun.experiments.view import text_table

FLAGS = {"--axes": str, "--seconds": float, "--json": str, "--plot": str}
NEAR = 0.9  # from this share of the highest speed on, more is not worth having
IDLE = 0.1  # if the learner waits for more than this share of its time, the samplers limit the speed
MODELS = {
    True: (["env.size=42"], ["model=nature_cnn"], ["model=impala_resnet"]),
    False: tuple([f"model.hidden=[{n},{n}]"] for n in (32, 64, 256, 512, 1024)),
}


class Point(NamedTuple):
    """One setting on an axis."""

    label: str
    words: list[str]  # options in addition to the run's own


class Setting(NamedTuple):
    """The settings of a planned run from which the axes are made. Each point changes one of them."""

    rows: int  # rows in a fragment
    columns: int  # columns in a train batch; with a replay, the number of environments
    minibatch: int  # the rows in a train batch are a multiple of this
    replay: bool
    image: bool
    cores: int
    inner: bool  # True where algo.inner, not algo, has the options for rows and columns
    inference: str
    learners: int
    samplers: int  # total over all learners
    groups: int  # groups of environments that a sampler steps in turn
    every_process_learns: bool


def doubling(first: int, last: int) -> list[int]:
    """first, doubled until it reaches last, and last itself."""
    found = [first]
    while found[-1] * 2 < last:
        found.append(found[-1] * 2)
    return [*found, last] if last > found[-1] else found


def axes(setting: Setting) -> dict[str, list[Point]]:
    """Every axis with its points."""
    algo = "algo.inner." if setting.inner else "algo."
    producers = setting.samplers * setting.groups

    def fitting(rows: int, columns: int, divisor: int) -> list[str]:
        """Options for at least so many columns: a multiple of divisor, and enough that rows fill whole minibatches."""
        columns = -(-columns // divisor) * divisor
        if setting.replay:
            return [f"{algo}num_envs={columns}"]
        while rows * columns % setting.minibatch:
            columns += divisor
        return [f"{algo}fragment_length={rows}", f"{algo}batch_size={rows * columns}"]

    def pinned(samplers: int) -> list[str]:
        if setting.every_process_learns:
            return [f"resources.num_learners={samplers}"]
        learners = setting.learners if samplers % setting.learners == 0 else 1
        words = [f"resources.inference={setting.inference}", f"resources.num_learners={learners}"]
        return words if setting.inference == "serial" else [*words, f"resources.num_samplers={samplers}"]

    def apart(label: int, samplers: int, learners: int) -> Point:
        """A point with so many samplers and learners, each in a process of its own."""
        inference = "local" if setting.inference == "serial" else setting.inference
        words = [f"resources.inference={inference}", f"resources.num_learners={learners}"]
        words += [f"resources.num_samplers={samplers}"]
        fits = fitting(setting.rows, setting.columns, samplers * max(1, setting.groups))
        return Point(str(label), [*words, *fits])

    as_it_is = pinned(setting.samplers)
    by_learners: dict[str, list[Point]] = {}
    if setting.every_process_learns:  # samplers are learners
        counts = doubling(1, setting.cores)
        by_samplers = [Point(str(n), [*pinned(n), *fitting(setting.rows, setting.columns, n)]) for n in counts]
    else:
        counts = sorted({*doubling(1, 2 * setting.cores), setting.cores})
        by_samplers = [apart(n, n, setting.learners if n % setting.learners == 0 else 1) for n in counts]
        each = [(n, -(-setting.samplers // n) * n) for n in doubling(1, setting.cores)]
        by_learners["learners"] = [apart(n, samplers, n) for n, samplers in each]
    by_envs = [
        Point(
            str(n),
            [
                *as_it_is,
                f"resources.envs_per_sampler={n}",
                *fitting(setting.rows, n * producers if setting.replay else setting.columns, n * producers),
            ],
        )
        for n in doubling(1, 256)
    ]
    by_rows = []
    for rows in (5, 10, 20, 50, 100, 200):
        batch = round(setting.rows * setting.columns / rows)
        words = [f"{algo}fragment_length={rows}"] if setting.replay else fitting(rows, max(1, batch), producers)
        by_rows.append(Point(str(rows), [*as_it_is, *words]))
    by_model = [Point(" ".join(words), [*as_it_is, *words]) for words in MODELS[setting.image]]
    return {"samplers": by_samplers, **by_learners, "envs": by_envs, "fragment": by_rows, "model": by_model}


TITLES = {
    "samplers": "sampler processes",
    "learners": "learners",
    "envs": "environments per sampler",
    "fragment": "rows of a fragment",
    "model": "model",
}


def knee(rates: Sequence[float | None]) -> int | None:
    """Index of the first rate that is at least NEAR times the highest; None where no rate was measured."""
    known = [rate for rate in rates if rate is not None]
    return (
        next((place for place, rate in enumerate(rates) if rate is not None and rate >= NEAR * max(known)), None)
        if known
        else None
    )


def explained(result: dict[str, Any]) -> str:
    """What limits the speed of a run, as the words that follow "Knee at ...:"."""
    parts = {name: 1.0 / rate for name, rate in result["parts"].items() if rate}
    largest = max(parts, key=parts.__getitem__)
    share = parts[largest] / sum(parts.values())
    waits = result["learner_time"].get("wait", 0.0)
    busy = (
        f"{result['ratio']:.0%} of what {result['cores']} core{'s' * (result['cores'] > 1)} can do, of which {largest}"
        f" is {share:.0%}"
    )
    if result["resources"]["inference"] == "serial":
        return f"one process does all in turn; {busy}"
    if waits > IDLE:
        return f"the learner waits {waits:.0%} of its time for samplers; {busy}"
    return f"the learner never waits; {busy}"


def measured(words: Sequence[str], seconds: float) -> dict[str, Any] | str:
    """The result of `benchmark throughput`, or the reason why there is none."""
    with tempfile.TemporaryDirectory() as folder:
        told = Path(folder) / "told.json"
        command = [
            sys.executable,
            "-m",
            "rlrun.experiments.job",  # ends when this process does
            "benchmark",
            "throughput",
            *words,
            f"seconds={seconds:g}",
            "--json",
            str(told),
        ]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode == 0:
            return json.loads(told.read_text())
        said = (done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}").splitlines()[-1]
        return said.removeprefix("rlrun: ")


def setting_of(words: list[str]) -> Setting:
    """The settings that these options give. UserError for options that do not fit, before anything is measured."""
    found: list[Setting] = []

    def job(cfg: Any, choices: dict[str, Any]) -> int:
        from rlrun.commands.train import check_tuned
        from rlrun.config.automatic import settled
        from rlrun.config.run import type_config
        from rlrun.config.types import plain
        from rlrun.machine.machine import measured
        from rlrun.runtime.plan import plan

        values = plain(cfg)
        for note in check_tuned(choices, values):
            print(f"  {note}", flush=True)
        values, _ = settled(values)
        machine = measured()
        planned = plan(type_config(values), machine)
        if planned.needs.population is not None:
            raise UserError(
                f"algo={values['algo']['name']}: evolution plays whole episodes and has none of these axes; see"
                " resources.num_samplers"
            )
        replay = planned.needs.replay
        columns = planned.needs.columns if replay is None else replay.num_envs
        made, inner = planned.resources, "inner" in values["algo"]
        own = values["algo"]["inner"] if inner else values["algo"]
        minibatch = 1 if replay is not None else own.get("minibatch_size") or 1
        everyone = planned.needs.every_process_learns or not planned.lockstep
        found.append(
            Setting(
                rows=planned.fragment_rows,
                columns=columns,
                minibatch=minibatch,
                replay=replay is not None,
                image=planned.spec.image,
                cores=machine.cores,
                inner=inner,
                inference=made.inference,
                learners=made.num_learners,
                samplers=made.num_samplers,
                groups=made.groups,
                every_process_learns=everyone,
            )
        )
        return 0

    compose(words, job)
    return found[0]


def impossible(words: list[str]) -> str | None:
    """The reason why these options cannot be run, found before time is spent on them; None where they can."""
    try:
        setting_of(words)
    except UserError as error:
        return str(error)
    return None


def main(words: Sequence[str], measure: Callable[[Sequence[str], float], dict[str, Any] | str] = measured) -> int:
    if any(word in ("-h", "--help") for word in words):
        print(__doc__)
        return 0
    flags, rest = take_flags(list(words), FLAGS)
    seconds = 8.0 if flags["--seconds"] is None else flags["--seconds"]
    check_seconds(seconds, "--seconds")
    chosen = (flags["--axes"] or ",".join(TITLES)).split(",")
    for name in chosen:
        if name not in TITLES:
            raise UserError(
                f"--axes {name}: there is no such axis.{closest(name, TITLES)} There are {', '.join(TITLES)}."
            )
    for name, default in (("algo", "impala"), ("env", "Pong")):
        if not any(word.startswith((f"{name}=", "tuned=")) for word in rest):
            rest.append(f"{name}={default}")
    for flag in ("--json", "--plot"):
        if flags[flag] is not None:
            check_results_file(flags[flag], flag)
    if flags["--plot"] and Path(flags["--plot"]).suffix not in (".png", ".svg"):
        raise UserError(f"--plot {flags['--plot']}: the name must end with .png or .svg")
    found = axes(setting_of(rest))
    if "learners" not in found and "learners" in chosen:
        if flags["--axes"]:
            raise UserError("--axes learners: every process of this algorithm learns; --axes samplers shows its growth")
        chosen.remove("learners")
    results: dict[str, list[dict[str, Any]]] = {}
    for name in chosen:
        print(f"{TITLES[name]}:", flush=True)
        results[name] = []
        for point in found[name]:
            told = impossible([*rest, *point.words]) or measure([*rest, *point.words], seconds)
            row = {"label": point.label, "words": point.words} | (
                {"failed": told} if isinstance(told, str) else {"result": told}
            )
            results[name].append(row)
            said = told if isinstance(told, str) else f"{told['reached']:,.0f} env steps/s"
            print(f"  {point.label}: {said}", flush=True)
    for name in chosen:
        print("\n" + table(TITLES[name], results[name]), flush=True)
    if flags["--json"]:
        write_results({"command": ["rlrun", "benchmark", "growth", *words], "axes": results}, flags["--json"])
    if flags["--plot"]:
        from rlrun.bench import charts

        lines = [
            (TITLES[name], [(row["label"], row["result"]["reached"]) for row in results[name] if "result" in row])
            for name in chosen
        ]
        charts.save(charts.growth(lines, NEAR), flags["--plot"])
    return 0 if all(any("result" in row for row in rows) for rows in results.values()) else 1


def table(title: str, rows: Sequence[dict[str, Any]]) -> str:
    """The measurements along one axis as a text table, with a sentence about its knee."""
    rates = [row["result"]["reached"] if "result" in row else None for row in rows]
    place = None if title == TITLES["model"] else knee(rates)  # models have no order, so that they have no knee
    lines = []
    for index, row in enumerate(rows):
        if "result" not in row:
            lines.append([row["label"], "", "", "", "", row["failed"]])
            continue
        result = row["result"]
        lag, mark = result["policy_lag"] or 0.0, "knee" if index == place else ""
        lines.append(
            [
                row["label"],
                f"{result['reached']:,.0f}",
                f"{result['bound']:,.0f}",
                f"{result['memory_pss_mb']:,.0f}",
                f"{lag:.1f}",
                mark,
            ]
        )
    shown = text_table(lines, (title, "env steps/s", "bound", "memory, MB", "lag, updates", ""))
    return shown if place is None else f"{shown}\nKnee at {rows[place]['label']}: {explained(rows[place]['result'])}."
