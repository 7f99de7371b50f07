"""scripts/offline_speed [--seconds 20] [--rounds 3] [--rows 500000] [--frames 20000] [--only vectors,frames]

Trains BC from a data set that is ten times as large as data.buffer, so that rows are read while they are drawn, and
from the same set held in memory, in turn. It prints the updates/s of both, the median ratio over rounds, and the share
of time that the learner waits for rows. Before that, it measures how many rows/s one thread reads. Vectors are
CartPole's rows, and frames those of Pong (84x84, stacks of 4), both of random play."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

KINDS = {
    "vectors": ("CartPole-v1", ["algo.batch_size=1024"]),
    "frames": ("Pong", ["algo.batch_size=128"]),
}
ENV = {**os.environ, "OMP_NUM_THREADS": "1"}


def rlrun(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "rlrun", *words], check=True, env=ENV, stdout=subprocess.DEVNULL)


def rate(run: Path) -> dict[str, float]:
    """Updates/s and shares of time over the second half of a run's rows."""
    rows = [json.loads(line) for line in (run / "progress.jsonl").read_text().splitlines()]
    late = rows[len(rows) // 2 :]
    first, last = late[0], late[-1]
    draws = statistics.mean(row["time/draw_share"] for row in late[1:])
    learns = statistics.mean(row["time/learn_share"] for row in late[1:])
    updates = (last["updates"] - first["updates"]) / (last["time_sec"] - first["time_sec"])
    return {"updates_per_sec": updates, "draw_share": draws, "learn_share": learns}


def main() -> int:
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--frames", type=int, default=20_000)
    parser.add_argument("--only", default=",".join(KINDS))
    said = parser.parse_args()
    from rlrun.datasets.open import open_source
    from rlrun.datasets.parquet import ParquetSource

    short = False
    for kind in said.only.split(","):
        env, sizes = KINDS[kind]
        many = said.rows if kind == "vectors" else said.frames
        with tempfile.TemporaryDirectory() as made:
            place = Path(made)
            tiny = ["algo=a2c", f"env={env}", "env_steps=200", "logger=[]", "resources.inference=serial"]
            rlrun("train", *tiny, f"run_dir={place / 'run'}")
            rlrun("record", str(place / "run"), f"to={place / 'set'}", f"env_steps={many}", "random")
            source = open_source(str(place / "set"))
            assert isinstance(source, ParquetSource)
            begun, rows = time.perf_counter(), 0
            for piece in range(source.pieces()):
                rows += len(source.block(piece).rows["reward"])
            print(f"{kind}: one thread reads {rows / (time.perf_counter() - begun) / 1e6:.2f}M rows/s", flush=True)
            total = sum(source.rows_of)
            found: dict[str, list[dict[str, float]]] = {"memory": [], "files": []}
            for number in range(said.rounds):
                for way, buffer in (("memory", total * 2), ("files", total // 10)):
                    run = place / f"{way}-{number}"
                    words: list[Any] = ["algo=bc", f"env={env}", f"data.path={place / 'set'}", f"data.buffer={buffer}"]
                    stop = [
                        f"stop.wall_sec={said.seconds}",
                        "env_steps=1e10",
                        "log_every_sec=1",
                        "log_every_steps=null",
                    ]
                    threads = ["resources.learner_threads=1", "checkpoint.every_sec=null", "checkpoint.every=null"]
                    rlrun("train", *words, *sizes, *stop, *threads, "logger=[]", f"run_dir={run}")
                    found[way].append(rate(run))
        for way, runs in found.items():
            told = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
            print(f"{kind}, {way}: " + ", ".join(f"{name} {value:.3g}" for name, value in told.items()), flush=True)
        ratios = [b["updates_per_sec"] / a["updates_per_sec"] for a, b in zip(*found.values(), strict=True)]
        print(f"{kind}: files reach {statistics.median(ratios):.3f} of memory ({min(ratios):.3f} to {max(ratios):.3f})")
        short = short or statistics.median(ratios) < 0.9
    return 1 if short else 0


if __name__ == "__main__":
    sys.exit(main())
