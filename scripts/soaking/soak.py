"""scripts/soak NAME [--seconds 3600] [--out FOLDER] -- WORDS OF rlrun train
scripts/soak --page

Trains with the given words for the given time, looks at the run's processes every ten seconds, stops the run with
SIGTERM, and says how what it saw has changed: memory (proportional set size, which counts shared memory once; without
pages of files, whose share depends on what other programs run), open files, shared memory, threads and speed. The first
sixth of the time is warm-up. A fixed loop is timed beside the run, so that a machine which other work makes slower is not
taken for a run that gets slower: speed is env steps in the time of the loop. Writes tuned/results/soak/NAME.json and
NAME.png, or into FOLDER; --page writes docs/soak.md from these files.
The exit code is 1 if the run failed, or if something has grown.
"""

from __future__ import annotations

import argparse
import atexit
import datetime
import json
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "tuned" / "results" / "soak"
EVERY_SEC = 10.0
WARM_UP = 1 / 6  # share of the time that is not looked at
# What counts as flat: growth in an hour, of the straight line through what was seen after warm-up.
MEMORY_MB, FILES, SHARED_MB, THREADS = 20.0, 2.0, 1.0, 1.0
SPEED = 0.95  # the last sixth's speed, divided by that of the first sixth after warm-up
NAMES = {
    "memory_mb": ("memory (PSS)", "MB", MEMORY_MB),
    "files": ("open files", "files", FILES),
    "shared_mb": ("shared memory", "MB", SHARED_MB),
    "threads": ("threads", "threads", THREADS),
}


def fixed_loop() -> float:
    """Seconds of a fixed piece of work, of which half is Python and half is arithmetic."""
    matrix = np.random.default_rng(0).standard_normal((160, 160))
    started = time.perf_counter()
    total = 0
    for number in range(400_000):
        total += number & 7
    for _ in range(40):
        matrix = np.tanh(matrix @ matrix)
    return time.perf_counter() - started


def seen(run: psutil.Process) -> dict[str, Any]:
    """Memory, files, shared memory and threads of a process and its children. Those that have just ended are left out.
    by_program: the memory of all processes of a name, in MB, of its own and shared."""
    memory = files = threads = 0.0
    shared: dict[str, float] = {}
    by_program: dict[str, float] = {}
    for process in [run, *run.children(recursive=True)]:
        try:
            program = "the run's own process" if process.pid == run.pid else process.name()
            for line in Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines():
                if line.startswith(("Pss_Anon:", "Pss_Shmem:")):
                    amount = int(line.split()[1]) / 1024
                    memory += amount
                    key = f"{program}, {'its own' if line.startswith('Pss_Anon:') else 'shared'}"
                    by_program[key] = by_program.get(key, 0.0) + amount
            files += process.num_fds()
            threads += process.num_threads()
            for line in Path(f"/proc/{process.pid}/maps").read_text().splitlines():
                words = line.split(maxsplit=5)
                if len(words) == 6 and words[5].startswith(("/dev/shm/", "/memfd:")):
                    first, last = (int(word, 16) for word in words[0].split("-"))
                    key = f"{words[4]}:{words[2]}"
                    shared[key] = max(shared.get(key, 0.0), (last - first) / 2**20)
        except (OSError, psutil.Error):
            continue
    return {"memory_mb": memory, "files": files, "threads": threads, "shared_mb": sum(shared.values()), "by_program": by_program}


