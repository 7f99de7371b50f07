"""Checkpoints that were altered are refused with a sentence, whatever their manifest says."""

import json

import pytest
import torch

from rlrun.core.checkpoint import Checkpoints
from rlrun.core.errors import Notice, UserError


@pytest.fixture
def saved(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=3)
    tensors = {name: {"weight": torch.ones(3)} for name in ("policy", "algorithm", "sampler")}
    path = checkpoints.save(10, tensors, {"env_steps": 10}, best=False)
    assert path is not None and checkpoints.load()[1] == {"env_steps": 10}
    return checkpoints, path


def manifest(path, **changes):
    said = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps({**said, **changes}))


@pytest.mark.parametrize("listed", [{}, [], "none", {"policy.pt": "0" * 64}])
def test_a_manifest_that_lists_too_little_protects_nothing(saved, listed):
    checkpoints, path = saved
    manifest(path, sha256=listed)
    data = bytearray((path / "policy.pt").read_bytes())
    data[len(data) // 2] ^= 1
    (path / "policy.pt").write_bytes(data)
    with pytest.raises(UserError, match="damaged"):
        checkpoints.load(parts=("policy",))


def test_missing_and_added_files_are_named(saved):
    checkpoints, path = saved
    (path / "extra.pt").write_bytes(b"x")
    with pytest.raises(UserError, match=r"no sha256 of extra\.pt"):
        checkpoints.load()
    (path / "extra.pt").unlink()
    (path / "policy.pt").unlink()
    with pytest.raises(UserError, match=r"policy\.pt is missing"):
        checkpoints.load()
    (path / "manifest.json").unlink()
    with pytest.raises(UserError, match=r"manifest\.json is missing"):
        checkpoints.load()


def test_an_earlier_moment_becomes_the_best_and_rows_of_the_last_one_stay(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=2)

    def tensors(value):
        return {name: {"weight": torch.full((3,), value)} for name in ("policy", "algorithm", "sampler")}

    def rows(folder):
        (folder / "replay-0.bin").write_bytes(b"rows")

    checkpoints.save(20, tensors(2.0), {"env_steps": 20, "metric": None}, best=False, rows=rows)
    assert checkpoints.save_earlier(10, tensors(1.0), {"env_steps": 10, "metric": 5.0}) == tmp_path / f"{10:012d}"
    assert checkpoints.best() == f"{10:012d}" and checkpoints.names()[-1] == f"{20:012d}"
    checkpoints.save_earlier(20, tensors(9.0), {"env_steps": 20, "metric": 7.0})
    assert checkpoints.best() == f"{20:012d}" and (tmp_path / f"{20:012d}" / "replay-0.bin").read_bytes() == b"rows"
    loaded, run = checkpoints.load("best")
    assert run["metric"] == 7.0 and torch.equal(loaded["policy"]["weight"], torch.full((3,), 2.0))
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_rows_whose_removal_was_cut_off_harm_nothing(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=2)
    tensors = {name: {"weight": torch.ones(3)} for name in ("policy", "algorithm", "sampler", "replay")}

    def rows(folder):
        (folder / "replay-0.bin").write_bytes(b"rows")

    path = checkpoints.save(10, tensors, {"env_steps": 10}, best=False, rows=rows)
    listed = json.loads((path / "manifest.json").read_text())["sha256"]
    manifest(path, sha256={name: digest for name, digest in listed.items() if name != "replay-0.bin"})
    assert checkpoints.load(parts=("policy",))[1] == {"env_steps": 10}
    with pytest.raises(UserError, match=r"no sha256 of replay-0\.bin"):
        checkpoints.load(parts=("replay",))
    assert checkpoints.tidy() == [f"{path.name}/replay-0.bin"]
    assert checkpoints.load(parts=("replay",))[1] == {"env_steps": 10}


def test_a_run_goes_on_where_old_checkpoints_cannot_be_removed(tmp_path, monkeypatch):
    checkpoints, tensors = Checkpoints(tmp_path, keep=1), {"policy": {"weight": torch.ones(3)}}
    checkpoints.save(10, tensors, {"env_steps": 10}, best=False)
    monkeypatch.setattr("shutil.rmtree", refuse_all_but_unfinished)
    with pytest.warns(Notice, match="old checkpoints could not be removed"):
        assert checkpoints.save(20, tensors, {"env_steps": 20}, best=False) is not None
    monkeypatch.undo()
    checkpoints.save(30, tensors, {"env_steps": 30}, best=False)
    assert checkpoints.names() == ["000000000030"], "the next one tries again"


def refuse_all_but_unfinished(path, ignore_errors=False):
    if not ignore_errors:
        raise OSError(28, "No space left on device")
