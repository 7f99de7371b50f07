"""Checkpoints: directories with tensors, JSON and a sha256 manifest. They are written under a temporary name, fsynced
and renamed.

    checkpoints/000000040000/    policy.pt  algorithm.pt  sampler.pt  run.json  manifest.json
                                 [replay.pt  replay-0.bin ...  replay-1.pt ...]
    checkpoints/best.json        the name of the best one
    checkpoints/best-000000040000/  the best one, if a later update of the same env steps has taken its name

They contain no pickled code: core/tensor_file.py is the only loader. A damaged file is reported by name; a run never
falls back to a fresh start.
"""

from __future__ import annotations

import fnmatch
import hashlib
import io
import json
import os
import re
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from rlrun.core.errors import Notice, RunFailed, UserError
from rlrun.core.numbers import whole_number
from rlrun.core.run_lock import held, holder, this_process
from rlrun.core.tensor_file import read_tensors

FORMAT = 1
PARTS = ("policy", "algorithm", "sampler")  # the tensors of every run
ROWS = "replay-*.bin"  # files that hold the rows in replay
UMASK = os.umask(0o077)  # reading it changes it, which two threads must not do at once: it is read here alone
os.umask(UMASK)
BEST = "best-"  # begins the name of a best checkpoint whose own name a later update of the same env steps has taken
MAX_FAILURES = 3  # failed saves in a row after which the run ends


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_folder(folder: Path) -> None:
    """Waits until a folder and all that lies in it are on the disk."""
    for path in folder.rglob("*"):
        _fsync(path)
    _fsync(folder)


def _compact(state: Any) -> Any:
    """Gives tensors that are part of a larger memory their own, since torch.save writes a tensor's whole storage."""
    if isinstance(state, Mapping):
        return {name: _compact(value) for name, value in state.items()}
    if isinstance(state, list | tuple):
        return type(state)(_compact(value) for value in state)
    part = isinstance(state, torch.Tensor) and state.untyped_storage().nbytes() > state.numel() * state.element_size()
    return state.clone() if part else state


def as_bytes(state: dict) -> bytes:
    """Returns nested tensors and numbers as the bytes of a checkpoint's file."""
    file = io.BytesIO()
    torch.save(_compact(state), file)
    return file.getvalue()


def from_bytes(data: bytes) -> dict:
    """Returns what as_bytes() was given."""
    return read_tensors(data)


def copied(state: Any) -> Any:
    """Returns a copy of nested tensors, in main memory, and of the dicts and lists that hold them."""
    if isinstance(state, Mapping):
        return {name: copied(value) for name, value in state.items()}
    if isinstance(state, list | tuple):
        return type(state)(copied(value) for value in state)
    return state.detach().to("cpu", copy=True) if isinstance(state, torch.Tensor) else state


