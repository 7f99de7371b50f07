"""rlrun report RUN_DIR|SWEEP_DIR [...] [--out report.html]

Writes one HTML file about one run or many: what was run, how it went, its curves, options, machine and commands. The
file contains everything that it needs."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from rlrun.cli import take_flags
from rlrun.core.checkpoint import write_atomically
from rlrun.core.errors import UserError

LARGEST_VIDEO = 8_000_000  # bytes of a video inside a page
DRAWN = 6  # how many learning metrics are drawn for a run
FIRST = (
    "learn/policy_loss",
    "learn/value_loss",
    "learn/loss",
    "learn/entropy",
    "learn/td_error",
    "learn/kl",
    "learn/q",
    "learn/grad_norm",
    "learn/explained_variance",
    "learn/lr",
    "sample/policy_lag",
)
ELO = "learn/elo"  # what algo=self_play logs
RATINGS = {ELO: "the newest weights", "learn/elo_of_oldest": "the oldest snapshot that is kept"}
SHARES = {"learn/win_rate": "won", "learn/draw_rate": "drawn"}


def main(words: list[str]) -> int:
    if not words or any(word in ("-h", "--help") for word in words):
        print(__doc__)
        return 0 if words else 2
    flags, places = take_flags(words, {"--out": str})
    if not places:
        raise UserError("report needs the directory of a run or of a sweep")
    from rlrun.experiments.runs import find

    runs = find(places)
    out = Path(flags["--out"]) if flags["--out"] else (Path(places[0]) if len(places) == 1 else Path()) / "report.html"
    if out.suffix != ".html":
        raise UserError(f"--out {out}: the name must end with .html")
    sweep = any((Path(place) / "sweep.json").is_file() for place in places)
    text = of_run(runs[0]) if len(runs) == 1 and not sweep else of_many(runs, [Path(place) for place in places])
    try:
        write_atomically(out, text)
    except OSError as error:
        raise UserError(f"{out} cannot be written: {error.strerror}") from None
    print(out)
    return 0


def shown(value: Any) -> str:
    return (
        ""
        if value is None
        else f"{value:,.4g}"
        if isinstance(value, float)
        else f"{value:,}"
        if isinstance(value, int)
        else str(value)
    )


def estimates_of(run) -> list[str]:
    """What a policy is worth according to recorded data, where the run has estimated it."""
    from rlrun.bench import charts, page
    from rlrun.experiments.runs import metrics

    names = [name for name in metrics([run]) if name.startswith("estimate/") and len(run.series(name)[0]) > 1]
    if not names:
        return []
    drawn = charts.small_multiples([(name, *run.series(name)) for name in names])
    return ["<h2>Value, estimated from data</h2>", page.picture(charts.svg(drawn))]


def of_run(run) -> str:
    from rlrun.bench import charts, page
    from rlrun.commands.plot import curves
    from rlrun.config.words import exact
    from rlrun.experiments.runs import RETURN, last_games, metrics
    from rlrun.experiments.settings import returns
    from rlrun.loggers.console import duration

    games = last_games([run])
    last, best = returns(run)
    row = run.rows[-1] if run.rows else {}
    steps, seconds = row.get("env_steps", 0), row.get("time_sec", 0.0)
    ratings = run.series(ELO)[1]
    body = [
        page.cards(
            [
                (f"return, mean of {games}", shown(None if last is None else float(last)) or "no game has ended"),
                ("its best value", shown(best)),
                *([("Elo", f"{ratings[-1]:,.0f}")] if ratings else []),
                ("env steps", f"{steps:,}"),
                ("wall time", duration(seconds)),
                ("env steps per second", shown(round(steps / seconds)) if seconds else ""),
                ("status", run.status.lower()),
            ]
        )
    ]
    if why := run.ended[1].strip().splitlines():
        body.append(f'<p class="soft">Ended: {page.escape(why[-1])}</p>')
    if run.series(RETURN)[0]:
        body += [
            "<h2>Return</h2>",
            page.picture(charts.svg(charts.learning_curves(*curves([run], RETURN), f"mean of {games}", ""))),
        ]
    if run.series("eval/return_mean")[0]:
        body += [
            "<h2>Evaluation</h2>",
            page.picture(
                charts.svg(charts.learning_curves(*curves([run], "eval/return_mean"), "mean of evaluation games", ""))
            ),
        ]
    body += estimates_of(run)
    body += video_of(run)
    body += regret_of([run])
    body += games_of(run)
    logged = metrics([run])
    known = [name for name in FIRST if name in logged and len(run.series(name)[0]) > 1][:DRAWN]
    if known:
        body += [
            "<h2>Learning</h2>",
            page.picture(charts.svg(charts.small_multiples([(name, *run.series(name)) for name in known]))),
        ]
    body += imagined_of(run)
    body += facts([run])
    body += [
        "<h2>Options</h2>",
        page.details(
            "All options of this run",
            page.table(
                ("option", "value"),
                [(key, exact(value)) for key, value in run.options.items()],
                left=(0, 1),
            ),
        ),
    ]
    lead = typed(run.summary["command"]) if run.summary.get("command") else str(run.path)
    return page.page(f"{run.title}, seed {run.seed}", lead, body, f"Made by rlrun report from {run.path}.")


def video_of(run) -> list[str]:
    """The newest video that `rlrun watch` made of a run, inside the page; nothing where there is none.

    An mp4 plays sharper than a gif, but one that is too large for a page gives way to it."""
    from rlrun.bench import page

    files = [file for file in (run.path / "videos").glob("*.*") if file.suffix in (".mp4", ".gif")]
    films = [file for file in files if not file.stem.endswith("-imagined") and file.stat().st_size <= LARGEST_VIDEO]
    if not films:
        return []
    newest = max(films, key=lambda file: (file.stem.partition("-")[0], file.suffix == ".mp4", file.stat().st_mtime))
    steps = newest.stem.partition("-")[0]
    text = f"A game of the policy after {int(steps):,} env steps" if steps.isdigit() else "A game of the policy"
    shown = (page.video if newest.suffix == ".mp4" else page.image)(newest.suffix[1:], newest.read_bytes(), text)
    return ["<h2>Video</h2>", f'<p class="soft">{page.escape(text)}, by rlrun watch.</p>', shown]


def regret_of(runs) -> list[str]:
    """The regret of bandits, beside that of arms drawn uniformly; nothing for other runs."""
    from rlrun.bench import charts, page
    from rlrun.commands.plot import REGRET, curves
    from rlrun.experiments.settings import mean

    if not any(run.series(REGRET)[0] for run in runs):
        return []
    last = [run.series("sample/regret_share")[1][-1] for run in runs if run.series("sample/regret_share")[0]]
    said = f"{mean(last):.2%} of what arms drawn uniformly would have cost." if last else ""
    made = charts.learning_curves(*curves(runs, REGRET), "regret of all steps so far", "", logarithmic=True)
    return ["<h2>Regret</h2>", f'<p class="soft">{said}</p>', page.picture(charts.svg(made))]


def games_of(run) -> list[str]:
    """The ratings of a run of self-play and its results against snapshots, as charts; nothing for other runs."""
    from rlrun.bench import charts, page

    def drawn(metrics: dict[str, str], label: str) -> str:
        steps, times = (
            [charts.Group(name, [charts.Curve(*run.series(metric, x))]) for metric, name in metrics.items()]
            for x in ("env_steps", "time_sec")
        )
        return page.picture(charts.svg(charts.learning_curves(steps, times, label, "")))

    made = ["<h2>Elo</h2>", drawn(RATINGS, "Elo rating")] if run.series(ELO)[0] else []
    if run.series("learn/win_rate")[0]:
        made += ["<h2>Games against snapshots</h2>", drawn(SHARES, "share of an update's games")]
    return made


def imagined_of(run) -> list[str]:
    """The newest picture of what the run's world model imagined, and its errors; nothing for other runs."""
    from rlrun.bench import charts, page
    from rlrun.core.open_loop import CONTEXT, FOLDER, STEPS
    from rlrun.experiments.runs import metrics

    made = []
    files = (path for path in (run.path / FOLDER).glob("*.*") if path.suffix in (".png", ".gif"))
    pictures = sorted(path for path in files if path.stem.isdecimal())
    if pictures:
        newest = pictures[-1]
        text = f"World model at {int(newest.stem):,} env steps"
        how = (
            f"{text}: it saw the first {CONTEXT} observations of a sequence (of short ones half), and imagined the"
            " others from the actions that were taken."
        )
        made += [
            "<h2>Imagined beside true</h2>",
            f'<p class="soft">{page.escape(how)}</p>',
            page.image(newest.suffix.removeprefix("."), newest.read_bytes(), text),
        ]
    names = [f"learn/open_loop_{part}_{steps}" for part in ("rec", "reward") for steps in STEPS]
    logged = metrics([run])
    known = [name for name in names if name in logged and len(run.series(name)[0]) > 1]
    if known:
        made.append(
            page.picture(charts.svg(charts.small_multiples([(name, *run.series(name)) for name in known], columns=4)))
        )
    return made


