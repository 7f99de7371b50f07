"""Whatever stands in the files that rlrun reads, it says a sentence (UserError) or reads them, and runs no code.

Hypothesis draws the contents: values of every type under the names that rlrun looks for, and plain bytes. Data sets
are fuzzed in tests/datasets."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import io
import json
from pathlib import Path

import pytest
import yaml
from conftest import compose
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from rlrun.bench import results
from rlrun.bench.tables import load
from rlrun.cli import _dispatch
from rlrun.commands import compare, report
from rlrun.core.checkpoint import FORMAT, verify
from rlrun.core.errors import UserError
from rlrun.core.saved_files import read_rows, read_summary

FEW = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], phases=[p for p in Phase if p is not Phase.shrink])
LEAF = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
ANY = st.recursive(LEAF, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
                   max_leaves=6)  # fmt: skip
# YAML that would run a command if it were read by a loader that makes objects.
ATTACKS = st.sampled_from([
    "!!python/object/apply:os.system ['touch {}']", "a: !!python/object/new:os.system ['touch {}']",
    "!!python/name:os.system", "x: &a [*a]", "${{oc.env:HOME}}", "{{", "\t", "- 1", "",
])  # fmt: skip


def under(names: str, values=ANY):
    """Groups with some of these names and any values."""
    return st.fixed_dictionaries({}, optional=dict.fromkeys(names.split(), values))


def places(whole: dict, at: tuple = ()) -> list[tuple]:
    """The paths of all groups and values."""
    return [path for key, value in whole.items()
            for path in ((*at, key), *(places(value, (*at, key)) if isinstance(value, dict) else ()))]  # fmt: skip


@st.composite
def changed(draw, whole: dict) -> dict:
    """What is right, but for some groups or values, which are gone or are anything."""
    made = copy.deepcopy(whole)
    for *groups, last in draw(st.lists(st.sampled_from(places(whole)), min_size=1, max_size=3, unique=True)):
        node = made
        for group in groups:
            node = node.get(group) if isinstance(node, dict) else None
        if not isinstance(node, dict):
            continue
        if draw(st.booleans()):
            node[last] = draw(ANY)
        else:
            node.pop(last, None)
    return made


def harmless(call, folder: Path, right: bool = False) -> None:
    """Calls it, which must return or raise UserError, and must not have run what ATTACKS hold. right: it must not
    raise, since otherwise what is nearly right would not get far either."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            call()
        except UserError as error:
            assert str(error) and not right, str(error)
    assert not list(folder.rglob("hacked"))


def text(content) -> bytes:
    return content if isinstance(content, bytes) else json.dumps(content).encode()


@pytest.fixture(scope="module")
def run_dirs(tmp_path_factory):
    """Two directories with what a run writes, without its checkpoints."""
    made = []
    for name in ("one", "two"):
        path = tmp_path_factory.mktemp("runs") / name
        path.mkdir()
        (path / "config.yaml").write_text(yaml.safe_dump(compose("algo=pg", "env=CartPole-v1")))
        row = {"env_steps": 10, "time_sec": 1.0, "updates": 1, "sample/return_mean": 2.0}
        (path / "progress.jsonl").write_text(json.dumps(row) + "\n")
        (path / "summary.json").write_text(json.dumps({"status": "COMPLETED", "return_mean": 2.0, "env_steps": 10}))
        made.append(path)
    return made


def in_place(path: Path, content: bytes, call, folder: Path, right: bool = False) -> None:
    """harmless() while a file has another content."""
    before = path.read_bytes()
    path.write_bytes(content)
    try:
        harmless(call, folder, right)
    finally:
        path.write_bytes(before)


SUMMARY = under("status reason env_steps updates wall_sec return_mean episodes eval_return_mean best_return_mean seed algo"
                " env versions git_commit hardware command started resources resumed_by sessions")  # fmt: skip
ROW = under("env_steps time_sec updates sample/return_mean sample/episodes learn/loss eval/return_mean")


@FEW
@given(content=SUMMARY | ANY | st.binary(max_size=20))
def test_summaries(run_dirs, tmp_path, content):
    one, two = map(str, run_dirs)
    path = run_dirs[0] / "summary.json"
    in_place(path, text(content), lambda: compare.main([one, two]), tmp_path)
    in_place(path, text(content), lambda: report.main([one, "--out", str(tmp_path / "made.html")]), tmp_path)
    path = tmp_path / "summary.json"
    path.write_bytes(text(content))
    assert isinstance(read_summary(path), dict)


@FEW
@given(rows=st.lists(ROW | ANY, max_size=4) | st.binary(max_size=20))
def test_progress(run_dirs, tmp_path, rows):
    content = rows if isinstance(rows, bytes) else b"\n".join(map(text, rows))
    one, two = map(str, run_dirs)
    path = run_dirs[0] / "progress.jsonl"
    in_place(path, content, lambda: compare.main([one, two]), tmp_path)
    in_place(path, content, lambda: report.main([one, "--out", str(tmp_path / "made.html")]), tmp_path)
    in_place(path, content, lambda: read_rows(path), tmp_path)


RIGHT = compose("algo=pg", "env=CartPole-v1", "logger=[]")
CONFIG = under("algo env runner model resources seed env_steps logger",
               under("name family kind lr encoder inner enabled") | ANY)  # fmt: skip


@FEW
@given(content=changed(RIGHT) | CONFIG | ANY | st.binary(max_size=20) | ATTACKS)
@example(content=RIGHT)
def test_configs(run_dirs, tmp_path, content):
    held = content.format(tmp_path / "hacked").encode() if isinstance(content, str) else text(content)
    path = run_dirs[0]
    in_place(path / "config.yaml", held, lambda: _dispatch(["resume", str(path)]), tmp_path)
    for call in (
        lambda: _dispatch(["train", "--from-run", str(path), "--plan"]),
        lambda: report.main([str(path), "--out", str(tmp_path / "made.html")]),
    ):
        in_place(path / "config.yaml", held, call, tmp_path, content == RIGHT)


