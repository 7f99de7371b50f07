"""rlrun export RUN_DIR [checkpoint=last|best|<env steps>] [--formats pt2,safetensors,onnx] [--dir DIR]

Writes the trained policy with its filters, for programs that do not have rlrun: policy.pt2 (torch.export, for any batch
size, with explicit recurrent state), policy.safetensors (the weights), policy.onnx, and policy.json, which describes
the inputs and outputs. Each file is checked against a game that the run's own policy plays, or against what it does for
random observations if the run learnt from data and has no environment. --formats defaults to all whose packages are
installed (`rlrun setup export onnx` installs those of .safetensors and .onnx); a line says what is left out. --dir
defaults to RUN_DIR/export. policy.json and README.md describe the files that an earlier export of the same policy left
there too.

A run of algo=multi has policy.<name>.pt2 and so on for each policy with weights; policy.json tells which agents each
plays, and why one without weights is not exported. A run of algo=self_play has the newest weights, without snapshots.
qmix, vdn, iql and maddpg have one policy, whose rows hold all agents of an environment. Where agents with unlike action
spaces share a policy, policy.json says how its actions become those of each."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from rlrun.cli import run_dir_argument, take_flags, take_trust
from rlrun.core.errors import UserError, closest


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    checkpoint: str | int


def main(words: list[str]) -> int:
    if any(word in ("-h", "--help") for word in words):
        print(__doc__)
        return 0
    trusted, words = take_trust(words)
    flags, rest = take_flags(words, {"--formats": str, "--dir": str})
    path, rest = run_dir_argument(rest, "export")
    from rlrun.config.types import parse_assignments, typed

    options = typed(ExportOptions, {"checkpoint": "last", **parse_assignments(rest)})
    from rlrun.runtime.export import write
    from rlrun.runtime.export_files import FORMATS, installed, why_left_out
    from rlrun.runtime.exported_policy import parts_of

    asked = flags["--formats"]
    formats = installed() if asked is None else tuple(dict.fromkeys(name for name in asked.split(",") if name))
    for name in formats:
        if name not in FORMATS:
            raise UserError(f"There is no format {name!r}.{closest(name, FORMATS)} There are {', '.join(FORMATS)}.")
    if not formats:
        raise UserError(f"--formats names none of {', '.join(FORMATS)}")
    import torch

    from rlrun.runtime.trained import load

    torch.set_num_threads(1)
    trained = load(path, str(options.checkpoint), trusted)
    folder = Path(flags["--dir"]) if flags["--dir"] else path / "export"
    for file, checked in write(trained, folder, formats):
        print(f"{file}{'  ' if checked else ''}{checked}")
    for name in FORMATS:
        if asked is None and name not in formats:
            print(f".{name} is left out: {why_left_out(name)}")
    others = json.loads((folder / "policy.json").read_text()).get("of_other_policies", [])
    if others:
        print(f"{folder} also has {', '.join(others)}: no export of this policy wrote them.")
    for name, why in parts_of(trained)[1].items():
        print(f"The policy {name} is not exported: {why}.")
    print("README.md and policy.json tell how a program plays with the policy")
    return 0
