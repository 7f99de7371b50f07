"""scripts/compare_peers [--rounds 3] [--seconds 20] [--algos impala,ppo,dqn]
                      [--peers rllib,sample_factory,stable_baselines3,cleanrl_style] [--folder .peers] [--json FILE]
                      [options of rlrun train, for rlrun's side]

Compares the training speed of rlrun with that of other libraries on Pong (84x84x4, Nature CNN). All do the same work
and take turns in one run. Every peer has an environment of its own in FOLDER, which is made on first use from the
package registry and takes some minutes. Before the rounds, each peer is tried with different numbers of processes and
threads, and the fastest variant is kept. The variants suit a machine with 2 cores; a larger machine is refused unless
it is restricted with taskset -c 0,1 scripts/compare_peers. The output is env steps/s (agent decisions), and how many
times as fast as each peer rlrun is: the median over rounds, with the lowest and the highest."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
PACKAGES = {  # in addition to torch, which has the version of scripts/constraints.txt
    "rllib": ["ray[rllib]==2.60.0", "psutil", "gymnasium[atari]", "box2d==2.3.10", "pygame", "ale-py", "opencv-python-headless"],
    "sample_factory": ["sample-factory==2.1.1", "gymnasium<1.0", "ale-py==0.9.1", "opencv-python-headless<5"],
    "stable_baselines3": ["stable-baselines3==2.9.2", "gymnasium[atari,box2d]", "ale-py", "opencv-python-headless"],
    "cleanrl_style": ["gymnasium[atari]", "ale-py", "opencv-python-headless"],
}
OFFLINE_PACKAGES = {"d3rlpy": ["d3rlpy==2.8.1"]}  # of the peers that offline.py compares with
KNOWN = {"impala": list(PACKAGES), "ppo": list(PACKAGES), "dqn": ["stable_baselines3", "cleanrl_style"]}
# Where rlrun's defaults differ from the others', rlrun uses the others'.
SAME_WORK = {
    "dqn": ["replay.capacity=30000", "algo.double=false", "algo.head.dueling=false"],
    "impala": ["model.observation_filter=none"],
    "ppo": ["model.observation_filter=none"],
}
START_SEC = 180.0  # time that a program may take to start, in addition to the time that it measures


class Failed(Exception):
    """Raised where a program gave no figure; the message says why."""


def program(command: list[str], seconds: float, folder: str | None = None) -> dict[str, Any] | list[str]:
    """Runs a program and returns the last line of JSON that it prints. Failed where there is none or time runs out."""
    env = {**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"), "PYTHONWARNINGS": "ignore"}
    with tempfile.TemporaryFile("w+") as out:  # a worker that outlives its program would keep a pipe open
        process = subprocess.Popen(
            command, stdout=out, stderr=subprocess.STDOUT, cwd=folder, env=env, start_new_session=True
        )
        try:
            code = process.wait(START_SEC + 2 * seconds)
        except subprocess.TimeoutExpired:
            raise Failed(f"did not end within {START_SEC + 2 * seconds:.0f} s") from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # ends its workers too
            process.wait()
        out.seek(0)
        lines = out.read().strip().splitlines()
    for line in reversed(lines if code == 0 else []):
        if line.startswith(("{", "[")):
            with contextlib.suppress(ValueError):
                return json.loads(line)
    raise Failed(last(lines, code))


def last(lines: list[str], code: int) -> str:
    """The last line that a failed program printed, and its exit code."""
    return f"{lines[-1] if lines else 'it printed nothing'} (exit code {code})"


def make_environment(peer: str, folder: Path) -> Path:
    """The Python of a peer's environment, which is made where it is missing or out of date. Failed where that fails."""
    place = folder / peer
    packages = (PACKAGES | OFFLINE_PACKAGES)[peer]
    python, stamp, wanted = place / "bin" / "python", place / ".installed", "\n".join(packages)
    if stamp.is_file() and stamp.read_text() == wanted:
        return python
    torch = next(
        line for line in (ROOT / "scripts" / "constraints.txt").read_text().splitlines() if line.startswith("torch==")
    )
    print(f"Installing {peer} into {place} ...", flush=True)
    install = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", torch, *packages]
    for command in ([sys.executable, "-m", "venv", "--clear", str(place)], install):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise Failed(f"cannot be installed: {last(done.stderr.strip().splitlines(), done.returncode)}")
    stamp.write_text(wanted)
    return python


def rlrun(algo: str, seconds: float, words: list[str]) -> dict[str, Any]:
    """Measures rlrun on Pong with its default settings, except for SAME_WORK and what `words` change."""
    return rlrun_words([f"algo={algo}", "env=Pong", *SAME_WORK.get(algo, []), *words], seconds)


def rlrun_words(words: list[str], seconds: float) -> dict[str, Any]:
    """Measures `rlrun train words...`. Failed where it ends with an error."""
    with tempfile.TemporaryDirectory() as folder:
        told = Path(folder) / "told.json"
        command = [
            sys.executable,
            "-m",
            "rlrun",
            "benchmark",
            "throughput",
            f"seconds={max(5.0, seconds):g}",
            *words,
        ]
        done = subprocess.run([*command, "--json", str(told)], capture_output=True, text=True, cwd=ROOT)
        if done.returncode:
            raise Failed(last((done.stderr.strip() or done.stdout.strip()).splitlines(), done.returncode))
        result = json.loads(told.read_text())
    made = result["resources"]
    settings = {
        name: made[name]
        for name in ("inference", "num_learners", "learner_threads", "num_samplers", "envs_per_sampler", "precision")
    }
    settings |= dict(word.split("=", 1) for word in words if not word.startswith(("algo=", "env=")))
    versions = {name: result["versions"][name] for name in ("rlrun", "torch")}
    more = {"ratio_to_bound": result["ratio"], "hardware": result["hardware"]}
    return {"env_steps_per_sec": result["reached"], "settings": settings, "versions": versions, **more}