def _link(source: str, target: str) -> None:
    """Gives a file a second name, or copies it where the disk has no such names."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def write_atomically(path: Path, text: str | bytes | Iterable[bytes], folder: Path | None = None) -> None:
    """Writes the text, the bytes, or one part after another, such that the file is either complete or unchanged. A
    symbolic link is replaced, not followed.

    folder: where the half-written file is, by default beside the file. It must be on the same file system."""
    descriptor, temporary = tempfile.mkstemp(dir=folder or path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            if isinstance(text, str):  # a path in it may have bytes that are not UTF-8, and they are written unchanged
                text = text.encode(errors="surrogateescape")
            parts = [text] if isinstance(text, bytes) else text
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~UMASK)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def write_temporaries(folder: Path) -> list[Path]:
    """What write_atomically() has left in a folder when its process was killed."""
    names = "summary.json", "config.yaml", "mlflow.json", "best.json", "run.json", "manifest.json", "progress.jsonl"
    pattern = re.compile(rf"\.({'|'.join(re.escape(name) for name in names)})\.[a-z0-9_]{{8}}")
    return sorted(p for p in _listed(folder) if pattern.fullmatch(p.name) and p.is_file() and not p.is_symlink())


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


class Checkpoints:
    """The checkpoints of one run directory."""

    def __init__(self, directory: Path, keep: int):
        self.directory, self.keep = directory, keep
        self.failures = 0

    def names(self) -> list[str]:
        """The names of complete checkpoints, oldest first, without a best one that has lost its own name."""
        return self._named("[0-9]+")

    def _named(self, pattern: str) -> list[str]:
        return [p.name for p in _listed(self.directory) if p.is_dir() and re.fullmatch(pattern, p.name)]

    def _kept(self) -> list[str]:
        """The names of best checkpoints that have lost their own name (BEST)."""
        return self._named(f"{BEST}[0-9]+")

    def after(self, name: str) -> list[str]:
        """The names of all checkpoints that are later than this one."""
        # One that has lost its own name is before the one that has it.
        moments = {n: (int(n.removeprefix(BEST)), not n.startswith(BEST)) for n in (*self.names(), *self._kept())}
        return [n for n in moments if moments[n] > moments[name]]

    def name_at(self, env_steps: int, updates: int) -> str:
        """The name of the checkpoint of this moment. Two updates of the same env steps may have one each."""
        name = f"{env_steps:012d}"
        kept = BEST + name
        return kept if self._updates(kept) == updates != self._updates(name) else name

    def _updates(self, name: str) -> int | None:
        """The updates that a checkpoint was saved after; None if there is none of this name, or if it is damaged."""
        try:
            return json.loads((self.directory / name / "run.json").read_text()).get("updates")
        except (OSError, ValueError, AttributeError):
            return None

    def unfinished(self) -> list[Path]:
        """Checkpoints that a killed process was writing or replacing, and other half-written files beside them."""
        parts = [p for p in _listed(self.directory) if re.fullmatch(rf"\.({BEST})?[0-9]+\.(tmp|old)", p.name)]
        return [*(p for p in parts if p.is_dir() and not p.is_symlink()), *write_temporaries(self.directory)]

    def tidy(self) -> list[str]:
        """Removes what unfinished() finds, and returns the names. A complete checkpoint that was moved aside while
        its successor had no name yet gets its own name back."""
        gone = []
        for path in self.unfinished():
            final = self.directory / path.name[1:].removesuffix(".old")
            if path.name.endswith(".old") and not final.exists():
                os.replace(path, final)
                continue
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
            gone.append(path.name)
        for name in [*self.names(), *self._kept()]:
            try:
                listed = json.loads((self.directory / name / "manifest.json").read_text())["sha256"]
            except (OSError, ValueError, KeyError):
                continue  # verify() says what is wrong
            for path in (self.directory / name).glob(ROWS):
                if path.name not in listed:  # its process was killed while _rotate() removed it
                    path.unlink()
                    gone.append(f"{name}/{path.name}")
        return gone

    def best(self) -> str | None:
        try:
            name = json.loads((self.directory / "best.json").read_text())["name"]
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, OSError):
            name = ""
        if not re.fullmatch(f"({BEST})?[0-9]+", str(name)):  # it may be a stranger's, and lead to another folder
            raise UserError(f"{self.directory / 'best.json'} is damaged")
        return str(name)

    def best_metric(self, judged_by: str) -> float | None:
        """The metric of the best checkpoint, if there is one that was judged by this."""
        try:
            said = json.loads((self.directory / str(self.best()) / "run.json").read_text())
            return said["metric"] if said.get("judged_by", judged_by) == judged_by else None
        except (OSError, ValueError, KeyError, AttributeError):
            return None

    def save(
        self,
        env_steps: int,
        tensors: dict[str, dict],
        run: dict,
        best: bool,
        rows: Callable[[Path], None] | None = None,
        name: str | None = None,
    ) -> Path | None:
        """Writes <directory>/<name>/; its name is that of its env steps by default. `rows` writes the ROWS files into
        it, which only the last checkpoint keeps. If the disk is full, it warns, keeps the previous checkpoints and
        returns None; it raises RunFailed after MAX_FAILURES failures in a row."""
        final = self.directory / (name or f"{env_steps:012d}")
        temporary = self.directory / f".{final.name}.tmp"
        try:
            self.directory.mkdir(exist_ok=True)
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir()
            for name, state in tensors.items():
                torch.save(_compact(state), temporary / f"{name}.pt")
            if rows is not None:
                rows(temporary)
            (temporary / "run.json").write_text(json.dumps(run, indent=1))
            files = {path.name: _sha256(path) for path in sorted(temporary.iterdir())}
            (temporary / "manifest.json").write_text(json.dumps({"format": FORMAT, "sha256": files}, indent=1))
            for path in temporary.iterdir():
                _fsync(path)
            _fsync(temporary)
            if not best and final.name == self.best() and self._updates(final.name) != run.get("updates"):
                self._second_name(final.name, BEST + final.name)
            self._put(temporary, final)
            if best:
                self._name_best(final.name, run)
        except (OSError, RuntimeError) as error:  # torch.save raises RuntimeError on a full disk
            shutil.rmtree(temporary, ignore_errors=True)
            self.failures += 1
            said = str(error) if isinstance(error, OSError) else f"no space left? ({str(error).splitlines()[0]})"
            if not self.directory.parent.is_dir():
                said = f"{self.directory.parent} is gone; if it has another name now, give it back its old one at once"
            if self.failures >= MAX_FAILURES:
                raise RunFailed(
                    f"{MAX_FAILURES} checkpoints in a row could not be written to {self.directory}: {said}"
                ) from error
            warnings.warn(
                f"the checkpoint at {env_steps} env steps could not be written and is left out: {said}",
                Notice,
                stacklevel=2,
            )
            return None
        except BaseException:  # a process that holds rows is lost, or Ctrl-C was pressed twice
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        self.failures = 0
        self._rotated()
        return final

    def save_earlier(self, env_steps: int, tensors: dict[str, dict], run: dict) -> Path | None:
        """Makes what a run was at `env_steps`, which may be before the last checkpoint, the best checkpoint.

        If there is a checkpoint of that moment, it is kept with its replayed rows and gets the new run.json. One of
        another update of the same env steps stays as it is."""
        there = self.directory / f"{env_steps:012d}"
        if not there.is_dir():
            # Under its own name it would be the last one, and the checkpoint before it would lose its replayed rows.
            last = bool(self.names()) and there.name > self.names()[-1]
            return self.save(env_steps, tensors, run, best=True, name=BEST + there.name if last else None)
        if self._updates(there.name) != run.get("updates"):
            return self.save(env_steps, tensors, run, best=True, name=BEST + there.name)
        temporary = self.directory / f".{there.name}.tmp"
        try:
            self._linked(there, temporary)
            manifest = json.loads((there / "manifest.json").read_text())
            write_atomically(temporary / "run.json", json.dumps(run, indent=1))
            manifest["sha256"]["run.json"] = _sha256(temporary / "run.json")
            write_atomically(temporary / "manifest.json", json.dumps(manifest, indent=1))
            self._put(temporary, there)
            self._name_best(there.name, run)
        except OSError as error:
            shutil.rmtree(temporary, ignore_errors=True)
            warnings.warn(f"the checkpoint {there} could not be marked as the best: {error}", Notice, stacklevel=2)
            return None
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        self._rotated()
        return there

    def take_back(self, name: str) -> None:
        """Gives a best checkpoint that has lost its own name (BEST) this name again, which no other may have now."""
        self._second_name(name, name.removeprefix(BEST))
        shutil.rmtree(self.directory / name)

    def _second_name(self, name: str, other: str) -> None:
        """Gives a checkpoint another name too. If it is the best one, best.json then has that name."""
        temporary = self.directory / f".{other}.tmp"
        self._linked(self.directory / name, temporary)
        self._put(temporary, self.directory / other)
        if self.best() == name:
            said = json.loads((self.directory / "best.json").read_text())
            write_atomically(self.directory / "best.json", json.dumps({**said, "name": other}))

    @staticmethod
    def _linked(source: Path, target: Path) -> None:
        """Copies a checkpoint by giving its files second names."""
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(source, target, copy_function=_link)

    def _put(self, temporary: Path, final: Path) -> None:
        """Gives a complete checkpoint its name."""
        if final.exists():  # saved at this env step before, as by a stop right after a regular save
            old = self.directory / f".{final.name}.old"
            os.replace(final, old)
            os.replace(temporary, final)
            shutil.rmtree(old)
        else:
            os.replace(temporary, final)
        _fsync(self.directory)

    def _name_best(self, name: str, run: dict) -> None:
        write_atomically(self.directory / "best.json", json.dumps({"name": name, "metric": run.get("metric")}))

    def _rotated(self) -> None:
        """Removes what is not kept. Where that fails, as on a full disk, the next checkpoint tries again."""
        try:
            self._rotate()
        except OSError as error:
            warnings.warn(f"old checkpoints could not be removed: {error}", Notice, stacklevel=3)

    def _rotate(self) -> None:
        best = self.best()
        for name in [n for n in self.names() if n != best][: -self.keep or None]:
            shutil.rmtree(self.directory / name)
        for name in [n for n in self._kept() if n != best]:
            shutil.rmtree(self.directory / name)
        # Rows take gigabytes, and runs are usually resumed from the last checkpoint. One that was saved without the
        # replay, whose processes were lost, leaves those of the checkpoint before it.
        having = [name for name in self.names() if any((self.directory / name).glob(ROWS))]
        for name in [*having[:-1], *self._kept()]:
            path = self.directory / name
            files = list(path.glob(ROWS))
            if files:
                manifest = json.loads((path / "manifest.json").read_text())
                for file in files:
                    manifest["sha256"].pop(file.name, None)
                # A process that is killed between the two leaves rows that are not listed; tidy() removes them. A
                # half-written file inside of the checkpoint would make verify() refuse it.
                write_atomically(path / "manifest.json", json.dumps(manifest, indent=1), self.directory)
                for file in files:
                    file.unlink()

    def _why_none(self) -> str:
        """Says why there is no checkpoint, and what can be done. A run that is resumed holds its own lock."""
        run_dir = self.directory.parent
        if held(run_dir) and holder(run_dir) != this_process():
            return (
                "the run is still going on and has saved nothing yet; wait for its first checkpoint, which comes after"
                " a minute unless checkpoint.first_sec says otherwise"
            )
        return "the run ended before its first save; start anew in another run_dir, or remove it"

    def load(self, name: str | int | None = None, parts: tuple[str, ...] = PARTS) -> tuple[dict[str, dict], dict]:
        """(tensors by part, run.json) of the named checkpoint, by default the last one. Raises UserError if there is
        none of that name, such as no best one yet, or if it is damaged."""
        if isinstance(name, bool | float):
            raise UserError(f"checkpoint={name} is no checkpoint: give last, best or a number of env steps")
        name = None if name is None else str(name)
        names = self.names()
        if not names:
            raise UserError(f"{self.directory} holds no checkpoint: {self._why_none()}")
        if name in ("best", "last"):
            best = self.best() if name == "best" else None
            if name == "best" and best is None:
                raise UserError(f"{self.directory} has no best checkpoint yet; checkpoint=last takes the newest one")
            name = best
        name = names[-1] if name is None else name
        if (steps := whole_number(name)) is not None:
            name = f"{steps:012d}"
        if name not in [*names, *self._kept()]:
            raise UserError(f"{self.directory} has no checkpoint {name}; it has {', '.join(names)}")
        path = self.directory / name
        verify(path, parts)
        try:
            run = json.loads((path / "run.json").read_text())
            if not all(type(run[key]) is int and run[key] >= 0 for key in ("env_steps", "updates")):
                raise ValueError
        except Exception as error:
            raise UserError(
                f"checkpoint {path} cannot be read (run.json: {type(error).__name__}): it is not one of rlrun's"
            ) from None
        return {part: load_part(path, part) for part in parts}, run


def rows_file(number: int) -> str:
    """The name of the file with the rows of one learner's replay, or of one shard."""
    return f"replay-{number}.bin"