def of_many(runs, places: list[Path]) -> str:
    from rlrun.bench import page
    from rlrun.experiments.runs import sweep_of
    from rlrun.experiments.settings import settings_of, without_run

    settings = settings_of(runs)
    never = without_run(places, {run.path.resolve() for run in runs})
    body = [page.cards(in_short(runs, settings, len(never)))]
    if never:
        body += ["<h2>Jobs that never became a run</h2>", page.table(("job", "status", "why"), never, left=(0, 1, 2))]
    body += [*curves_of(runs), *settings_table(settings), *runs_table(runs), *facts(runs)]
    sweeps = [sweep_of(place).command for place in places if (place / "sweep.json").is_file()]
    lead = next(filter(None, sweeps), f"{len(runs)} runs below {', '.join(map(str, places))}")
    return page.page("A sweep" if sweeps else "Several runs", lead, body, "Made by rlrun report.")


def in_short(runs, settings, never: int) -> list[tuple[str, object]]:
    """Counts of runs, settings and failures, and the best setting where all runs have the same environment: returns of
    different environments cannot be compared."""
    from rlrun.experiments.settings import mean

    failed = sum(run.status == "FAILED" for run in runs)
    cards: list[tuple[str, object]] = [("runs", len(runs)), ("settings", len(settings))]
    if len({run.options["env.name"] for run in runs}) == 1:
        cards += [("best setting", settings[0].label), ("its mean return", shown(mean(settings[0].scores)))]
    return [*cards, ("failed", failed + never)]