def last_row(path: Path) -> dict[str, float]:
    """The last whole row of progress.jsonl; {} before there is one."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 20_000))
            lines = file.read().split(b"\n")
    except OSError:
        return {}
    for line in reversed(lines[:-1]):
        try:
            return json.loads(line)
        except ValueError:
            continue
    return {}


def soak(name: str, seconds: float, words: list[str], out: Path) -> int:
    runs = Path(tempfile.mkdtemp(prefix="rlrun-soak-"))
    run_dir = runs / name
    command = [sys.executable, "-m", "rlrun", "train", *words, f"run_dir={run_dir}", "env_steps=1e12"]
    started = time.time()
    looks: list[dict[str, Any]] = []
    with (runs / "output.txt").open("w") as output:
        child = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=output, start_new_session=True)
        atexit.register(child.kill)  # a soak that is interrupted leaves no run behind
        run = psutil.Process(child.pid)
        while child.poll() is None and time.time() - started < seconds:
            time.sleep(EVERY_SEC)
            loop = fixed_loop()
            row = last_row(run_dir / "progress.jsonl")
            try:
                look = seen(run)
            except psutil.Error:
                break
            # Speed is the env steps between the two last rows that were logged, by the run's own clock.
            look |= {"at": time.time() - started, "loop_sec": loop, "env_steps": row.get("env_steps", 0)}
            look |= {"wall_sec": row.get("time_sec", 0.0)}
            look |= {key: row[key] for key in row if key.startswith("restarts/")}
            look["return"] = row.get("sample/return_mean")
            looks.append(look)
        alive = child.poll() is None
        if alive:
            child.send_signal(signal.SIGTERM)
        try:
            code = child.wait(timeout=180)
        except subprocess.TimeoutExpired:
            child.kill()
            code = child.wait()
    said = (runs / "output.txt").read_text()
    from rlrun.runtime.rundir import git_commit, hardware, versions

    result = {
        "name": name,
        "command": shlex.join(["rlrun", "train", *words]),
        "soak": shlex.join(["scripts/soak", name, "--seconds", f"{seconds:g}", "--", *words]),
        "date": datetime.date.today().isoformat(),
        "commit": git_commit(),
        "hardware": hardware(),
        "versions": versions(),
        "seconds": looks[-1]["at"] if looks else 0.0,
        "ran_to_the_end": alive,
        "exit_code": code,
        "looks": looks,
    }
    result |= judged(looks)
    if not alive or not looks:
        print(said[-3000:])
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
    if looks:
        draw(result, out / f"{name}.png")
    print(table([result]))
    print(grown(result))
    return 0 if alive and code == 143 and result["flat"] else 1


def judged(looks: list[dict[str, Any]]) -> dict:
    """Slopes in an hour with their standard errors, and the speed of the last sixth divided by the first's."""
    if len(looks) < 12:
        return {"slopes": {}, "speed": None, "flat": False}
    at = np.array([look["at"] for look in looks])
    after = at >= at[-1] * WARM_UP
    hours = at[after] / 3600
    slopes = {}
    for key in NAMES:
        values = np.array([look[key] for look in looks])[after]
        (slope, start), covariance = np.polyfit(hours, values, 1, cov=True)
        slopes[key] = {
            "first": float(start + slope * hours[0]),
            "last": float(start + slope * hours[-1]),
            "per_hour": float(slope),
            "error": float(np.sqrt(covariance[0, 0])),
            "most": float(values.max()),
        }
    first = (at >= at[-1] * WARM_UP) & (at < at[-1] * 2 * WARM_UP)
    last = at >= at[-1] * (1 - WARM_UP)
    speed = steps_in_a_loop(looks, last) / steps_in_a_loop(looks, first)
    # A short soak has a large error, and shows nothing.
    bounds = [(slopes[key]["per_hour"], 2 * slopes[key]["error"], NAMES[key][2]) for key in NAMES]
    flat = all(slope - error <= most and error <= most for slope, error, most in bounds)
    return {"slopes": slopes, "speed": speed, "flat": bool(flat and speed >= SPEED)}


def steps_in_a_loop(looks: list[dict[str, Any]], which: np.ndarray) -> float:
    """Env steps in the time that the fixed loop takes, over the looks that are chosen."""
    chosen = [look for look, take in zip(looks, which, strict=True) if take]
    steps = chosen[-1]["env_steps"] - chosen[0]["env_steps"]
    clock = chosen[-1]["wall_sec"] - chosen[0]["wall_sec"]
    return steps / max(clock, 1e-9) * float(np.mean([look["loop_sec"] for look in chosen]))


def draw(result: dict, path: Path) -> None:
    from rlrun.bench.charts import COLOURS, GREY, figure

    looks = result["looks"]
    minutes = np.array([look["at"] for look in looks]) / 60
    drawing, axes = figure(9.0, 4.6, nrows=2, ncols=2, sharex=True, layout="constrained")
    shown = [("memory_mb", "memory, MB"), ("shared_mb", "shared memory, MB"), ("files", "open files and threads")]
    for axis, (key, title), colour in zip(axes.flat, shown, COLOURS, strict=False):
        axis.plot(minutes, [look[key] for look in looks], color=colour, lw=1.4)
        axis.set_title(title, fontsize=9, loc="left")
        axis.set_ylim(0, 1.15 * max(look[key] for look in looks) + 1)
    axes.flat[2].plot(minutes, [look["threads"] for look in looks], color=GREY, lw=1.4)
    ends = range(6, len(looks))
    speeds = [
        (looks[end]["env_steps"] - looks[end - 6]["env_steps"])
        / max(looks[end]["wall_sec"] - looks[end - 6]["wall_sec"], 1e-9)
        * float(np.mean([look["loop_sec"] for look in looks[end - 6 : end + 1]]))
        for end in ends
    ]
    axes.flat[3].plot(minutes[6:], speeds, color=COLOURS[3], lw=1.4)
    axes.flat[3].set_title("env steps in the time of the fixed loop", fontsize=9, loc="left")
    axes.flat[3].set_ylim(0, 1.15 * max(speeds, default=1.0))
    for axis in axes[1]:
        axis.set_xlabel("minutes")
    drawing.savefig(path, dpi=110)


