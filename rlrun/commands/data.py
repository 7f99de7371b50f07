"""rlrun data PATH [check=false bins=20 random_return=... expert_return=...] [--json]

Shows a data set: where it is from, its spaces, its size, its returns as a histogram, and who chose the actions. PATH is
a folder that rlrun recorded, one of its files, or data of another format that data.path= takes. `content` is the sha256
sum of the rows alone: two sets with the same trajectories have the same one, whatever their files are called and
whenever they were made. check=true compares every file with its sha256 sum and reads every row. random_return= and
expert_return= store in the set the mean returns of a random and of an expert policy, from which normalised scores are
computed: 100 (return - random) / (expert - random)."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from rlrun.cli import printable
from rlrun.config.types import parse_assignments, typed
from rlrun.core.errors import UserError
from rlrun.core.ranges import Count

BAR = 40  # characters of the longest bar


@dataclass(frozen=True, kw_only=True)
class ShowOptions:
    check: bool
    bins: Annotated[int, Count]
    random_return: float | None
    expert_return: float | None


DEFAULTS = {"check": False, "bins": 20, "random_return": None, "expert_return": None}


def main(words: list[str]) -> int:
    if any(word in ("-h", "--help") for word in words):
        print(__doc__)
        return 0
    as_json = "--json" in words
    words = [word for word in words if word != "--json"]
    places = [word for word in words if "=" not in word or os.path.exists(word)]
    if len(places) != 1:
        raise UserError("rlrun data takes one data set: a folder or a file, then key=value options")
    options = typed(ShowOptions, DEFAULTS | parse_assignments([word for word in words if word not in places]))

    from rlrun.datasets.open import open_source
    from rlrun.datasets.parquet import ParquetSource
    from rlrun.datasets.parquet_writer import set_references

    source = open_source(places[0])
    own = isinstance(source, ParquetSource)
    if options.random_return is not None or options.expert_return is not None:
        if not own or not Path(places[0]).is_dir():
            raise UserError(
                f"{places[0]}: random_return= and expert_return= can be stored only in a folder of data that rlrun"
                " recorded; name such a folder"
            )
        if _of_one_agent(source.facts.spec):
            raise UserError(
                f"{places[0]}: random_return= and expert_return= are returns of whole games, and each trajectory here"
                " is one agent's"
            )
        facts = source.facts
        set_references(
            Path(places[0]),
            facts.random_return if options.random_return is None else options.random_return,
            facts.expert_return if options.expert_return is None else options.expert_return,
        )
        source = open_source(places[0])
    if options.check and not own:
        raise UserError(
            f"{places[0]}: check=true compares the sha256 sums that rlrun's own sets hold, and this is none"
        )
    checked = source.check_hashes() if options.check and isinstance(source, ParquetSource) else None
    told = summary(source)
    if as_json:
        print(json.dumps({"path": places[0], **told, "checked_files": checked}))
        return 0
    print(printable(describe(source, told, options, checked)))
    return 0


def summary(source: Any) -> dict[str, Any]:
    """Reads a data set once and returns its numbers."""
    import numpy as np

    from rlrun.datasets.content import ContentSum

    content = ContentSum(source.facts)
    returns, lengths, whole, steps, rows, known = [], [], 0, 0, 0, True
    policies: dict[int, int] = {}
    for piece in range(source.pieces()):
        for one in source.read(piece):
            rows, steps = rows + len(one), steps + one.steps
            content.add(one)
            known = known and one.has_log_prob
            policies[one.policy] = policies.get(one.policy, 0) + 1
            if one.whole:
                whole += 1
                returns.append(one.ret)
                lengths.append(one.steps)
    facts = source.facts
    score = None
    references = facts.random_return, facts.expert_return
    if (
        returns
        and not _of_one_agent(facts.spec)
        and None not in references
        and facts.random_return != facts.expert_return
    ):
        score = 100 * (float(np.mean(returns)) - facts.random_return) / (facts.expert_return - facts.random_return)
    return {
        "env": facts.spec.name,
        "trajectories": sum(policies.values()),
        "whole": whole,
        "decisions": steps,
        "rows": rows,
        "content_sha256": content.hex(),
        "returns": returns,
        "return_mean": float(np.mean(returns)) if returns else None,
        "return_std": float(np.std(returns)) if returns else None,
        "length_mean": float(np.mean(lengths)) if lengths else None,
        "log_prob": known and rows > 0,
        "policies": {name: policies.get(n, 0) for n, name in enumerate(facts.policies)} or {"unknown": rows},
        "normalised_score": score,
        "random_return": facts.random_return,
        "expert_return": facts.expert_return,
    }


def describe(source: Any, told: dict[str, Any], options: ShowOptions, checked: int | None) -> str:
    """The data set as text."""
    from rlrun.datasets.parquet import ParquetSource

    facts, spec = source.facts, source.facts.spec
    cut = told["trajectories"] - told["whole"]
    lines = [
        ("environment", f"{spec.name}: observation {spec.observation}, action {spec.action}"),
        ("size", f"{told['trajectories']:,} trajectories, {told['decisions']:,} decisions" + _bytes(source)),
        ("content", told["content_sha256"]),
        ("probabilities", "known for every action" if told["log_prob"] else "not known"),
    ]
    if cut:
        lines.append(("cut", f"{cut:,} trajectories are parts of episodes; returns below leave them out"))
    if spec.stack > 1:
        lines.append(("frames", f"stacks of {spec.stack}, of which each frame is stored once"))
    if spec.agents is not None:
        lines.append(("agents", ", ".join(spec.agents.names)))
    lines += [("policies", f"{name}: {count:,} trajectories") for name, count in told["policies"].items()]
    if facts.made_by:
        lines.append(("made by", facts.made_by))
    if told["returns"]:
        spread = f"{told['return_mean']:.2f} (deviation {told['return_std']:.2f}), length {told['length_mean']:.1f}"
        lines.append(("mean return", spread + (", of one agent each" if _of_one_agent(spec) else "")))
    if told["normalised_score"] is not None:
        refs = f"random {told['random_return']:g}, expert {told['expert_return']:g}"
        lines.append(("normalised", f"{told['normalised_score']:.1f} of 100 ({refs})"))
    if isinstance(source, ParquetSource) and checked is not None:
        lines.append(("checked", f"{_checked(checked, len(source.files))}, and every row can be read"))
    lines += [("note", note) for note in facts.notes]
    width = max(len(name) for name, _ in lines)
    text = [f"{name:<{width}}  {value}" for name, value in lines]
    return "\n".join([*text, *_histogram(told["returns"], options.bins)])


def _of_one_agent(spec: Any) -> bool:
    """Whether a trajectory is that of one of several agents, so that its return is not that of a game."""
    return spec.agents is not None and not spec.joint


def _checked(compared: int, files: int) -> str:
    """What came of comparing the files of a set with their sha256 sums."""
    if compared == files:
        return "all files have the right sha256 sums"
    if not compared:
        return "no file was compared, because dataset.json, which has the sha256 sums, lists none of them"
    return f"{compared} of {files} files have sha256 sums, which are right"


def _bytes(source: Any) -> str:
    from rlrun.datasets.parquet import ParquetSource

    if not isinstance(source, ParquetSource):
        return ""
    size = sum(file.stat().st_size for file in source.files)
    return f", {size / 1e6:,.1f} MB in {len(source.files)} file{'s' * (len(source.files) != 1)}"


def _histogram(returns: list[float], bins: int) -> list[str]:
    """Returns by how many trajectories have them, a line for each bin."""
    import numpy as np

    if not returns:
        return []
    low, high = min(returns), max(returns)
    counts, edges = np.histogram(returns, 1 if low == high else bins, (low, high) if low < high else None)
    most = counts.max()
    numbers = [f"{edge:.4g}" for edge in edges]
    width = max(map(len, numbers))
    bars = ["#" * -(-int(count) * BAR // int(most)) for count in counts]
    lines = [
        f"  {begin:>{width}} to {end:>{width}}  {bar:<{BAR}} {count:,}"
        for begin, end, bar, count in zip(numbers, numbers[1:], bars, counts, strict=False)
    ]
    return ["", "returns", *lines]
