"""Results are small JSON files, one for every cell and seed, with all that is needed to make the result again.

They are kept under tuned/results/ or in the folder that --results names.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rlrun.bench.recipes import recipe_of
from rlrun.bench.tables import Cell, Table, Wanted
from rlrun.config.paths import root
from rlrun.config.types import load_yaml
from rlrun.core.checkpoint import write_atomically
from rlrun.core.errors import UserError
from rlrun.loggers.jsonl import read as read_rows

FORMAT = 1
CURVE_POINTS = 200
ENDLESS = 10**12  # env steps for a run that a time limit ends
SCORE = "last100: mean return of the last 100 training games, full games, unclipped"
# Sealed results hold this sentence. The start of the samplers is included, and that of Python is not.
SECONDS = (
    "seconds of wall time until the mean return of the last 100 training games reached {target:g}, start-up included"
)


def default_folder() -> Path:
    return root() / "tuned" / "results"


class Key(NamedTuple):
    """What identifies a result."""

    table: str
    game: str
    tuned: str
    seed: int
    budget: float

    @property
    def file(self) -> str:
        part = "" if self.budget == 1 else f"-budget{self.budget:g}"
        return f"{self.table}/{self.game}-{self.tuned.replace('/', '_')}-seed{self.seed}{part}.json"

    @property
    def run(self) -> str:
        """The name of the run's folder."""
        return self.file.removesuffix(".json").replace("/", "-")


def key_of(wanted: Wanted, seed: int, budget: float) -> Key:
    return Key(wanted.table.name, wanted.cell.game, wanted.cell.tuned, seed, budget)


def train_words(wanted: Wanted, key: Key) -> list[str]:
    """The words that `rlrun train` gets for this cell."""
    table: Table = wanted.table
    steps = ENDLESS if table.env_steps is None else max(1, round(table.env_steps * key.budget))
    seconds = "null" if table.wall_sec is None else f"{table.wall_sec * key.budget:g}"
    target = "null" if table.target_return is None else f"{table.target_return:g}"
    ends = [
        f"env_steps={steps}",
        f"stop.return_mean={target}",
        f"stop.wall_sec={seconds}",
        "stop.no_improvement_steps=null",
    ]
    return [f"tuned={wanted.cell.tuned}", *wanted.cell.words, f"seed={key.seed}", *ends]


def protocol(table: Table, config: Mapping[str, Any]) -> dict[str, Any]:
    """What a score depends on besides the algorithm, from a run's config. It is the same for all rows of a table."""
    env = config["env"]
    score = SECONDS.format(target=table.target_return) if table.target_return is not None else SCORE
    score = score.replace("100", str(config.get("episode_window", 100)))
    said = {"score": score, "ends_env_steps": table.env_steps, "ends_wall_sec": table.wall_sec, "env": env["name"]}
    if env["family"] == "atari":
        names = (
            "frame_skip",
            "sticky_actions",
            "full_action_space",
            "noop_max",
            "life_loss_terminal",
            "size",
            "stack",
            "max_frames",
            "reward_clip",
        )
        said |= {name: env[name] for name in names}
    return said


def expected_protocol(wanted: Wanted) -> dict[str, Any]:
    """The protocol that the table asks for: the env's defaults from conf/env/ with the table's screen size."""
    import yaml

    from rlrun.envs.names import family_of

    family, name = family_of(wanted.cell.game, needed=False)
    env = yaml.safe_load((root() / "conf" / "env" / f"{family}.yaml").read_text())
    env |= {"name": name} | ({"size": wanted.table.size} if family == "atari" else {})
    return protocol(wanted.table, {"env": env})


def thinned(rows: Sequence[Any], count: int = CURVE_POINTS) -> list[Any]:
    """At most `count` of the rows, evenly spaced; the first and the last are always kept."""
    if len(rows) <= count:
        return list(rows)
    return [rows[round(index * (len(rows) - 1) / (count - 1))] for index in range(count)]


class CurveRow(NamedTuple):
    """A row of progress.jsonl that has a return."""

    env_steps: int
    wall_sec: float
    return_mean: float  # of the last 100 games
    episodes: int  # all that have ended; 0 where the run did not log them


def rows_of(run_dir: Path) -> list[CurveRow]:
    """The rows of a run's progress.jsonl that have a return."""
    return [
        CurveRow(row["env_steps"], row["time_sec"], row["sample/return_mean"], row.get("sample/episodes", 0))
        for row in read_rows(run_dir / "progress.jsonl")
        if row.get("sample/return_mean") is not None
    ]


def first_reach(rows: Sequence[CurveRow], target: float, window: int) -> int | None:
    """The index of the first row whose mean return is that of `window` games and reached the target; None without."""
    return next((at for at, row in enumerate(rows) if row.episodes >= window and row.return_mean >= target), None)


def curve_of(rows: Sequence[CurveRow]) -> list[list[float]]:
    """[env steps, seconds, mean return of the last 100 games] for each row."""
    return [[row.env_steps, round(row.wall_sec, 1), round(row.return_mean, 3)] for row in rows]


