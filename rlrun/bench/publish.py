"""Publishes tables from result files alone: as Markdown, HTML and PNG, and in TensorBoard and MLflow."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from rlrun.bench import charts, page
from rlrun.bench.recipes import changed
from rlrun.bench.results import Measured, key_of, measured, train_words
from rlrun.bench.stats import INTERVAL_RUNS, RANDOM_AND_HUMAN, human_normalised, iqm, stratified_bootstrap
from rlrun.bench.tables import Table, Wanted
from rlrun.commands.compare import commit
from rlrun.core.checkpoint import write_atomically
from rlrun.core.errors import UserError
from rlrun.loggers.console import duration, number

CLASSES = {
    "beaten": "beaten",
    "within spread": "within",
    "short": "short",
    "no game": "partial",
    "measured": "partial",
    "partial": "partial",
    "not run": "notrun",
}
MARKS = {
    "beaten": "beaten",
    "within spread": "within",
    "short": "short",
    "no game": "no game ended",
    "measured": "measured",
    "partial": "partial",
    "not run": "not run",
}
PROTOCOL_SHOWN = {
    "frame_skip": "frame skip",
    "sticky_actions": "sticky actions",
    "full_action_space": "all 18 actions",
    "noop_max": "no-ops fewer than",
    "life_loss_terminal": "a lost life is terminal in learning",
    "reward_clip": "reward in learning",
    "size": "pixels",
}
GAMES = 100  # whose mean return is a run's score
BEST = "best in a published table, any algorithm"


INTRODUCTION = (
    "Made by `rlrun benchmark reproduce-tables --only-render` from the JSON files below this folder. Cells with a",
    "result come first; those that have not been run are one list at the end. The verdicts mean:",
    "`beaten`: every seed is better than the published figure; `within`: the figure lies between the lowest and the",
    "highest seed; `short`: every seed is worse than the figure, or a seed never reached the return that ends the",
    "count of seconds; `partial`: only a part of the budget was run, which allows no comparison; `measured`: no",
    "figure was published. A higher return is better, and so are fewer seconds. The best score in a published table is",
    "that of algorithms that learn no model of the game. A curve can be higher: Rainbow's (Hessel et al. 2018) has",
    "about 20,000 on Qbert after 10M env steps.",
)


def spread(one: Measured) -> str:
    """The mean, the lowest and the highest score of a cell's seeds.

    It is "never" where no run reached the target, and says how many did where some have not. Where a run finished fewer
    than 100 games, it says how many.
    """
    timed = one.wanted.table.target_return is not None
    if not one.scores:
        return "" if not one.results else "never" if timed else "none"
    text = number(sum(one.scores) / len(one.scores))
    if len(one.scores) > 1:
        text += f" ({number(min(one.scores))} to {number(max(one.scores))})"
    fewest = min(result["episodes"] for result in one.results)
    if not timed and fewest < GAMES:
        text += f", the mean of {fewest} games" + (" or more" if len(one.results) > 1 else "")
    reached, seeds = len(one.scores), len(one.results)
    return text if reached == seeds else f"{reached} of {seeds} seeds: {text}"


def hardware(one: Measured) -> str:
    """The machines that made a cell's results, such as "2 x AMD EPYC, NVIDIA H100"."""
    seen = []
    machines = [s["hardware"] for result in one.results for s in result.get("sessions", [result])]
    for machine in machines:
        text = ", ".join([f"{machine['cores']} x {machine['cpu']}", *machine["gpus"]])
        if text not in seen:
            seen.append(text)
    return "; ".join(seen)


def mark(one: Measured) -> str:
    return f"partial: {one.budget:g} of the budget" if one.mark == "partial" else MARKS[one.mark]


def headings(table: Table) -> list[str]:
    paper = [table.paper] if table.paper else []
    return [
        "game",
        "algorithm",
        "RLlib, published",
        *paper,
        *([BEST] if table.best else []),
        "rlrun, measured",
        "verdict",
        "seeds",
        "env steps",
        "wall time",
        "machine",
    ]


