"""The formats in which a policy is exported, what a folder of such files holds, and the text of its README.md."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import logging
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from rlrun.core.errors import UserError
from rlrun.core.installing import install_line
from rlrun.policies.planning import SearchPolicy
from rlrun.runtime.exported_policy import Part
from rlrun.runtime.trained import Trained

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


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Turns what the file system refuses into a UserError."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{folder} cannot be written: {error.strerror}") from None


@contextmanager
def staged(folder: Path) -> Iterator[Path]:
    """A folder inside `folder`, in which files are made before they are known to be right; it is removed afterwards.
    Raises UserError if `folder` cannot be written, or has a name that PyTorch's files cannot have."""
    try:
        str(folder.absolute()).encode()
    except UnicodeEncodeError:  # PyTorch would abort this process
        shown = str(folder.absolute()).encode(errors="replace").decode()
        raise UserError(f"PyTorch cannot write to {shown}, whose name is not valid UTF-8: rename that folder") from None
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        made = tempfile.TemporaryDirectory(prefix=".export-", dir=folder)
    with made as path:
        yield Path(path)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Leaves out what PyTorch says about its own code and its absent sister torchvision while it writes .onnx."""

    def ours(record: logging.LogRecord) -> bool:
        return not record.getMessage().startswith("torchvision is not installed. Skipping")

    log = logging.getLogger("torch.onnx._internal.exporter._registration")
    log.addFilter(ours)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*treespec, LeafSpec.* is deprecated", category=FutureWarning)
            yield
    finally:
        log.removeFilter(ours)


def sums_of(files: list[Path]) -> dict[str, str]:
    """The sha256 sum of every file, by name."""
    made = {}
    for path in files:
        with path.open("rb") as file:
            made[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
    return made


def from_before(folder: Path, parts: list[Part], weights: str) -> dict[str, dict[str, str]]:
    """The formats that an earlier export of the same policy has left in the folder, each with the sums of its files.

    A format counts only if all its files are what that export checked, because another export, of another policy or cut
    short, may have written some of them since."""
    try:
        told = json.loads((folder / "policy.json").read_text())
    except (OSError, ValueError):
        return {}
    if not isinstance(told, dict) or told.get("weights") != weights or not isinstance(told.get("sha256"), dict):
        return {}
    made = {}
    for format in FORMATS:
        names = [f"{part.file}.{format}" for part in parts]
        # An .onnx file of a very large policy has its weights in a second file, whose name begins with its own.
        known = {
            file: value for file, value in told["sha256"].items() if any(f"{file}.".startswith(f"{n}.") for n in names)
        }
        with suppress(OSError):
            if known.keys() >= set(names) and sums_of([folder / file for file in known]) == known:
                made[format] = known
    return made


def strangers(folder: Path, parts: list[Part], formats: tuple[str, ...]) -> list[str]:
    """The names of files of policies that are in the folder and are not of this one."""
    own = {f"{part.file}.{name}" for part in parts for name in formats}
    found = {path.name for name in FORMATS for path in folder.glob(f"policy*.{name}")}
    return sorted(found - own)


def require(name: str) -> None:
    if missing_of(name):
        raise UserError(f"{why_left_out(name)}, or choose --formats pt2")


def opening(trained: Trained, others: list[str]) -> str:
    """The head of README.md. others: the files in the folder that are not of this policy."""
    how = "without a search" if isinstance(trained.policy, SearchPolicy) else "as\n`rlrun evaluate` lets it act"
    explores = getattr(getattr(trained.config.algo, "exploration", None), "eval_epsilon", 0.0)
    how += f" but for its random actions (eval_epsilon={explores:g})" if explores else ""
    said = f"\nThis page does not describe {', '.join(others)}, because no export of this policy wrote them.\n"
    return f"""# The policy of {trained.run_dir.name}

{trained.config.algo.name} on {trained.spec.name}, after {trained.clock.env_steps:,} env steps. It acts greedily, {how},
and needs no rlrun. policy.json holds the same facts for programs.

Observations are those of the run's environment after its preprocessing: filters and the division of pixels by 255 are
in the policy, while resizing, grey screens, frame skip and stacks of frames (the newest last) are not. Choices
among observations are numbered as the environment numbers them, and actions are as it takes them, unless something else
is said of a policy below.
{said if others else ""}"""


def recipe(part: Part, told: dict[str, Any]) -> str:
    """The part of README.md about one policy's files. told: its part of policy.json."""
    lines = ["## The files" if part.name is None else f"## The policy {part.name}", ""]
    lines += [told["rows"] + ".", ""] if "rows" in told else []
    lines += [f"Searches: {told['searches']}.", ""] if "searches" in told else []
    if "actions" in told:
        lines += [f"Actions are {told['actions']}.", ""]
        lines += [*(f"- {agent}: {space}" for agent, space in told["action_spaces"].items()), ""]
    lines += ["| goes in | shape | type | meaning |", "| --- | --- | --- | --- |"]
    for kind in ("obs", "state"):
        for name, one in told[kind].items():
            meaning = one.get("meaning", "zeros at first, then what the last call returned" if kind == "state" else "")
            lines.append(f"| {kind} {name} | {_shape(one)} | {one['dtype']} | {meaning} |")
    lines += ["| is_first | [batch] | bool | true where an episode begins, which forgets the state |", ""]
    lines += ["| comes out | shape | type |", "| --- | --- | --- |"]
    lines += [f"| {name} | {_shape(one)} | {one['dtype']} |" for name, one in told["action"].items()]
    lines += [f"| state {name} | {_shape(one)} | {one['dtype']} |" for name, one in told["state"].items()] + [""]
    if "use" in told:
        lines += [f"With PyTorch and `{part.file}.pt2`:", "", "```python", "import torch", *told["use"], "```", ""]
    if "safetensors" in told:
        lines += [f"`{part.file}.safetensors` has the weights alone, for a program that builds the network itself:", ""]
        lines += ["```python", "import safetensors.torch", told["safetensors"], "```", ""]
    if "onnx" in told:
        lines += [f"With ONNX Runtime and `{part.file}.onnx`:", "", "```python", "import numpy as np, onnxruntime"]
        lines += [*told["onnx"]["use"], "```", ""]
        lines += [f"Inputs: {', '.join(told['onnx']['inputs'])}. Outputs: {', '.join(told['onnx']['outputs'])}.", ""]
    return "\n".join(lines)


def _shape(told: dict[str, Any]) -> str:
    return f"[{', '.join(map(str, told['shape']))}]"