def measured(
    contestants: dict[str, Callable[[], dict[str, Any]]], rounds: int, note: Callable[[str], None]
) -> dict[str, dict[str, Any]]:
    """Measures all contestants in turn, `rounds` times.

    Every other round is in reverse order, so that a machine that slows down as it warms up favours nobody.
    """
    results: dict[str, dict[str, Any]] = {name: {"rates": []} for name in contestants}
    for number in range(rounds):
        order = list(contestants) if number % 2 == 0 else list(reversed(contestants))
        for name in order:
            try:
                told = contestants[name]()
            except Failed as error:
                results[name]["failed"] = str(error)
                note(f"  round {number + 1}: {name} failed: {error}")
                continue
            rate = told.pop("env_steps_per_sec")
            results[name]["rates"].append((number, rate))
            results[name].update(told)
            note(f"  round {number + 1}: {name:<20} {rate:>8,.0f} env steps/s")
    return results


def ratios(results: dict[str, dict[str, Any]], peer: str) -> list[float]:
    """How many times as fast as the peer rlrun was, for each round in which both were measured."""
    ours, theirs = (dict(results[name]["rates"]) for name in ("rlrun", peer))
    return [ours[number] / theirs[number] for number in ours if number in theirs]


def table(algo: str, results: dict[str, dict[str, Any]], game: str = "Pong") -> str:
    lines = [
        f"{algo} on {game}".ljust(26)
        + "env steps/s".rjust(12)
        + "lowest".rjust(9)
        + "highest".rjust(9)
        + "  rlrun is".ljust(26)
        + "settings"
    ]
    for name, result in results.items():
        rates = [rate for _, rate in result["rates"]]
        if not rates:
            lines.append(f"  {name:<24}{'failed: ' + result['failed']}")
            continue
        times = ratios(results, name) if name != "rlrun" else []
        said = f"  {statistics.median(times):.2f} x ({min(times):.2f} to {max(times):.2f})" if times else ""
        versions = " ".join(f"{package} {version}" for package, version in result["versions"].items())
        settings = ", ".join(f"{key} {value}" for key, value in result["settings"].items())
        lines.append(
            f"  {name:<24}{statistics.median(rates):>12,.0f}{min(rates):>9,.0f}{max(rates):>9,.0f}{said:<26}{settings}; {versions}"
        )
    return "\n".join(lines)


def peer_contestant(
    peer: str, algo: str, python: Path, seconds: float, note: Callable[[str], None]
) -> Callable[[], dict[str, Any]]:
    """A function that runs the peer's fastest variant on this machine. Failed where no variant works."""
    script = str(HERE / f"{peer}_peer.py")
    ways = program([str(python), script, "--variants", algo], 10.0)
    tried: dict[str, float] = {}
    reasons = []
    for way in ways:
        try:
            told = program([str(python), script, algo, way, str(seconds)], seconds)
            tried[way] = told["env_steps_per_sec"]  # type: ignore[call-overload]
            note(f"  {peer}, {way}: {tried[way]:,.0f} env steps/s")
        except Failed as error:
            reasons.append(f"{way}: {error}")
            note(f"  {peer}, {way}: {error}")
    if not tried:
        raise Failed("; ".join(reasons))
    best = max(tried, key=tried.__getitem__)
    return lambda: program([str(python), script, algo, best, str(seconds)], seconds)  # type: ignore[return-value]


def main() -> int:
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--algos", default="impala,ppo,dqn")
    parser.add_argument("--peers", default=",".join(PACKAGES))
    parser.add_argument("--folder", type=Path, default=ROOT / ".peers")
    parser.add_argument("--json", type=Path)
    parser.add_argument("words", nargs="*", help="options of rlrun train, for rlrun's side")
    said = parser.parse_args()
    for name, known in (("algos", KNOWN), ("peers", PACKAGES)):
        for one in getattr(said, name).split(","):
            if one not in known:
                parser.error(f"--{name}: {one} is none of {', '.join(known)}")
    if said.rounds < 1 or said.seconds < 5:
        parser.error("--rounds must be at least 1 and --seconds at least 5")
    if len(os.sched_getaffinity(0)) > 2:
        parser.error("the peers' variants suit a machine with 2 cores: taskset -c 0,1 scripts/compare_peers")
    if said.json and not said.json.resolve().parent.is_dir():
        parser.error(f"--json: there is no folder {said.json.resolve().parent}")
    note = lambda line: print(line, flush=True)  # noqa: E731
    found: dict[str, Any] = {}
    for algo in said.algos.split(","):
        note(f"{algo}: finding each peer's fastest variant")
        contestants: dict[str, Callable[[], dict[str, Any]]] = {
            "rlrun": lambda algo=algo: rlrun(algo, said.seconds, said.words)
        }  # type: ignore[misc]
        broken: dict[str, dict[str, Any]] = {}
        for peer in (peer for peer in said.peers.split(",") if peer in KNOWN[algo]):
            try:
                contestants[peer] = peer_contestant(
                    peer, algo, make_environment(peer, said.folder.resolve()), said.seconds, note
                )
            except Failed as error:
                broken[peer] = {"rates": [], "failed": str(error)}
        found[algo] = measured(contestants, said.rounds, note) | broken
        if said.json:  # written after every algorithm, so that a later failure loses nothing
            said.json.write_text(
                json.dumps({"command": ["scripts/compare_peers", *sys.argv[1:]], "results": found}, indent=1) + "\n"
            )
    print()
    for algo, results in found.items():
        print(table(algo, results) + "\n", flush=True)
    return 1 if any("failed" in result for results in found.values() for result in results.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