def load_part(path: Path, part: str) -> dict:
    """Loads one part of a verified checkpoint. Raises UserError if it is none that rlrun has written."""
    try:
        return read_tensors(path / f"{part}.pt")
    except Exception as error:  # torch.load raises many kinds
        # The message of torch.load recommends to load any pickled code, so it is left out.
        why = str(error) if type(error) is ValueError else type(error).__name__
        raise UserError(f"checkpoint {path} cannot be read ({part}.pt: {why}): it is not one of rlrun's") from None


def verify(path: Path, parts: tuple[str, ...] = ()) -> None:
    """Raises UserError, which names the first file that is missing, truncated, altered or not in the manifest, and the
    newest checkpoint beside this one that is whole.

    parts: those that will be loaded."""
    try:
        _verify(path, parts)
    except UserError as error:
        for other in sorted((one for one in path.parent.glob("[0-9]*") if one.name != path.name), reverse=True):
            try:
                _verify(other, parts)
            except (UserError, OSError):
                continue
            raise UserError(f"{error}; {other} is whole: checkpoint={other.name.lstrip('0') or '0'} names it") from None
        raise


def _verify(path: Path, parts: tuple[str, ...]) -> None:
    try:
        manifest = json.loads((path / "manifest.json").read_text())
        expected = dict(manifest["sha256"])
        version = manifest["format"]
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(f"checkpoint {path} is damaged: manifest.json is missing or unreadable") from None
    if version != FORMAT:
        raise UserError(f"checkpoint {path} has format {version}; this rlrun reads format {FORMAT}")
    there = {file.name for file in path.iterdir()} - {"manifest.json"}
    if "replay" not in parts:  # rows are not read now, and may be about to be removed
        there -= {file.name for file in path.glob(ROWS)}
        if not set(PARTS) <= set(parts):  # and no run that would read them goes on from here
            expected = {name: digest for name, digest in expected.items() if not fnmatch.fnmatch(name, ROWS)}
    unlisted = sorted((there | {f"{part}.pt" for part in parts} | {"run.json"}) - set(expected))
    if unlisted:
        raise UserError(f"checkpoint {path} is damaged: manifest.json has no sha256 of {unlisted[0]}")
    for name, digest in expected.items():
        if not (path / name).is_file():
            raise UserError(f"checkpoint {path} is damaged: {name} is missing")
        if _sha256(path / name) != digest:
            raise UserError(
                f"checkpoint {path} is damaged: {name} is truncated or altered: its sha256 is not that in manifest.json"
            )
