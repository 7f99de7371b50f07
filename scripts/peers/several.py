"""scripts/compare_peers --several [--rounds 3] [--seconds 20] [--games two_step,simple_spread] [--json FILE]

Compares the training speed of rlrun's QMIX with that of a plain loop in the manner of PyMARL and EPyMARL, in
pymarl_style_peer.py: one environment, its agents in one batch, EPyMARL's networks, and one update from 32 episodes after
every episode. rlrun has the same networks and makes as many updates from as many rows per env step. Both take turns in
one run, and the loop uses one or two threads, whichever is faster. The output is env steps/s, and how many times as fast
rlrun is: the median over rounds, with the lowest and the highest. simple_spread needs '.[multi-agent]'."""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

from compare import Failed, measured, peer_contestant, ratios, rlrun_words, table

# rlrun's words for the same networks and updates. Sequences are whole episodes and the row that resets each.
SAME = {
    "two_step": ("TwoStepGame-v0", 3),
    "simple_spread": ("simple_spread_v3", 26),
}


def words_of(game: str) -> list[str]:
    """The words of rlrun train that do the peer's work."""
    env, rows = SAME[game]
    steps = rows - 1  # the row that resets an environment is no env step
    return [
        f"env={env}",
        "model=auto",
        "model.hidden=[64,64]",
        "model.activation=relu",
        f"algo.sequence_length={rows}",
        f"algo.sequence_stride={rows}",
        f"algo.fragment_length={rows if rows > 8 else 8 * rows}",
        "algo.batch_size=32",
        f"algo.replay_ratio={32 * rows / steps}",  # an update from 32 sequences for every episode
        "algo.learning_starts=1000",
        f"replay.capacity={5000 * rows}",
        "algo.hypernet_layers=2",
        "algo.optimizer.kind=adam",
        "algo.target_update_interval=200",
        "algo.exploration.epsilon=0.05",
    ]


def main() -> int:
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--several", action="store_true", required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--games", default=",".join(SAME))
    parser.add_argument("--json", type=Path)
    parser.add_argument("words", nargs="*", help="options of rlrun train, for rlrun's side")
    said = parser.parse_args()
    for game in said.games.split(","):
        if game not in SAME:
            parser.error(f"--games: {game} is none of {', '.join(SAME)}")
    if said.rounds < 1 or said.seconds < 5:
        parser.error("--rounds must be at least 1 and --seconds at least 5")
    note = lambda line: print(line, flush=True)  # noqa: E731
    found: dict[str, Any] = {}
    for game in said.games.split(","):
        note(f"qmix on {game}: finding the loop's faster variant")
        try:
            loop = peer_contestant("pymarl_style", game, Path(sys.executable), said.seconds, note)
        except Failed as error:
            note(f"  {error}")
            return 1
        ours = partial(rlrun_words, ["algo=qmix", *words_of(game), *said.words], said.seconds)
        found[game] = measured({"rlrun": ours, "pymarl_style": loop}, said.rounds, note)
        if said.json:
            command = ["scripts/compare_peers", *sys.argv[1:]]
            said.json.write_text(json.dumps({"command": command, "results": found}, indent=1) + "\n")
    print()
    for game, results in found.items():
        print(table("qmix", results, game) + "\n", flush=True)
    return (
        1
        if any(
            "failed" in result or not ratios(results, "pymarl_style")
            for results in found.values()
            for result in results.values()
        )
        else 0
    )


if __name__ == "__main__":
    sys.exit(main())
