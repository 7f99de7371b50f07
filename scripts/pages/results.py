"""docs/results.md: the bars of all tuned files, and what was measured."""

from __future__ import annotations

from typing import Any

import yaml
from layout import MADE, ROOT, table

from rlrun.config.paths import options


def results() -> str:
    met, missed, waiting = [], [], []
    for name in options("tuned"):
        values = yaml.safe_load((ROOT / "tuned" / f"{name}.yaml").read_text())
        bar, found = values.get("expected"), values.get("measured")
        if not bar or bar.get("return") is None:
            continue
        mark = f"{float(bar['return']):g} within {float(bar['env_steps']):,.0f}"
        if bar.get("metric") == "greedy":
            mark += ", greedy"
        if not found or found.get("return") is None:
            waiting.append((f"`{name}`", mark, bar["source"]))
            continue
        returns, steps, seconds, seeds = (_list(found.get(key)) for key in ("return", "env_steps", "wall_sec", "seeds"))
        reached = [float(r) >= float(bar["return"]) and float(at) <= 1.01 * float(bar["env_steps"]) for r, at in zip(returns, steps)]
        row = (
            f"`{name}`",
            mark,
            bar["source"],
            ", ".join(f"{float(r):g}" for r in returns) + _of_games(_list(found.get("games")), len(returns)),
            ", ".join(f"{float(at):,.0f}" for at in steps),
            ", ".join(f"{float(sec):,.0f}" for sec in seconds) or "not noted",
            ", ".join(map(str, seeds)) or "not noted",
            f"`{found['command']}`" if found.get("command") else "not noted",
            found.get("machine", "not noted"),
        )
        (met if all(reached) else missed).append(row)
    bars = ("tuned file", "bar (return within env steps)", "where the bar is from")
    head = (*bars, "return", "at env steps", "seconds", "seeds", "command", "machine")
    return f"""{MADE}
# Results

A tuned file holds hyperparameters, a bar ([words](start.md#words-of-these-pages)) and, if it was run, the result.
`rlrun train tuned=NAME` uses it. A return is that of the full game, never clipped. It is the mean of the last 100 training games
or, where the bar says greedy, of 100 greedy games on seeds that training never used; where it is the mean of another
number of games, the row says so. Env steps are decisions of the agent; in Atari games each is four frames. Other work
ran beside most of these runs, so that seconds are upper bounds. `rlrun benchmark tuned` measures them again. Some bars
are weaker than the figure that they are from, which the column beside them quotes.

RLlib's published tables, with what rlrun measured beside them, are in [TABLES.md](../tuned/results/TABLES.md). The
defaults of rlrun beside those of other libraries are in [learning.md](learning.md).

## Bars that are met on the seeds named

{table(head, met)}
## Bars that are not met yet

{table(head, missed)}
## Tuned files that have not been run to their bar

{table(bars, waiting)}
## Curves

The curves of the runs in [RLlib's tables](../tuned/results/TABLES.md) are in `tuned/results/tables.html`.

![Pong at 42x42](../tuned/results/pong42.png)

`rlrun train tuned=rainbow/pong42 seed=1` and `rlrun train tuned=pqn/pong42 seed=1`, drawn by `rlrun plot` from
`tuned/results/rainbow_pong42.json` and `tuned/results/pqn_pong42.json`.
"""


def _of_games(games: list[int], returns: int) -> str:
    """How many games each return is the mean of, where they are not 100."""
    if not games:
        return ""
    return f" ({', '.join(map(str, games))} games{' each' * (len(games) < returns)})"


def _list(value: Any) -> list:
    return value if isinstance(value, list) else [] if value is None else [value]