def rows(table: Table, cells: Sequence[Measured]) -> list[list[str]]:
    made = []
    for one in cells:
        paper = [f"~{number(one.cell.paper)}" if one.cell.paper is not None else ""] if table.paper else []
        known = table.best.get(one.cell.game)
        best = [f"{number(known.score)} ({known.who})" if known else ""] if table.best else []
        steps = [result["env_steps"] for result in one.results]
        seconds = [result["wall_sec"] for result in one.results]
        made.append(
            [
                one.cell.game,
                one.cell.label,
                number(one.cell.published),
                *paper,
                *best,
                spread(one),
                mark(one),
                ", ".join(str(result["seed"]) for result in one.results),
                number(sum(steps) / len(steps)) if steps else "",
                duration(sum(seconds) / len(seconds)) if seconds else "",
                hardware(one),
            ]
        )
    return made


def protocol_line(cells: Sequence[Measured], table: Table) -> str:
    """A line about the protocol that every score of a table depends on."""
    from rlrun.bench.results import expected_protocol

    said = expected_protocol(cells[0].wanted)
    end = (
        f"after {said['ends_env_steps']:,.0f} env steps (decisions)"
        if said["ends_env_steps"]
        else f"after {said['ends_wall_sec']:,.0f} s of wall time"
    )
    words = {True: "yes", False: "no"}

    def shown(value: Any) -> Any:
        return words[value] if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else value

    listed = (f"{text}: {shown(said[name])}" for name, text in PROTOCOL_SHOWN.items() if name in said)
    parts = [said["score"], end, *listed]
    return "; ".join(parts) + f". Published on {table.hardware}, one run each, training games."


def plain_text(text: str) -> str:
    """Escapes what Markdown and HTML would read as more than text. Result files may come from anybody."""
    safe = escape(" ".join(text.split()), quote=False)
    return re.sub(r"([\\`*_\[\]|])", r"\\\1", safe)


def commands(cells: Sequence[Measured]) -> list[str]:
    """The commands that made the results, each listed once, with the commit of rlrun that they ran at."""
    return list(dict.fromkeys(command(one, result) for one in cells for result in one.results))


def command(one: Measured, result: Mapping[str, Any]) -> str:
    """The command that made a result, with a comment where its tuned file has other options today."""
    key = key_of(one.wanted, result["seed"], result["budget"])
    other = changed(result, train_words(one.wanted, key))
    said = [part.strip() for part in result["command"].split("  # ")]
    if result.get("git_commit"):
        said.append(f"at commit {commit(result['git_commit'])}")
    later = [one["git_commit"] for one in result.get("sessions", ()) if one["git_commit"] != result.get("git_commit")]
    if commits := [commit(name) for name in dict.fromkeys(later) if name]:
        said.append(f"resumed at commit {', '.join(commits)}")
    if result.get("settings_commit"):  # that of a run with local changes, which were committed later
        said.append(f"its settings are those of commit {commit(result['settings_commit'])}")
    if other:
        said.append(f"{', '.join(other)} {'has' if len(other) == 1 else 'have'} another value today")
    return said[0] + (f"  # {'; '.join(said[1:])}" if said[1:] else "")


def markdown(tables: Sequence[tuple[Table, Sequence[Measured]]]) -> str:
    lines = ["# RLlib's published tables", "", *INTRODUCTION, ""]
    for table, cells, all_cells in with_results(tables):
        lines += [f"## {table.title}", "", *lines_of(headings(table), rows(table, cells))]
        lines += ["", f"![{table.title}]({table.name}.png)", "", protocol_line(cells, table), ""]
        if table.note:
            lines += [plain_text(table.note), ""]
        summary = normalised(all_cells)
        if summary:
            lines += [summary, ""]
        made = commands(cells)
        if made:
            lines += ["Commands:", "", *(f"    {' '.join(command.split())}" for command in made), ""]
    waiting = without_results(tables)
    if waiting:
        lines += ["## Not run yet", "", *lines_of(WAITING, waiting)]
    return "\n".join(lines).rstrip() + "\n"


def with_results(
    tables: Sequence[tuple[Table, Sequence[Measured]]],
) -> list[tuple[Table, list[Measured], Sequence[Measured]]]:
    """The tables that have a result, each with its filled cells and with all of them."""
    filled = [(table, [one for one in cells if one.results], cells) for table, cells in tables]
    return [(table, cells, every) for table, cells, every in filled if cells]