def curves_of(runs) -> list[str]:
    """Learning curves, regret and Elo, where runs have them."""
    from rlrun.bench import charts, page
    from rlrun.commands.plot import curves
    from rlrun.experiments.runs import last_games, return_metric

    made: list[str] = []
    metric = return_metric(runs)
    if any(run.series(metric)[0] for run in runs):
        drawn = charts.svg(charts.learning_curves(*curves(runs, metric), f"mean of {last_games(runs)}", ""))
        made += ["<h2>Return</h2>", page.picture(drawn)]
    made += regret_of(runs)
    if any(run.series(ELO)[0] for run in runs):
        made += [
            "<h2>Elo</h2>",
            '<p class="soft">Each run rates itself against its own snapshots, so that ratings of different runs are not'
            " those of games between them; rlrun evaluate RUN_DIR RUN_DIR plays such games.</p>",
            page.picture(charts.svg(charts.learning_curves(*curves(runs, ELO), "Elo of the newest weights", ""))),
        ]
    return made


def settings_table(settings) -> list[str]:
    """A row for each setting: the statistics of those of its seeds that came to their end. Columns of intervals are
    left out where no setting has enough seeds for one."""
    import numpy as np

    from rlrun.bench import page
    from rlrun.bench.stats import iqm
    from rlrun.experiments.runs import whole
    from rlrun.experiments.settings import between, difference, explained, mean
    from rlrun.loggers.console import duration, number

    known, rivals = any(one.interval for one in settings), any(one.difference for one in settings)
    rows = []
    for one in settings:
        steps = [run.rows[-1]["env_steps"] for run in whole(one.members) if run.rows]
        seconds = [run.rows[-1]["time_sec"] for run in whole(one.members) if run.rows and "time_sec" in run.rows[-1]]
        rows.append(
            [
                one.label,
                one.counted,
                number(mean(one.scores)),
                *([between(one.interval) if one.interval else ""] if known else []),
                number(iqm(np.array(one.scores))) if one.scores else "",
                number(min(one.scores, default=None)),
                number(max(one.scores, default=None)),
                *([difference(one)] if rivals else []),
                number(mean(steps)),
                duration(mean(seconds) or 0),
            ]
        )
    names = ["setting", "seeds", "mean return", *(["its 95 % interval"] if known else []), "IQM", "lowest", "highest"]
    names += [*(["difference to the best"] if rivals else []), "env steps", "wall time"]
    words = [f'<p class="soft">{page.escape(text)}</p>' for text in explained(settings)]
    return ["<h2>Settings</h2>", page.table(names, rows, left=(0,)), *words]


