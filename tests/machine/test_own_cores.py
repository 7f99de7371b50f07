"""The folder of the cores' locks has a name that every user of a machine knows, and may belong to somebody else."""

import os

import pytest

from rlrun.core.errors import UserError
from rlrun.machine import own_cores
from rlrun.machine.own_cores import OwnCores


def test_the_folder_of_locks_is_ones_own(tmp_path, monkeypatch):
    monkeypatch.setattr(own_cores.tempfile, "gettempdir", lambda: str(tmp_path))
    folder, victim = tmp_path / f"rlrun-cores-{os.getuid()}", tmp_path / "victim"
    victim.mkdir(mode=0o700)
    folder.symlink_to(victim)
    with pytest.raises(UserError, match=r"rlrun-cores-\d+ is no folder"):
        OwnCores(1, among={0, 1})
    folder.unlink()
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(UserError, match=r"rlrun-cores-\d+ can be used by others"):
        OwnCores(1, among={0, 1})
    folder.chmod(0o700)
    (folder / "0").symlink_to(victim / "made")
    with pytest.raises(OSError, match="symbolic"):
        OwnCores(1, among={0, 1})
    assert list(victim.iterdir()) == []
    (folder / "0").unlink()
    first, second = OwnCores(1, among={0, 1}), OwnCores(1, among={0, 1})
    assert (first.cores, second.cores) == ({0}, {1})
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    with pytest.raises(UserError, match="can be used by others"):
        OwnCores(1, folder, {0, 1})
