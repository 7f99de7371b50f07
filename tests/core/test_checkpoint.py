"""Checkpoints that were altered are refused with a sentence, whatever their manifest says."""

import json

import pytest
import torch

from rlrun.core.checkpoint import Checkpoints
from rlrun.core.errors import UserError


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