def runs_table(runs) -> list[str]:
    """A row for each run: the options that tell runs apart, its return and how it ended."""
    from rlrun.bench import page
    from rlrun.config.words import exact
    from rlrun.experiments.runs import telling
    from rlrun.experiments.settings import returns

    keys = telling(runs)[:6]
    rows = []
    for run in runs:
        status, reason = run.ended[0].lower(), run.ended[1].strip().splitlines()
        options = [exact(run.options[key]) if key in run.options else "" for key in keys]
        ended = reason[-1][:120] if reason else ""
        rows.append([run.path.name, *options, run.seed, status, shown(returns(run)[0]), ended])
    names = ("run", *keys, "seed", "status", "return", "how it ended")
    return ["<h2>Runs</h2>", page.table(names, rows, left=(0, *range(1, len(keys) + 1), len(keys) + 5))]


def typed(command: str) -> str:
    """A command without the words that a sweep or a table added to place its run."""
    try:
        words = shlex.split(command)
    except ValueError:  # rlrun did not write this command, so it is shown as it is
        return command
    return shlex.join(word for word in words if not word.startswith(("run_dir=", "logger.mlflow.parent=")))


def facts(runs) -> list[str]:
    """The machines, versions and commands of these runs, each listed once."""
    from rlrun.bench import page

    rows: dict[tuple[str, str], None] = {}
    for run in runs:
        sessions = run.summary.get("sessions") or [run.summary]
        for machine in (one["hardware"] for one in sessions if one.get("hardware")):
            gpus = machine.get("gpus")
            named = [f"{machine.get('cores')} x {machine.get('cpu')}", *(gpus if isinstance(gpus, list) else ())]
            rows["machine", ", ".join(map(str, named))] = None
        for versions in (one["versions"] for one in sessions if one.get("versions")):
            rows["versions", ", ".join(f"{name} {version}" for name, version in versions.items())] = None
        for commit in (one["git_commit"] for one in sessions if one.get("git_commit")):
            rows["git commit", str(commit)] = None
        for line in run.summary.get("resources", []) if len(runs) == 1 else []:
            rows["resources", str(line)] = None
    commands = list(dict.fromkeys(typed(run.summary["command"]) for run in runs if run.summary.get("command")))
    made = ["<h2>Made with</h2>", page.table(("", ""), list(rows), left=(0, 1))] if rows else []
    return [*made, page.code("\n".join(commands))] if commands else made