SUMS = {name: hashlib.sha256(held).hexdigest() for name, held in (("policy.pt", b"x"), ("run.json", b"{}"))}
MANIFEST = {"format": FORMAT, "sha256": SUMS}


@FEW
@given(content=changed(MANIFEST) | under("format sha256", under("policy.pt run.json ../x") | ANY) | ANY | st.binary(max_size=20))
@example(content=MANIFEST)
def test_manifests(tmp_path, content):
    (tmp_path / "manifest.json").write_bytes(text(content))
    (tmp_path / "policy.pt").write_bytes(b"x")
    (tmp_path / "run.json").write_bytes(b"{}")
    harmless(lambda: verify(tmp_path, ("policy",)), tmp_path, content == MANIFEST)


TUNED = {"a": {"run": "PPO", "env": "CartPole-v1", "stop": {"timesteps_total": 1000, "episode_reward_mean": 150},
               "config": {"lr": 1e-3, "gamma": 0.9, "num_workers": 2, "train_batch_size": 400, "sgd_minibatch_size": 40, "framework": "torch",
                          "model": {"fcnet_hiddens": [8], "use_lstm": True}, "explore": True}}}  # fmt: skip
RLLIB = st.dictionaries(st.text(max_size=5), under("run env stop config local_dir",
                        under("env lr gamma num_workers model framework env_config multiagent explore") | ANY), max_size=2)  # fmt: skip


@FEW
@given(content=changed(TUNED) | RLLIB | ANY | st.binary(max_size=20) | ATTACKS)
@example(content=TUNED)
def test_rllib_files(tmp_path, content):
    file = tmp_path / "tuned.yaml"
    file.write_bytes(content.format(tmp_path / "hacked").encode() if isinstance(content, str) else text(content))
    harmless(lambda: _dispatch(["import-rllib", str(file), "--dir", str(tmp_path / "made")]), tmp_path, content == TUNED)


WANTED = results.Wanted(load("impala_10m"), load("impala_10m").cells[0])
KEY = results.key_of(WANTED, 1, 1.0)
RESULT = {"format": results.FORMAT, **KEY._asdict(), "label": WANTED.cell.label, "score": 4.0, "env_steps": 10, "wall_sec": 6.0, "episodes": 500,
          "protocol": results.expected_protocol(WANTED), "hardware": {"cpu": "a CPU", "cores": 2, "gpus": []}, "command": "rlrun train",
          "curve": [[1, 1.0, 2.0]]}  # fmt: skip
FIELDS = under("format sha256 protocol label score curve seed table game algo budget", ANY)


@FEW
@given(content=changed(RESULT) | FIELDS | ANY | st.binary(max_size=20), sealed=st.booleans())
@example(content=RESULT, sealed=True)
def test_results(tmp_path, content, sealed):
    wanted, key, right = WANTED, KEY, sealed and content == RESULT
    if sealed and isinstance(content, dict):  # as someone would who knows how it is done
        content = {**content, "sha256": results.digest(content)}
    (tmp_path / key.file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / key.file).write_bytes(text(content))
    harmless(lambda: results.read(tmp_path, key, wanted), tmp_path, right)


MINE = {"algo": {"lr": 1e-2, "optimizer": {"epsilon": 1e-6}}, "model": {"hidden": [8]}, "env_steps": 1000}


@settings(FEW, max_examples=12)
@given(content=changed(MINE) | CONFIG | ANY | ATTACKS)
@example(content=MINE)
def test_folders_of_options(tmp_path, content):
    folder = tmp_path / "conf"
    (folder / "tuned" / "pg").mkdir(parents=True, exist_ok=True)
    held = content.format(tmp_path / "hacked").encode() if isinstance(content, str) else text(content)
    (folder / "tuned" / "pg" / "mine.yaml").write_bytes(b"# @package _global_\n" + held)
    harmless(lambda: _dispatch(["train", "--config-dir", str(folder), "tuned=pg/mine", "algo=pg", "env=CartPole-v1", "--cfg", "job"]), tmp_path, content == MINE)


def test_what_was_found_by_hand(run_dirs, tmp_path):
    """Inputs that led to tracebacks once."""
    one = run_dirs[0]
    for content, said in (("", "it is empty"), ("a: 1\n", "it has no algo"), ("hello", "is not the config of a run")):
        before = (one / "config.yaml").read_text()
        (one / "config.yaml").write_text(content)
        try:
            for command in (["resume", str(one)], ["report", str(one)], ["plot", str(one)], ["evaluate", str(one)]):
                with pytest.raises(UserError, match=said):
                    _dispatch(command)
        finally:
            (one / "config.yaml").write_text(before)
    before = (one / "progress.jsonl").read_text()
    for row, said in (('{"env_steps": "x"}', "line 1: env_steps is 'x', and it must be a number"), ("\xff", "")):
        (one / "progress.jsonl").write_bytes(row.encode("latin-1"))
        with pytest.raises(UserError, match=said or "holds no text"):
            _dispatch(["plot", str(one)])
    (one / "progress.jsonl").write_text(before)
    with pytest.raises(UserError, match="needs quotes"):
        _dispatch(["train", "algo=pg", "env=CartPole-v1", "run_dir=out/jörg"])
    with pytest.raises(UserError, match=r"checkpoint\.every_sec must be at least 0"):
        _dispatch(["train", "--plan", "algo=pg", "env=CartPole-v1", "checkpoint.every_sec=-5"])
