"""The formats in which a policy is exported, and what a folder of such files holds."""

from __future__ import annotations

import hashlib
import importlib.util
import json
from pathlib import Path

import torch

from rlrun.core.errors import UserError
from rlrun.core.installing import install_line
from rlrun.runtime.exported_policy import Part

FORMATS = ("pt2", "safetensors", "onnx")
EXTRAS = {"safetensors": "export", "onnx": "onnx"}  # what is installed for a format


def missing_of(name: str) -> list[str]:
    """The packages that a format needs and this machine has not."""
    needed = {"safetensors": ("safetensors",), "onnx": ("onnx", "onnxscript", "onnxruntime")}.get(name, ())
    return [package for package in needed if importlib.util.find_spec(package) is None]


def installed() -> tuple[str, ...]:
    """The formats that can be written here."""
    return tuple(name for name in FORMATS if not missing_of(name))


def why_left_out(name: str) -> str:
    """What a format lacks here, and the line that installs it."""
    return f"{name} needs {', '.join(missing_of(name))}: {install_line(EXTRAS[name])}"


def fingerprint(parts: list[Part]) -> str:
    """The sha256 sum of all weights: the same where files are of the same policy."""
    made = hashlib.sha256()
    for part in parts:
        for name, value in part.trained.policy.state_dict().items():
            made.update(f"{part.file} {name} {value.dtype} {list(value.shape)}".encode())
            made.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return made.hexdigest()


def from_before(folder: Path, parts: list[Part], weights: str) -> tuple[str, ...]:
    """The formats whose files an earlier export of the same policy has left in the folder."""
    try:
        told = json.loads((folder / "policy.json").read_text())
    except (OSError, ValueError):
        return ()
    if not isinstance(told, dict) or told.get("weights") != weights or not isinstance(told.get("formats"), list):
        return ()
    return tuple(
        name
        for name in FORMATS
        if name in told["formats"] and all((folder / f"{part.file}.{name}").is_file() for part in parts)
    )


def strangers(folder: Path, parts: list[Part], formats: tuple[str, ...]) -> list[str]:
    """The names of files of policies that are in the folder and are not of this one."""
    own = {f"{part.file}.{name}" for part in parts for name in formats}
    found = {path.name for name in FORMATS for path in folder.glob(f"policy*.{name}")}
    return sorted(found - own)


def require(name: str) -> None:
    if missing_of(name):
        raise UserError(f"{why_left_out(name)}, or choose --formats pt2")