def from_run(key: Key, wanted: Wanted, run_dir: Path, part: Sequence[CurveRow] | None = None) -> dict[str, Any]:
    """The result of a finished run. UserError where the run did not finish by itself or used another protocol.

    part: the first rows of a run that went on after the table's end, and may go on further; the result is that of its
    last row.
    """
    try:
        summary = json.loads((run_dir / "summary.json").read_text())
    except (OSError, ValueError) as error:
        raise UserError(f"{run_dir} has no summary: {error}") from None
    if not isinstance(summary, dict):
        raise UserError(f"{run_dir / 'summary.json'} is no summary of a run")
    if part is not None:
        summary |= part[-1]._asdict()
    elif summary.get("status") not in ("COMPLETED", "STOPPED"):
        raise UserError(f"{run_dir} is {summary.get('status', 'not a run')}: no result yet")
    config = load_yaml(run_dir / "config.yaml")
    made, asked = protocol(wanted.table, config), expected_protocol(wanted)
    if made != asked:
        other = next(name for name in asked if made.get(name) != asked[name])
        raise UserError(
            f"{run_dir} used another protocol than {wanted.table.name}: {other} is {made.get(other)!r}, not"
            f" {asked[other]!r}"
        )
    rows = rows_of(run_dir) if part is None else part
    score = summary["return_mean"]
    target = wanted.table.target_return
    if target is not None:
        reached = first_reach(rows, target, config.get("episode_window", 100))
        score = None if reached is None else round(rows[reached].wall_sec, 1)
        if (
            score is None
            and summary["episodes"] >= config.get("episode_window", 100)
            and summary["return_mean"] is not None
            and summary["return_mean"] >= target
        ):
            score = summary["wall_sec"]  # the target was reached after the last row, when the run ended
    return {
        "format": FORMAT,
        **key._asdict(),
        "label": wanted.cell.label,
        "score": score,
        "return_mean": summary["return_mean"],
        "env_steps": summary["env_steps"],
        "wall_sec": summary["wall_sec"],
        "episodes": summary["episodes"],
        "protocol": made,
        "hardware": summary["hardware"],
        "versions": summary["versions"],
        "git_commit": summary["git_commit"],
        "command": summary["command"],
        "options": recipe_of(run_dir),
        **({"sessions": summary["sessions"]} if "sessions" in summary else {}),
        "started": summary["started"],
        "resources": summary["resources"],
        "curve_columns": ["env_steps", "wall_sec", "return_mean"],
        "curve": thinned(curve_of(rows)),
    }


def digest(values: Mapping[str, Any]) -> str:
    """The sha256 of all values except "sha256" itself."""
    text = json.dumps(
        {name: value for name, value in values.items() if name != "sha256"}, sort_keys=True, separators=(",", ":")
    )
    return hashlib.sha256(text.encode()).hexdigest()


def write(folder: Path, key: Key, values: Mapping[str, Any]) -> Path:
    path = folder / key.file
    path.parent.mkdir(parents=True, exist_ok=True)
    sealed = {**values, "sha256": digest(values)}
    body = json.dumps({name: value for name, value in sealed.items() if name != "curve"}, indent=1)
    curve = ",\n  ".join(json.dumps(point) for point in sealed["curve"])
    write_atomically(path, body[: -len("\n}")] + f',\n "curve": [\n  {curve}\n ]\n}}\n')  # one point per line
    return path


def read(folder: Path, key: Key, wanted: Wanted) -> dict[str, Any] | None:
    """A result, or None where there is none. UserError where the file was altered or has another protocol."""
    path = folder / key.file
    if not path.exists():
        return None
    try:
        values = json.loads(path.read_text())
        stated, counted = values["sha256"], digest(values)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(f"{path} is not a result: {type(error).__name__}: {error}") from None
    if stated != counted:
        raise UserError(
            f"{path} was altered after it was written: its sha256 does not match its contents. Remove it, or restore"
            " the original"
        )
    if values.get("format") != FORMAT or values.get("protocol") != expected_protocol(wanted):
        raise UserError(
            f"{path} has another protocol than {wanted.table.name} has today; remove it, or keep it elsewhere"
        )
    if tuple(values.get(name) for name in Key._fields) != tuple(key):
        raise UserError(f"{path} belongs to another cell than its name says")
    return values


class Measured(NamedTuple):
    """The results of a cell: those for the whole budget, or else those for the largest budget that was run."""

    wanted: Wanted
    results: list[dict[str, Any]]  # in the order of their seeds
    budget: float  # share of the whole budget; 0 where nothing was run

    @property
    def cell(self) -> Cell:
        return self.wanted.cell

    @property
    def scores(self) -> list[float]:
        return [one["score"] for one in self.results if one["score"] is not None]

    @property
    def mark(self) -> str:
        """How the seeds' lowest and highest scores compare with the published figure: beaten, within spread or short.

        It is short, too, where a seed never reached the target. It is "not run" without results, "partial" for a part
        of the budget, "no game" where a seed finished none, and "measured" where nothing was published.
        """
        if not self.results:
            return "not run"
        if self.budget != 1:
            return "partial"
        if len(self.scores) < len(self.results) and self.wanted.table.target_return is None:
            return "no game"
        if self.cell.published is None:
            return "measured"
        if len(self.scores) < len(self.results):  # not every seed reached the target
            return "short"
        sign = -1.0 if self.wanted.table.less_is_better else 1.0
        low, high = sorted((sign * min(self.scores), sign * max(self.scores)))
        aim = sign * self.cell.published
        return "beaten" if low > aim else "within spread" if high >= aim else "short"


def measured(folder: Path, wanted: Wanted) -> Measured:
    """The results of a cell that exist in this folder. UserError where a file is invalid."""
    stem = f"{wanted.cell.game}-{wanted.cell.tuned.replace('/', '_')}-seed"
    found: dict[float, dict[int, dict[str, Any]]] = {}
    for path in sorted((folder / wanted.table.name).glob(f"{stem}*.json")):
        seed, _, budget = path.stem.removeprefix(stem).partition("-budget")
        try:
            key = key_of(wanted, int(seed), float(budget or 1))
        except ValueError:
            continue
        values = read(folder, key, wanted)
        if values is not None:
            found.setdefault(key.budget, {})[key.seed] = values
    best = max(found, default=0.0)
    return Measured(wanted, [found[best][seed] for seed in sorted(found[best])] if found else [], best)
