"""Checkpoints that were altered are refused with a sentence, whatever their manifest says."""

import hashlib
import json
import os

import pytest
import torch

from rlrun.core.checkpoint import Checkpoints, write_atomically
from rlrun.core.errors import Notice, ProcessLost, UserError


@pytest.fixture
def saved(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=3)
    tensors = {name: {"weight": torch.ones(3)} for name in ("policy", "algorithm", "sampler")}
    path = checkpoints.save(10, tensors, {"env_steps": 10, "updates": 1}, best=False)
    assert path is not None and checkpoints.load()[1] == {"env_steps": 10, "updates": 1}
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


def test_a_part_that_asks_for_memory_is_refused_before_it_gets_any(saved):
    """As somebody else would have made it, with a manifest that fits."""
    checkpoints, path = saved
    torch.save({"weight": bytearray(3)}, path / "policy.pt")
    digest = hashlib.sha256((path / "policy.pt").read_bytes()).hexdigest()
    manifest(path, sha256=json.loads((path / "manifest.json").read_text())["sha256"] | {"policy.pt": digest})
    with pytest.raises(UserError, match=r"cannot be read \(policy\.pt: it names __builtin__\.bytearray, which is no part"):
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

    checkpoints.save(20, tensors(2.0), {"env_steps": 20, "updates": 1, "metric": None}, best=False, rows=rows)
    assert checkpoints.save_earlier(10, tensors(1.0), {"env_steps": 10, "updates": 1, "metric": 5.0}) == tmp_path / f"{10:012d}"
    assert checkpoints.best() == f"{10:012d}" and checkpoints.names()[-1] == f"{20:012d}"
    checkpoints.save_earlier(20, tensors(9.0), {"env_steps": 20, "updates": 1, "metric": 7.0})
    assert checkpoints.best() == f"{20:012d}" and (tmp_path / f"{20:012d}" / "replay-0.bin").read_bytes() == b"rows"
    loaded, run = checkpoints.load("best")
    assert run["metric"] == 7.0 and torch.equal(loaded["policy"]["weight"], torch.full((3,), 2.0))
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]
    checkpoints.save_earlier(25, tensors(3.0), {"env_steps": 25, "updates": 1, "metric": 8.0})  # between two regular checkpoints
    assert checkpoints.best() == f"best-{25:012d}" and checkpoints.names()[-1] == f"{20:012d}"
    assert (tmp_path / f"{20:012d}" / "replay-0.bin").exists() and checkpoints.load("best")[1]["metric"] == 8.0
    checkpoints.save(30, tensors(4.0), {"env_steps": 30, "updates": 1, "metric": None}, best=False, rows=rows)
    assert checkpoints.load()[1]["env_steps"] == 30 and checkpoints.load("best")[1]["env_steps"] == 25


def test_a_best_checkpoint_outlives_other_updates_of_its_env_steps(tmp_path):
    """Several updates share a clock's env steps, which name checkpoints. The last one keeps this name and its rows."""
    checkpoints, own, kept = Checkpoints(tmp_path, keep=2), f"{20:012d}", f"best-{20:012d}"

    def saved(updates, how=checkpoints.save, env_steps=20, **more):
        tensors = {name: {"updates": torch.tensor(updates)} for name in ("policy", "algorithm", "sampler")}
        assert how(env_steps, tensors, {"env_steps": env_steps, "updates": updates, "metric": updates}, **more)

    def held(name):
        loaded, run = checkpoints.load(name)
        assert run["updates"] == loaded["policy"]["updates"] == loaded["algorithm"]["updates"]
        return run["updates"]

    def rows(folder):
        (folder / "replay-0.bin").write_bytes(b"rows")

    saved(5, best=True, rows=rows)
    saved(5, best=False, rows=rows)
    assert checkpoints.best() == own and held("best") == 5
    for updates in (6, 7):
        saved(updates, best=False, rows=rows)
        assert (held("best"), held("last"), held("20"), checkpoints.best()) == (5, updates, updates, kept)
        assert json.loads((tmp_path / "best.json").read_text())["metric"] == 5
        assert (tmp_path / own / "replay-0.bin").exists() and not (tmp_path / kept / "replay-0.bin").exists()
    assert checkpoints.name_at(20, 5) == kept and checkpoints.name_at(20, 7) == own and checkpoints.names() == [own]
    saved(6, checkpoints.save_earlier)  # an evaluation that ran beside training is over
    assert (held("best"), held("last"), checkpoints.best()) == (6, 7, kept)
    saved(9, env_steps=30, best=False)
    later = f"{30:012d}"
    assert held("best") == 6 and checkpoints.after(kept) == [own, later] and checkpoints.after(own) == [later]
    saved(10, env_steps=40, best=True)
    assert held("best") == 10 and not (tmp_path / kept).exists(), "it is removed when another is the best"
    (tmp_path / f".{kept}.tmp").mkdir()
    assert checkpoints.tidy() == [f".{kept}.tmp"]


def test_the_best_checkpoint_is_none_until_there_is_one(saved):
    checkpoints, _ = saved
    with pytest.raises(UserError, match="has no best checkpoint yet; checkpoint=last takes the newest one"):
        checkpoints.load("best")
    assert checkpoints.load("last")[1] == {"env_steps": 10, "updates": 1}


