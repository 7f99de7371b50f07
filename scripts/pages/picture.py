"""scripts/docs --picture [FILE]

Draws the picture at the top of the README, docs/pictures/curves.png, or FILE: learning curves of runs whose results
are in tuned/results. Each curve over several seeds is their mean, with its band."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "tuned" / "results"
PICTURE = ROOT / "docs" / "pictures" / "curves.png"
sys.path.insert(0, str(ROOT))

SEEDS = range(1, 6)


class Panel(NamedTuple):
    title: str
    groups: list[tuple[str, list[str]]]  # label, files of tuned/results without .json


def learnt(env: str, *runs: str) -> list[tuple[str, list[str]]]:
    """The runs of five seeds in tuned/results/learning, each named ALGO-STEPS."""
    names = (run.split("-") for run in runs)
    return [(algo.upper(), [f"learning/rlrun-{algo}-{env}-{steps}-seed{seed}" for seed in SEEDS]) for algo, steps in names]


PANELS = [
    Panel("CartPole-v1", learnt("CartPole-v1", "ppo-50000", "a2c-50000", "dqn-50000")),
    Panel("LunarLander-v3", learnt("LunarLander-v3", "ppo-300000")),
    Panel("Pendulum-v1", learnt("Pendulum-v1", "sac-10000", "td3-10000", "ddpg-10000")),
    Panel("Acrobot-v1", learnt("Acrobot-v1", "ppo-100000", "a2c-100000", "dqn-100000")),
    Panel("Pong", [("PPO", ["ppo_pong"])]),
    Panel("Pong at 42x42", [("IMPALA", ["impala_pong/Pong-impala_pong-seed1"]), ("RAINBOW", ["rainbow_pong42"]), ("DQN", ["dqn_pong42"]), ("PQN", ["pqn_pong42"])]),
]
LABELS = {"RAINBOW": "Rainbow"}


def curve(name: str):
    """The env steps and returns of a result."""
    from rlrun.bench.charts import Curve

    found = json.loads((RESULTS / f"{name}.json").read_text())
    return Curve([point[0] for point in found["curve"]], [point[-1] for point in found["curve"]])


def draw():
    from rlrun.bench import charts

    made, axes = charts.figure(10.0, 4.6, nrows=2, ncols=3)
    for axis, panel in zip(axes.flat, PANELS, strict=True):
        groups = [charts.Group(LABELS.get(label, label), [curve(name) for name in names]) for label, names in panel.groups]
        largest = max(one.x[-1] for group in groups for one in group.curves)
        scale, unit = charts.unit(largest)
        charts.draw(axis, groups, f"env steps, {unit}", scale)
        axis.set_title(panel.title, fontsize=10, loc="left")
        axis.legend(frameon=False, fontsize=8, loc="best")
    for axis in axes[:, 0]:
        axis.set_ylabel("return of full games")
    made.tight_layout()
    return made


def smaller(path: Path) -> None:
    """Gives a PNG a palette of 128 colours, which makes it three times as small."""
    from PIL import Image  # matplotlib needs it, too

    with Image.open(path) as drawn:
        made = drawn.convert("RGB").quantize(128, dither=Image.Dither.NONE)
    made.save(path, optimize=True)


def main() -> int:
    words = sys.argv[1:]
    if len(words) > 1 or any(word.startswith("-") for word in words):
        print(__doc__)
        return 2
    from rlrun.bench import charts

    out = Path(words[0]) if words else PICTURE
    out.parent.mkdir(parents=True, exist_ok=True)
    charts.save(draw(), out, dpi=100)
    smaller(out)
    print(out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