WAITING = ("table", "game", "algorithm", "RLlib, published")


def without_results(tables: Sequence[tuple[Table, Sequence[Measured]]]) -> list[list[str]]:
    """A row of WAITING for every cell that has not been run."""
    return [
        [table.title, one.cell.game, one.cell.label, number(one.cell.published)]
        for table, cells in tables
        for one in cells
        if not one.results
    ]


def lines_of(names: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table in Markdown."""
    head = [f"| {' | '.join(names)} |", f"|{'|'.join(' --- ' for _ in names)}|"]
    return head + [f"| {' | '.join(map(plain_text, row))} |" for row in rows]


def normalised(cells: Sequence[Measured]) -> str:
    """A sentence with each algorithm's IQM of human-normalised scores; empty where none can be given.

    It needs results for the whole budget, with the same number of seeds for every game of the table.
    """
    told = []
    for label in dict.fromkeys(one.cell.label for one in cells):
        own = [one for one in cells if one.cell.label == label]
        counts = {len(one.scores) for one in own}
        complete = (
            len(own) > 1
            and counts != {0}
            and len(counts) == 1
            and all(one.budget == 1 and one.cell.game in RANDOM_AND_HUMAN for one in own)
        )
        if not complete or own[0].wanted.table.less_is_better or any(one.cell.published is None for one in own):
            continue
        scores = np.array([[human_normalised(one.cell.game, score) for score in one.scores] for one in own]).T
        interval = stratified_bootstrap(scores, iqm, np.random.default_rng(0))
        figures = [(one.cell.game, one.cell.published) for one in own if one.cell.published is not None]
        rllib = iqm(np.array([[human_normalised(game, figure) for game, figure in figures]]))
        between = f" (95%: {interval.low:.2f} to {interval.high:.2f})"
        if len(scores) < INTERVAL_RUNS:  # a bootstrap over so few runs is far too narrow
            each = [iqm(one[None]) for one in scores]
            between = f" ({len(each)} seeds: {min(each):.2f} to {max(each):.2f})" if len(each) > 1 else " (one seed)"
        told.append(
            f"{label}: IQM of human-normalised scores {interval.value:.2f}{between}, RLlib's figures {rllib:.2f}"
        )
    return "; ".join(told)


def bars(table: Table, cells: Sequence[Measured]) -> list[charts.Bars]:
    several = len(table.labels) > 1
    return [
        charts.Bars(
            f"{one.cell.game}\n{one.cell.label}" if several else one.cell.game,
            one.cell.published,
            one.cell.paper,
            one.scores,
            one.mark == "partial",
        )
        for one in cells
    ]


def curves(cells: Sequence[Measured], column: int) -> list[charts.Group]:
    """Learning curves of a table's results, against column 0 (env steps) or 1 (seconds)."""
    groups = []
    for one in cells:
        drawn = [result["curve"] for result in one.results if result["curve"]]
        runs = [charts.Curve([point[column] for point in curve], [point[2] for point in curve]) for curve in drawn]
        if runs:
            several = f" ({len(runs)} seeds)" if len(runs) > 1 else ""
            groups.append(charts.Group(f"{one.cell.label}, {one.cell.game}{several}", runs))
    return groups


def html(tables: Sequence[tuple[Table, Sequence[Measured]]]) -> str:
    every = [one for _, cells in tables for one in cells]
    count = {name: sum(one.mark == name for one in every) for name in MARKS}
    shown = [name for name in MARKS if count[name] or name not in ("measured", "no game")]
    body = [page.cards([("cells", len(every)), *((name, count[name]) for name in shown)])]
    for table, cells, all_cells in with_results(tables):
        names, made = headings(table), rows(table, cells)
        at = names.index("rlrun, measured")
        classes = [[CLASSES[one.mark] if index in (at, at + 1) else "" for index in range(len(names))] for one in cells]
        body += [f"<h2>{page.escape(table.title)}</h2>", page.table(names, made, classes, left=(0, 1, len(names) - 1))]
        steps = curves(cells, 0)
        if steps:
            drawn = charts.learning_curves(steps, curves(cells, 1), "return, mean of last 100 games", "")
            body.append(page.picture(charts.svg(drawn)))
        body.append(page.picture(charts.svg(charts.table_bars(table.title, bars(table, cells), table.paper))))
        body.append(f'<p class="soft">{page.escape(protocol_line(cells, table))}</p>')
        if table.note:
            body.append(f"<p>{page.escape(table.note)}</p>")
        summary = normalised(all_cells)
        if summary:
            body.append(f"<p>{page.escape(summary)}</p>")
        body.append(page.details("Commands that made these results", page.code("\n".join(commands(cells)))))
    waiting = without_results(tables)
    if waiting:
        body += ["<h2>Not run yet</h2>", page.table(WAITING, waiting, left=(0, 1, 2))]
    lead = (
        "RLlib's results, and what rlrun measured with a tuned file for each cell. Scores are unclipped returns of full"
        " games."
    )
    foot = (
        "Made by rlrun benchmark reproduce-tables from JSON files with the curve, seed, steps, wall time, hardware,"
        " versions and command of every run."
    )
    return page.page("RLlib's published tables", lead, body, foot)


def publish(tables: Sequence[Table], folder: Path, runs: Path | None) -> list[Path]:
    """Writes TABLES.md, tables.html and a PNG for every table that has a result; returns their paths.

    runs: the folder of the tables' runs, which is made if it does not exist. The tables are also logged there to
    TensorBoard, and to MLflow beside it; None logs them nowhere. UserError where a result file is invalid or the folder
    cannot be written.
    """
    known = [(table, [measured(folder, Wanted(table, cell)) for cell in table.cells]) for table in tables]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        made = [folder / "TABLES.md", folder / "tables.html"]
        text = markdown(known)
        write_atomically(made[0], text)
        write_atomically(made[1], html(known))
        for table, cells, _ in with_results(known):
            made.append(folder / f"{table.name}.png")
            charts.save(charts.table_bars(table.title, bars(table, cells), table.paper), made[-1])
    except OSError as error:
        raise UserError(
            f"{folder} cannot be written: {error.strerror} (--results DIR chooses another folder)"
        ) from None
    if runs is not None:
        log(known, text, made, runs)
    return made


def log(known: Sequence[tuple[Table, Sequence[Measured]]], text: str, made: Sequence[Path], runs: Path) -> None:
    """Writes the tables to TensorBoard and MLflow. A store that does not answer costs only a warning."""
    scores = {
        f"{table.name}/{one.cell.label}/{one.cell.game}": sum(one.scores) / len(one.scores)
        for table, cells in known
        for one in cells
        if one.scores
    }
    try:
        runs.mkdir(parents=True, exist_ok=True)
        to_tensorboard(scores, text, made, runs)
        to_mlflow(scores, made, runs)
        print(f"  the tables are also in TensorBoard ({runs / 'tables'}) and MLflow ({runs.parent})", flush=True)
    except Exception as error:  # each store has its own exceptions
        print(
            f"  the tables could not be written to TensorBoard and MLflow: {type(error).__name__}:"
            f" {(str(error).splitlines() or [''])[0]}",
            flush=True,
        )


def to_tensorboard(scores: dict[str, float], text: str, made: Sequence[Path], runs: Path) -> None:
    from torch.utils.tensorboard import SummaryWriter

    writer: Any = SummaryWriter(str(runs / "tables"))
    writer.add_text("tables", text)
    for name, score in scores.items():
        writer.add_scalar(f"tables/{name}", score)
    for path in made:
        if path.suffix == ".png":
            import matplotlib.image

            writer.add_image(f"tables/{path.stem}", matplotlib.image.imread(path)[..., :3], dataformats="HWC")
    writer.close()


def to_mlflow(scores: dict[str, float], made: Sequence[Path], runs: Path) -> None:
    from rlrun.loggers.mlflow import available, open_experiment

    if not available():
        return
    client, experiment = open_experiment(None, runs.parent, "rlrun tables")
    run = client.create_run(experiment, run_name="tables").info.run_id
    for name, score in scores.items():
        client.log_metric(run, name.replace(" ", "_"), score)
    for path in made:
        client.log_artifact(run, str(path))
    client.set_terminated(run, "FINISHED")