def table(results: list[dict]) -> str:
    """A Markdown table of several soaks."""
    lines = ["| run | minutes | env steps | memory | open files | shared memory | threads | speed at the end | restarts |"]
    lines.append("| --- " * 9 + "|")
    for result in results:
        last = result["looks"][-1] if result["looks"] else {}
        cells = [f"`{result['command']}`", f"{result['seconds'] / 60:.0f}", f"{last.get('env_steps', 0):,.0f}"]
        for key, (_, unit, _) in NAMES.items():
            if key not in result["slopes"]:
                cells.append("too few looks")
                continue
            one = result["slopes"][key]
            cells.append(f"{one['first']:.0f} to {one['last']:.0f} {unit}, {one['per_hour']:+.1f} ± {one['error']:.1f} an hour")
        cells.append("unknown" if result["speed"] is None else f"{100 * result['speed']:.1f} %")
        found = [f"{last[key]:,.0f} {key.split('/')[1]}" for key in sorted(last) if key.startswith("restarts/")]
        lines.append("| " + " | ".join([*cells, ", ".join(found) or "none"]) + " |")
    return "\n".join(lines)


def verdict(result: dict) -> str:
    """Whether all is flat, or what is not."""
    if result["flat"] or result["speed"] is None:
        return f"It is flat.{within(result)}" if result["flat"] else "It was too short."
    grew = [NAMES[key][0] for key, one in result["slopes"].items() if one["per_hour"] - 2 * one["error"] > NAMES[key][2]]
    slower = [f"speed ({100 * result['speed']:.0f} % at the end)"] if result["speed"] < SPEED else []
    if not grew + slower:  # what was seen varies so much that growth within the bounds cannot be told from none
        return "It was too short to say."
    return f"It is flat but for {' and '.join(grew + slower)}.{within(result)}"


def within(result: dict) -> str:
    """A sentence about memory that grew by less than the bound, but clearly by more than nothing; else none."""
    memory = result["slopes"]["memory_mb"]
    low = memory["per_hour"] - 2 * memory["error"]
    if not 0 < low <= MEMORY_MB:
        return ""
    return f" Its memory grew by {memory['per_hour']:.1f} MB an hour, and only a longer run can tell whether that ends."


def grown(result: dict) -> str:
    """Sentences about the programs whose memory changed most after warm-up, and between which values."""
    looks = [look for look in result["looks"] if look["at"] >= result["seconds"] * WARM_UP and "by_program" in look]
    if len(looks) < 3:
        return ""
    amounts: dict[str, np.ndarray] = {}
    for number, look in enumerate(looks):
        for name, amount in look["by_program"].items():
            program, _, kind = name.rpartition(", ")
            # Ray adds the method that an actor is in to the name of its process.
            found = amounts.setdefault(f"{program.partition('.')[0]} ({kind})", np.zeros(len(looks)))
            found[number] += amount
    hours = np.array([look["at"] for look in looks]) / 3600
    slopes = {name: float(np.polyfit(hours, amount, 1)[0]) for name, amount in amounts.items()}
    most = sorted(slopes, key=lambda name: -abs(slopes[name]))[:3]
    return "The programs whose memory changed most: " + "; ".join(
        f"{name} {slopes[name]:+.1f} MB an hour, between {amounts[name].min():.0f} and {amounts[name].max():.0f} MB"
        for name in most
    ) + "."


def page() -> None:
    from rlrun.commands.compare import commit

    results = [json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))]
    lines = [
        "<!-- scripts/soak --page makes this page; change what it is made from. -->",
        "# Long runs",
        "",
        "`scripts/soak` trains for an hour, or for as long as `--seconds` says, and looks at the run's processes every ten",
        "seconds. The first sixth of the time is not judged. A fixed loop is timed beside the run, and speed is the number of",
        "env steps in the time of one such loop. The page compares the speed of the last sixth with that of the second sixth.",
        "Other work on the machine makes this speed uneven. Memory is the proportional set size without pages of files; runs",
        "before 2026-11-26 counted those pages too. `scripts/soak --page` writes this page.",
        "",
        f"A run is called flat where its memory grows by less than {MEMORY_MB:.0f} MB an hour, less twice the error. Slower",
        f"growth cannot be seen in an hour. Kept up for a month, it could be {MEMORY_MB * 24 * 30 / 1000:.0f} GB.",
        "",
        table(results),
        "",
    ]
    for result in results:
        machine = result["hardware"]
        lines += [
            f"## {result['name']}",
            "",
            f"`{result['soak']}` ran on {result['date']} on {machine['cores']} cores of an {machine['cpu']}, "
            f"commit {commit(result['commit'])}. {verdict(result)} {grown(result)}".strip(),
            "",
            f"![{result['name']}](../tuned/results/soak/{result['name']}.png)",
            "",
        ]
    (ROOT / "docs" / "soak.md").write_text("\n".join(lines))
    print("docs/soak.md is written")


def main() -> int:
    words = sys.argv[1:][sys.argv[1:].index("--") + 1 :] if "--" in sys.argv[1:] else []
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", nargs="?")
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--page", action="store_true")
    given = parser.parse_args(sys.argv[1 : sys.argv.index("--")] if "--" in sys.argv else sys.argv[1:])
    if given.page:
        page()
        return 0
    if not given.name or not words:
        parser.error("say the name of the soak, and after -- the words of rlrun train")
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(143))  # the run that goes on is ended then
    return soak(given.name, given.seconds, words, given.out)


if __name__ == "__main__":
    raise SystemExit(main())