def test_rows_whose_removal_was_cut_off_harm_nothing(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=2)
    tensors = {name: {"weight": torch.ones(3)} for name in ("policy", "algorithm", "sampler", "replay")}

    def rows(folder):
        (folder / "replay-0.bin").write_bytes(b"rows")

    path = checkpoints.save(10, tensors, {"env_steps": 10, "updates": 1}, best=False, rows=rows)
    listed = json.loads((path / "manifest.json").read_text())["sha256"]
    manifest(path, sha256={name: digest for name, digest in listed.items() if name != "replay-0.bin"})
    assert checkpoints.load(parts=("policy",))[1] == {"env_steps": 10, "updates": 1}
    with pytest.raises(UserError, match=r"no sha256 of replay-0\.bin"):
        checkpoints.load(parts=("replay",))
    assert checkpoints.tidy() == [f"{path.name}/replay-0.bin"]
    assert checkpoints.load(parts=("replay",))[1] == {"env_steps": 10, "updates": 1}


def test_a_kill_while_old_rows_are_removed_damages_no_checkpoint(tmp_path, monkeypatch):
    checkpoints = Checkpoints(tmp_path, keep=2)

    def rows(folder):
        (folder / "replay-0.bin").write_bytes(b"rows")

    def save(steps):
        return checkpoints.save(steps, {"policy": {"weight": torch.ones(3)}}, {"env_steps": steps, "updates": 1}, steps == 10, rows)

    def killed(source, target):
        if str(target).endswith("10/manifest.json"):
            monkeypatch.setattr("os.unlink", lambda path: None)  # a killed process does not clean up
            raise SystemExit
        return replace(source, target)

    best, replace = save(10), os.replace
    monkeypatch.setattr("os.replace", killed)
    with pytest.raises(SystemExit):
        save(20)
    monkeypatch.undo()
    assert checkpoints.load("best", ("policy",))[1] == {"env_steps": 10, "updates": 1}
    assert len(checkpoints.tidy()) == 1 and {path.name for path in tmp_path.iterdir()} == {
        "best.json",
        best.name,
        "000000000020",
    }


@pytest.mark.parametrize("error", [ProcessLost("replay-0 was killed by SIGKILL"), KeyboardInterrupt()])
def test_a_save_that_is_given_up_leaves_no_rows(saved, error, monkeypatch):
    """Rows take gigabytes, and nothing would remove them as long as the run goes on."""
    checkpoints, path = saved

    def rows(folder):
        (folder / "replay-0.bin").write_bytes(b"rows")
        raise error

    with pytest.raises(type(error)):
        checkpoints.save(20, {"policy": {"weight": torch.ones(3)}}, {"env_steps": 20, "updates": 1}, best=False, rows=rows)
    assert checkpoints.unfinished() == [] and checkpoints.load()[1] == {"env_steps": 10, "updates": 1}
    monkeypatch.setattr(checkpoints, "_put", lambda temporary, final: rows(temporary))
    with pytest.raises(type(error)):
        checkpoints.save_earlier(10, {}, {"env_steps": 10, "updates": 1})
    assert checkpoints.unfinished() == [] and [one.name for one in path.parent.iterdir()] == [path.name]


def test_a_run_goes_on_where_old_checkpoints_cannot_be_removed(tmp_path, monkeypatch):
    checkpoints, tensors = Checkpoints(tmp_path, keep=1), {"policy": {"weight": torch.ones(3)}}
    checkpoints.save(10, tensors, {"env_steps": 10, "updates": 1}, best=False)
    monkeypatch.setattr("shutil.rmtree", refuse_all_but_unfinished)
    with pytest.warns(Notice, match="old checkpoints could not be removed"):
        assert checkpoints.save(20, tensors, {"env_steps": 20, "updates": 1}, best=False) is not None
    monkeypatch.undo()
    checkpoints.save(30, tensors, {"env_steps": 30, "updates": 1}, best=False)
    assert checkpoints.names() == ["000000000030"], "the next one tries again"


def test_a_run_directory_that_was_renamed_can_be_given_back_its_name(tmp_path):
    (tmp_path / "run").mkdir()
    checkpoints, tensors = Checkpoints(tmp_path / "run" / "checkpoints", 3), {"policy": {"weight": torch.ones(3)}}
    (tmp_path / "run").rename(tmp_path / "other")
    with pytest.warns(Notice, match="run is gone; if it has another name now, give it back its old one at once"):
        assert checkpoints.save(10, tensors, {"env_steps": 10, "updates": 1}, best=False) is None
    (tmp_path / "other").rename(tmp_path / "run")
    assert checkpoints.save(20, tensors, {"env_steps": 20, "updates": 1}, best=False) is not None


def test_a_path_that_is_no_utf_8_can_be_written(tmp_path):
    """As into a report of runs in a folder whose name is in Latin-1."""
    name = os.fsdecode(b"l\xe4ufe")
    write_atomically(tmp_path / "report.html", f"<p>{name}</p>")
    assert (tmp_path / "report.html").read_bytes() == b"<p>l\xe4ufe</p>"


def refuse_all_but_unfinished(path, ignore_errors=False):
    if not ignore_errors:
        raise OSError(28, "No space left on device")
