"""scripts/compare_peers --offline [--rounds 3] [--seconds 20] [--nets 3x256,2x256] [--peers d3rlpy,corl_style]
                                [--folder .peers] [--json FILE] [options of rlrun train, for rlrun's side]

Compares how fast rlrun's CQL learns with d3rlpy's and with a plain loop that takes the steps of CORL's single file
(corl_style_cql_peer.py). All learn from the same 50,000 random rows of HalfCheetah's sizes (17 observations, 6 actions),
with the same networks, batches of 256 and 10 actions drawn per row in each of three ways, on one thread, and take turns
in one run. rlrun's side is `rlrun train` with a data set on the disk. The output is updates/s, the CPU time of an update,
and how many times as fast rlrun is: the median over rounds, with the lowest and the highest. The last line of every
network says whether rlrun makes 1.5 times the updates/s of the faster peer."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

from compare import HERE, ROOT, Failed, make_environment, program
from offline_common import NETS

PEERS = ("d3rlpy", "corl_style")
BAR = 1.5  # updates/s of rlrun, in those of the faster peer
WAY = "1 thread"


def spread(numbers: list[float], digits: int = 2) -> str:
    """Median, lowest and highest."""
    return f"{statistics.median(numbers):.{digits}f} ({min(numbers):.{digits}f} to {max(numbers):.{digits}f})"


def table(nets: str, found: dict[str, list[dict[str, Any]]]) -> tuple[str, bool]:
    """The lines about one network, and whether rlrun reaches BAR. Rounds of all programs are side by side."""
    lines = [f"CQL, {nets}"]
    for name, rounds in found.items():
        rates, cpu = ([one[key] for one in rounds] for key in ("updates_per_sec", "cpu_sec_per_update"))
        versions = " ".join(f"{package} {version}" for package, version in rounds[-1]["versions"].items())
        line = f"  {name:<12}{spread(rates)} updates/s; {spread([1e3 * x for x in cpu], 0)} ms CPU; {versions}"
        if name != "rlrun":
            times = {
                key: [(ours[key] / its[key]) ** sign for ours, its in zip(found["rlrun"], rounds, strict=True)]
                for key, sign in (("updates_per_sec", 1), ("cpu_sec_per_update", -1))
            }
            line += (
                f"; rlrun is {spread(times['updates_per_sec'])} x, and {spread(times['cpu_sec_per_update'])} x by CPU"
            )
        lines.append(line)
    others = [rounds for name, rounds in found.items() if name != "rlrun"]
    fastest = [max(one["updates_per_sec"] for one in turn) for turn in zip(*others, strict=True)]
    ratios = [one["updates_per_sec"] / best for one, best in zip(found["rlrun"], fastest, strict=True)]
    reached = statistics.median(ratios) >= BAR
    lines.append(
        f"  rlrun is {spread(ratios)} x the faster peer: the bar of {BAR} is {'met' if reached else 'not met'}"
    )
    return "\n".join(lines), reached


def main() -> int:
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--offline", action="store_true", required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--nets", default=",".join(NETS))
    parser.add_argument("--peers", default=",".join(PEERS))
    parser.add_argument("--folder", type=Path, default=ROOT / ".peers")
    parser.add_argument("--json", type=Path)
    parser.add_argument("words", nargs="*", help="options of rlrun train, for rlrun's side")
    said = parser.parse_args()
    for name, known in (("nets", NETS), ("peers", PEERS)):
        for one in getattr(said, name).split(","):
            if one not in known:
                parser.error(f"--{name}: {one} is none of {', '.join(known)}")
    if said.rounds < 1 or said.seconds < 5:
        parser.error("--rounds must be at least 1 and --seconds at least 5")
    try:
        pythons = {"rlrun": Path(sys.executable)} | {
            peer: make_environment(peer, said.folder.resolve()) if peer == "d3rlpy" else Path(sys.executable)
            for peer in said.peers.split(",")
        }
        results: dict[str, dict[str, list[dict[str, Any]]]] = {}
        for nets in said.nets.split(","):
            found = results[nets] = {name: [] for name in pythons}
            for number in range(said.rounds):
                # Every other round is in reverse order, so that a machine that slows down favours nobody.
                for name in list(pythons) if number % 2 == 0 else list(reversed(pythons)):
                    command = [str(pythons[name]), str(HERE / f"{name}_cql_peer.py"), nets, WAY, str(said.seconds)]
                    told = program([*command, *(said.words if name == "rlrun" else [])], said.seconds)
                    assert isinstance(told, dict)
                    found[name].append(told)
                    print(
                        f"  {nets}, round {number + 1}: {name:<12}{told['updates_per_sec']:>8.2f} updates/s"
                        f"{1e3 * told['cpu_sec_per_update']:>8.1f} ms CPU",
                        flush=True,
                    )
            if said.json:
                command = ["scripts/compare_peers", *sys.argv[1:]]
                said.json.write_text(json.dumps({"command": command, "results": results}, indent=1) + "\n")
    except Failed as error:
        print(f"  {error}")
        return 1
    print()
    shown = [table(nets, found) for nets, found in results.items()]
    print("\n\n".join(text for text, _ in shown))
    return 0 if all(reached for _, reached in shown) else 1


if __name__ == "__main__":
    sys.exit(main())
