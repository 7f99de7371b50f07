"""Recording: every decision of a run is in its data set once, whichever sampler took it, and runs learn from what they recorded."""

import errno
import functools
import importlib.util
import json
import re
import shutil
import time
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from conftest import SMALL, compose, same, small
from counting import LENGTH, CountingAlgorithm
from datasets_of_tests import episode

import rlrun
from rlrun.cli import _dispatch
from rlrun.config.run import type_config
from rlrun.config.types import load_yaml, save_yaml
from rlrun.core.batch import allocate, fragment_layout
from rlrun.core.errors import Notice, RunFailed, UserError
from rlrun.core.pulse import Limits
from rlrun.dataflow.slots import Fragment, Header
from rlrun.datasets.open import open_source
from rlrun.datasets.recorder import TrajectoryRecorder
from rlrun.envs.debug import Counting
from rlrun.envs.recorded import recorded_options, taken_options
from rlrun.runtime.played_env import in_environment
from rlrun.runtime.rundir import checkpoints_of


def train(*words: str) -> int:
    from rlrun.commands.train import start
    from rlrun.config.saved import set_by_user

    values = compose(*words)
    return start(values, set_by_user(values))


class Lingering(Counting):
    """The first environment of a process takes longer to close than others may take to end."""

    waited = False

    def close(self):
        if not Lingering.waited:
            Lingering.waited = True
            time.sleep(Limits().end_sec + 1)


def read(folder) -> list:
    source = open_source(str(folder))
    return [one for piece in range(source.pieces()) for one in source.read(piece)]


def check_counting(found: list) -> int:
    """Trajectories of Counting-v0: observations are [episode, step, tag], rewards are step numbers."""
    steps = 0
    for one in found:
        episode, step, tag = one.obs["observation"].T
        assert len(set(episode)) == len(set(tag)) == 1 and step.tolist() == list(range(len(one)))
        assert one.valid.tolist() == [True] * (len(one) - 1) + [False]
        assert one.reward[:-1].tolist() == list(range(1, len(one))) and one.reward[-1] == 0
        whole = len(one) == LENGTH + 1
        assert one.whole == whole
        assert one.terminated.tolist() == [whole and episode[0] % 2 == 0 and t == LENGTH - 1 for t in range(len(one))]
        assert one.truncated.tolist() == [whole and episode[0] % 2 == 1 and t == LENGTH - 1 for t in range(len(one))]
        steps += one.steps
    return steps


@pytest.mark.parametrize(
    "words",
    (
        ["resources=debug"],
        ["resources.inference=local", "resources.num_samplers=2"],
        ["runner=on_policy", "algo=ppo", "resources.inference=serial", "runner.complete_episodes=true", "env.max_episode_steps=50"],
        ["algo=apex", "algo.inner.fragment_length=5", "algo.inner.learning_starts=50", "resources.num_samplers=2"],
        ["algo=a3c", "resources.num_learners=2", "env=test_recorder:Lingering"],
        ["algo=a2c", "resources.num_learners=2", "resources.inference=serial", "env=test_recorder:Lingering"],
    ),
    ids=("serial", "local", "whole", "apex", "a3c", "lockstep"),
)  # fmt: skip
def test_every_decision_is_recorded_once(words, tmp_path):
    """Observations are counts, so that a lost, doubled or shifted row would be seen. Also where another learner's process
    takes longer than others may to end."""
    sizes = [] if "algo=apex" in words else ["algo.fragment_length=5", "algo.batch_size=20"]
    if "algo=ppo" in words:
        sizes += ["algo.minibatch_size=10"]
    algo = [] if any(word.startswith("algo=") for word in words) else ["algo=impala"]
    common = ["env=rlrun/Counting-v0", "model.hidden=[8]", "logger=[]", "env_steps=400"]
    assert train(*algo, *common, *sizes, *words, f"record={tmp_path / 'set'}", f"run_dir={tmp_path / 'run'}") == 0
    found = read(tmp_path / "set")
    _, run = checkpoints_of(tmp_path / "run").load()
    assert check_counting(found) >= run["env_steps"] >= 400
    assert all(one.has_log_prob for one in found) or "algo=apex" in words
    begun = [(int(one.obs["observation"][0, 0]), float(one.obs["observation"][0, 2])) for one in found]
    assert sum(one.whole for one in found) > 20 and len(begun) == len(found)


def test_rows_that_are_lost_end_a_trajectory(tmp_path):
    """The rows behind a gap belong to no trajectory until the next episode begins."""
    config = type_config(
        compose("algo=impala", "env=rlrun/Counting-v0", "algo.fragment_length=5", "algo.batch_size=20")
    )
    from rlrun.core.schedule import Clock
    from rlrun.core.seeding import Seeds
    from rlrun.envs.registry import Factory, make_spec
    from rlrun.samplers.collector import Collector

    spec = make_spec(config.env)
    policy = CountingAlgorithm.make_policy(spec, None, None)
    env = Factory(cfg=config.env, spec=spec, seeds=Seeds(0), stream="env", learning=True)(0, 2)
    record = policy.record_spec(("log_prob",))
    layout = fragment_layout(spec.obs_rows, spec.action_row, record, policy.core_spec(), 5, 2, 5, spec.reward_row)
    collector = Collector(env, torch.Generator(), ("log_prob",), 5, 0, 0, 0)
    recorder = TrajectoryRecorder(tmp_path / "set", spec, record, "counting", "tests")
    live = 0
    for number in range(30):
        batch = allocate(layout)
        header: Header = collector.collect(batch, policy, 0, Clock(), 0)
        if number != 9:
            recorder.add([Fragment(header, batch)])
            live += header.env_steps
    recorder.close()
    found = read(tmp_path / "set")
    steps = check_counting(found)
    cut = [one for one in found if not one.whole]
    assert live - 2 * LENGTH <= steps < live and len(cut) == 4, "two columns, at the gap and at the end"
    assert all(one.record["log_prob"][:-1].tolist() == list(range(len(one) - 1)) for one in found)


@pytest.mark.parametrize("lives, behind, whole", [(True, "nothing", 0), (False, "nothing", 2), (True, "another", 2)])
def test_a_life_that_was_lost_last_ends_no_game(tmp_path, lives, behind, whole):
    """The recording ends behind a terminated row. Whether it was the end of the game only the row behind it would say."""
    from rlrun.envs.registry import make_spec

    spec = make_spec(type_config(compose("algo=impala", "env=CartPole-v1")).env)
    batch = allocate(fragment_layout(spec.obs_rows, spec.action_row, {}, {}, 5, 2, 5))
    for leaf in batch.leaves():
        leaf.zero_()
    batch.valid[:3] = True
    batch.terminated[2], batch.is_first[0] = True, True
    if behind == "another":
        batch.is_first[4] = True
    recorder = TrajectoryRecorder(tmp_path / "set", spec, {}, "nobody", "a test", {"life_loss_terminal": lives})
    recorder.add([Fragment(Header(0, 0, 0, 1, 1, 6, (), (0.0, 0.0)), batch)])
    recorder.close()
    assert [one.whole for one in read(tmp_path / "set")] == [bool(whole)] * 2


def test_an_episode_that_nobody_could_learn_from_is_refused_when_it_is_recorded(tmp_path):
    """The rows of other environments are written all the same. Of an episode that the end of a run cuts off, it is only
    said."""
    from rlrun.envs.registry import make_spec

    spec = make_spec(type_config(compose("algo=impala", "env=CartPole-v1")).env)
    layout = fragment_layout(spec.obs_rows, spec.action_row, {}, {}, 5, 2, 5)
    batch = allocate(layout)
    for leaf in batch.leaves():
        leaf.zero_()
    batch.valid[:4] = True  # the row behind four decisions is the end of the episode
    batch.is_first[0] = True
    batch.obs.observation[2, 0, 0] = float("inf")
    said = "obs/observation holds a number that is not finite"
    recorder = TrajectoryRecorder(tmp_path / "first", spec, {}, "nobody", "a test")
    recorder.add([Fragment(Header(0, 0, 0, 1, 1, 10, (), (0.0, 0.0)), batch)])
    with pytest.raises(RunFailed, match=said):
        recorder.add([Fragment(Header(0, 0, 5, 1, 1, 10, (), (0.0, 0.0)), batch)])  # its is_first ends the episodes
    recorder.close()
    assert sum(open_source(str(tmp_path / "first")).rows_of) == 10, "two episodes of the second environment"
    recorder = TrajectoryRecorder(tmp_path / "second", spec, {}, "nobody", "a test")
    recorder.add([Fragment(Header(0, 0, 0, 1, 1, 10, (), (0.0, 0.0)), batch)])
    with pytest.warns(UserWarning, match=said):
        recorder.close()
    assert sum(open_source(str(tmp_path / "second")).rows_of) == 5


def test_agents_are_trajectories_of_their_own(tmp_path):
    words = [
        "algo=ppo",
        "env=MultiAgentCartPole-v0",
        "++env.kwargs={num_agents: 2}",
        "resources=debug",
        "model.hidden=[8]",
    ]
    sizes = ["algo.fragment_length=16", "algo.batch_size=32", "algo.minibatch_size=16", "env_steps=500", "logger=[]"]
    assert train(*words, *sizes, f"record={tmp_path / 'set'}", f"run_dir={tmp_path / 'run'}") == 0
    found = read(tmp_path / "set")
    assert {one.agent for one in found} == {0, 1} and all(
        one.reward[one.valid].tolist() == [1.0] * one.steps for one in found
    )


def test_frames_are_stored_once_and_drawn_as_they_were(tmp_path):
    """The stacks that a learner draws from data are those that the samplers wrote."""
    from rlrun.core.ranks import ALONE
    from rlrun.core.schedule import Clock
    from rlrun.machine.machine import measured
    from rlrun.runtime.plan import plan

    common = ["env=rlrun/Counting-v0", "env.stack=3", "model.hidden=[8]", "logger=[]"]
    words = ["algo=impala", *common, "algo.fragment_length=5", "algo.batch_size=20", "env_steps=300", "resources=debug"]
    assert train(*words, f"record={tmp_path / 'set'}", f"run_dir={tmp_path / 'run'}") == 0
    assert read(tmp_path / "set")[0].obs["observation"].shape == (LENGTH + 1, 3)
    made = plan(
        type_config(compose("algo=dqn", "runner=offline", *common, f"data.path={tmp_path / 'set'}")), measured()
    )
    rows = made.data.make(made.seeds, ALONE, torch.device("cpu"))
    rows.read()
    batch = rows.sample(100, Clock())
    for stack in batch.obs.observation[0].numpy():  # [3, 3]: frames of [episode, step, tag]
        now = stack[-1]
        for back in (1, 2):
            wanted = [now[0], now[1] - back, now[2]] if now[1] >= back else [0.0, 0.0, 0.0]
            assert stack[-1 - back].tolist() == wanted


@pytest.mark.parametrize("limit, value", [("LONGEST_ROWS", 4), ("LONGEST_BYTES", 124), ("WAITING_BYTES", 250)])
def test_an_episode_whose_end_takes_too_long_is_written_in_parts(limit, value, tmp_path, monkeypatch):
    """The parts have the same decisions as the episode, each once, and stacks of frames, last actions and next
    observations are as they were. No part is a whole episode, and whoever wants whole episodes gets them."""
    from rlrun.core.ranks import ALONE
    from rlrun.core.schedule import Clock
    from rlrun.machine.machine import measured
    from rlrun.runtime.plan import plan

    common = ["env=rlrun/Counting-v0", "env.stack=3", "model.hidden=[8]", "logger=[]"]
    words = ["algo=impala", *common, "algo.fragment_length=5", "algo.batch_size=20", "env_steps=300", "resources=debug"]
    assert train(*words, f"record={tmp_path / 'together'}", f"run_dir={tmp_path / 'run'}") == 0
    monkeypatch.setattr(f"rlrun.datasets.recorder.{limit}", value)
    assert train(*words, f"record={tmp_path / 'parts'}", f"run_dir={tmp_path / 'other'}") == 0
    together, parts = read(tmp_path / "together"), read(tmp_path / "parts")

    def decisions(found):
        return sorted(
            (*one.obs["observation"][t].tolist(), one.reward[t], one.action[t], one.record["log_prob"][t], one.terminated[t], one.truncated[t])
            for one in found for t in np.flatnonzero(one.valid)
        )  # fmt: skip

    assert decisions(parts) == decisions(together) and len(parts) > 1.3 * len(together)
    names = [(one.obs["observation"][0, 0], one.obs["observation"][0, 2]) for one in parts]
    assert all(one.whole == (len(one) == LENGTH + 1 and names.count(name) == 1) for one, name in zip(parts, names, strict=True))
    for one in parts:
        episode, step, _ = one.obs["observation"].T
        again = len(one) - one.steps - 1  # dead rows at the beginning
        assert one.valid.tolist() == [False] * again + [True] * one.steps + [False] and again == min(2, step[again])
        assert np.array_equal(step, step[0] + np.arange(len(one))) and len(set(episode)) == 1
        assert np.array_equal(one.reward[:-1], step[1:]), "dead rows at the beginning have what was paid there"

    made = plan(type_config(compose("algo=dqn", "runner=offline", *common, f"data.path={tmp_path / 'parts'}")), measured())
    rows = made.data.make(made.seeds, ALONE, torch.device("cpu"))
    rows.read()
    batch = rows.sample(200, Clock())
    for stack in batch.obs.observation.flatten(0, 1).numpy():  # of both ends
        now = stack[-1]
        for back in (1, 2):
            wanted = [now[0], now[1] - back, now[2]] if now[1] >= back else [0.0, 0.0, 0.0]
            assert stack[-1 - back].tolist() == wanted
    assert torch.equal(batch.reward[0], batch.obs.observation[1, :, -1, 1]), "only live rows are drawn, with what follows"

    assert _dispatch(["record", str(tmp_path / "run"), "episodes=6", f"to={tmp_path / 'six'}"]) == 0
    assert [(len(one), one.whole) for one in read(tmp_path / "six")] == [(LENGTH + 1, True)] * 6


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Data of a DQN that learns the identity environment."""
    folder = tmp_path_factory.mktemp("recorded")
    words = [*small("dqn", "quick"), "env=rlrun/Identity-v0", "env_steps=2000", "resources=debug", "logger=[]"]
    assert train(*words, f"record={folder / 'set'}", f"run_dir={folder / 'run'}") == 0
    return folder / "set"


OFFLINE = ["algo=dqn", "runner=offline", "resources=debug", "model.hidden=[16]", "logger=[]", "algo.batch_size=20"]


def test_a_run_without_an_environment_learns_from_data_and_resumes_to_the_bit(recorded, tmp_path, capsys):
    from rlrun.commands.resume import main as resume
    from rlrun.runtime.trained import load

    def command(name, steps):
        words = [*OFFLINE, "env=data", f"data.path={recorded}", f"env_steps={steps}", "checkpoint.every=10000"]
        assert train(*words, f"run_dir={tmp_path / name}") == 0
        return tmp_path / name

    whole, part = command("whole", 40000), command("part", 20000)
    assert resume([str(part), "env_steps=40000"]) == 0
    one, other = (checkpoints_of(path).load()[0] for path in (whole, part))
    assert same(one["policy"], other["policy"]) and same(one["algorithm"], other["algorithm"])
    row = (whole / "progress.jsonl").read_text().splitlines()[-1]
    assert '"time/rows_learnt": 40000' in row
    policy = load(whole)
    assert [int(policy.act(np.eye(4, dtype=np.float32)[n])) for n in range(4)] == [0, 1, 2, 3], (
        "it has learnt the identity"
    )
    from rlrun.commands.watch import main as watch

    with pytest.raises(UserError, match="without an environment, so that there is nothing to play"):
        policy.make_env()
    with pytest.raises(UserError, match="rlrun/Identity-v0 cannot draw itself"):  # watch finds the environment
        watch([str(whole)])
    # What acts elsewhere needs no environment.
    from rlrun.commands.export import main as export

    assert export([str(whole)]) == 0 and (whole / "export" / "policy.pt2").is_file()
    assert "acts as the run's own policy" in capsys.readouterr().out


def test_a_run_goes_on_with_data_that_were_moved_and_with_no_others(recorded, tmp_path, monkeypatch):
    from rlrun.commands.resume import main as resume

    shutil.copytree(recorded, tmp_path / "set")
    monkeypatch.chdir(tmp_path)
    run, words = str(tmp_path / "run"), [*OFFLINE, "env=data", "data.path=set", "env_steps=2000"]
    assert train(*words, f"run_dir={run}") == 0
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert resume([run, "env_steps=4000"]) == 0, "relative paths are those of the first command"
    (tmp_path / "set").rename(elsewhere / "moved")
    for typed in ([], ["data.path=movde"]):
        with pytest.raises(UserError, match=r"no data at .*; say where those of this run are: rlrun resume .* data.path="):
            resume([run, "env_steps=6000", *typed])
    assert resume([run, "env_steps=6000", "data.path=moved"]) == 0
    assert resume([run, "env_steps=8000"]) == 0
    with pytest.raises(UserError, match="with the same shares"):
        resume([run, "env_steps=10000", "data.path={a: 0.5, b: 0.5}"])
    words = [*small("dqn", "quick"), "env=rlrun/Identity-v0", "env_steps=200", "resources=debug", "logger=[]"]
    assert train(*words, f"record={elsewhere / 'other'}", f"run_dir={elsewhere / 'own'}") == 0
    assert resume([run, "env_steps=10000", f"data.path={elsewhere / 'other'}"]) == 2, "they are other data"
    with pytest.raises(UserError, match="learns from no recorded data"):
        resume([str(elsewhere / "own"), "env_steps=300", "data.path=moved"])


def test_what_only_the_rows_tell_is_a_sentence_too(recorded, tmp_path, capsys):
    """A run that fails because of its data says so in one sentence and with exit code 2, though it has begun."""
    words = [*OFFLINE, "env=data", f"data.path={recorded}", "env_steps=200", f"run_dir={tmp_path / 'run'}"]
    assert train(*words, "data.min_return=1000") == 2
    said = capsys.readouterr()
    assert "there is nothing to learn from in" in said.err and "Traceback" not in said.out + said.err


def test_returns_of_a_run_from_data_are_those_of_evaluation(recorded, tmp_path, capsys):
    from rlrun.commands.plot import main as plot
    from rlrun.commands.report import main as report
    from rlrun.experiments.outcomes import Outcome, TrainingJob

    run = tmp_path / "run"
    words = [*OFFLINE, "env=rlrun/Identity-v0", f"data.path={recorded}", "env_steps=2000", "eval.every=500"]
    assert train(*words, "eval.episodes=3", f"run_dir={run}") == 0
    assert plot([str(run), "--out", str(tmp_path / "curves.png")]) == 0 and (tmp_path / "curves.png").is_file()
    assert report([str(run)]) == 0
    page, summary = (run / "report.html").read_text(), json.loads((run / "summary.json").read_text())
    assert "mean of evaluation games" in page and "no game has ended" not in page
    outcome = Outcome(job=TrainingJob(name="one", words=(), run_dir=run, log=tmp_path / "log"), summary=summary)
    assert summary["return_mean"] is None and outcome.return_mean == summary["eval_return_mean"] is not None


def test_experience_and_data_are_mixed(recorded, tmp_path):
    words = [*small("dqn", "quick"), "env=rlrun/Identity-v0", "env_steps=300", "resources=debug", "logger=[]"]
    assert train(*words, f"++data.path={{{recorded}: 1.0}}", "data.share=0.25", f"run_dir={tmp_path / 'run'}") == 0
    assert "data" in checkpoints_of(tmp_path / "run").load(parts=("replay",))[0]["replay"]


SHARED = ["algo=dqn", "env=rlrun/Identity-v0", "data.path=SET", "resources.num_learners=2", "resources.device=cpu"]


@pytest.mark.parametrize("words", (["runner=offline"], ["data.share=0.5", "replay.checkpoint=false", "algo.learning_starts=20"]))
def test_every_learner_saves_its_own_draws_from_data(words, recorded, tmp_path):
    """A replay whose rows are left out does not save them with them."""
    run = tmp_path / "run"
    words = [*SHARED, *words, "replay=prioritized", "logger=[]", "algo.batch_size=16", "model.hidden=[8]", "env_steps=400"]
    assert train(*(word.replace("SET", str(recorded)) for word in words), f"run_dir={run}") == 0
    (path,) = (run / "checkpoints").glob("0*")
    kept = [torch.load(path / f"{part}.pt", weights_only=True)["data"] for part in ("replay", "replay-1")]
    assert [state["rank"] for state in kept] == [0, 1] and not list(path.glob("*.bin"))
    one, two = (state["shelves"][0] for state in kept)
    assert one["fed"] == two["fed"] and not torch.equal(one["priorities"], two["priorities"])
    assert _dispatch(["resume", str(run), "env_steps=432"]) == 0
    after = torch.load(max((run / "checkpoints").glob("0*")) / "replay-1.pt", weights_only=True)["data"]["shelves"][0]["priorities"]
    assert (after == two["priorities"]).sum() > (after == one["priorities"]).sum(), "it goes on with its own"


@pytest.mark.parametrize(
    "words, said",
    (
        (["algo=dqn", "runner=offline", "env=CartPole-v1"], "say which with data.path=DIR"),
        (["algo=ppo", "runner=offline", "env=rlrun/Identity-v0", "data.path=SET"], "learns from the newest policy's rows alone"),
        (["algo=dqn", "env=rlrun/Identity-v0", "data.path=SET"], "needs data.share"),
        (["algo=ppo", "env=rlrun/Identity-v0", "data.path=SET"], "data.path is for runner=offline"),
        (["algo=dqn", "runner=offline", "env=CartPole-v1", "data.path=SET"], r"holds other rows: actions Discrete\(4\), where CartPole-v1 has Discrete\(2\)"),
        (["algo=dqn", "runner=offline", "env=data", "data.path=nowhere"], "there is no file or folder nowhere, and no Minari set of this name$"),
        (["algo=dqn", "runner=offline", "env=data", "data.path=data/x-medium_replay"], "no folder data/x-medium_replay yet; scripts/make_offline_data x --levels medium_replay makes it"),
        (["tuned=bc/cartpole"], "scripts/make_offline_data cartpole --levels expert makes it"),
        (["algo=marwil", "runner=on_policy", "data.path=SET", "env=rlrun/Identity-v0"], "marwil learns from recorded data, which runner=on_policy has not: use runner=offline"),
        (["algo=bc", "runner=on_policy", "data.path=SET", "env=rlrun/Identity-v0"], "or from recorded data with offline"),
        (["algo=marwil", "algo.learns_from=experience", "data.path=SET", "env=rlrun/Identity-v0"], "learns from experience and not from recorded data"),
        (["algo=discrete_cql", "runner=offline", "data.path=SET", "env=data", "algo.random_steps=3"], "runs that gather experience"),
        (["algo=dqn", "runner=offline", "env=data", "++data.path={SET: 0.7, SET/x: 0.5}"], "0 or more, and 1 in all"),
        (["algo=dqn", "runner=offline", "data.path=SET", "env=data", "eval.every=100"], "this run has no environment"),
        (["algo=dqn", "runner=offline", "data.path=SET", "env=data", "algo.num_envs=3"], "runs that gather experience"),
        (["algo=dqn", "runner=offline", "data.path=SET", "env=data", "resources.num_samplers=3"], "has no samplers"),
        (["algo=dqn", "runner=offline", "data.path=SET", "env=data", "record=x"], "runner=offline has none"),
        (["algo=es", "env=CartPole-v1", "record=x"], "runner=evolution has none"),
        ([*SHARED, "data.share=0.5", "record=SET"], "would add to data.path=.*, which this run learns from"),
        ([*SHARED, "data.share=0.5", "record=SET/../set"], "would add to data.path=.*, which this run learns from"),
        (["algo=dqn", "env=rlrun/Identity-v0", "data.path=SET", "data.share=0.001"], "leaves rows for both"),
        (["algo=dqn", "env=rlrun/Identity-v0", "data.path=SET", "data.share=0.5", "data.reward_scale=returns"], "not those of experience"),
        ([*SHARED, "algo.batch_size=8", "data.share=0.125"], r"is 1 of the 8 .* 2 .* data\.share=0\.25 would fit"),
        ([*SHARED, "algo.batch_size=8", "data.share=0.9"], r"is 7 of .*; data\.share=0\.75 would fit, with 6 rows"),
        ([*SHARED, "algo.batch_size=2", "data.share=0.5"], r"each has a single row, .* set resources\.num_learners=1"),
        (["algo=dqn", "runner=offline", "env=data", "++data.path={SET: -1.0}"], "must be 0 or more"),
        (["algo=dqn", "runner=offline", "env=data", "data.path=SET", "data.min_return=5", "data.max_return=1"], "no trajectory would be left"),
        (["algo=dqn", "runner=offline", "env=data", "data.path=SET", "replay=prioritized", "algo.input_priorities=true"], "recorded data have none"),
    ),
)  # fmt: skip
def test_bad_input_is_a_sentence(words, said, recorded, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=said):
        train(*(word.replace("SET", str(recorded)) for word in words), f"run_dir={tmp_path / 'run'}", "logger=[]")
    assert not (tmp_path / "run").exists() and not (tmp_path / "x").exists()


def test_the_plan_of_a_run_that_plays_nothing_says_so(recorded, capsys):
    assert _dispatch(["train", "--plan", "algo=dqn", "runner=offline", f"data.path={recorded}"]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line.strip()}
    assert "none: rows are drawn from data" in lines["samplers"]
    assert not lines.keys() & {"fragments", "weights"}, "nobody collects rows or acts"


def test_a_plan_leaves_no_folder_for_the_record(tmp_path):
    assert _dispatch(["train", "--plan", "algo=dqn", "env=CartPole-v1", f"record={tmp_path / 'new' / 'data'}"]) == 0
    assert not (tmp_path / "new").exists()


def test_a_run_records_into_a_folder_beside_the_files_that_it_learns_from_and_goes_on(recorded, tmp_path):
    data, run = shutil.copytree(recorded, tmp_path / "set"), tmp_path / "run"
    words = [*small("dqn", "quick"), "env=rlrun/Identity-v0", "resources=debug", "logger=[]", "env_steps=200"]
    assert train(*words, f"data.path={data}", "data.share=0.5", f"record={data}/new", f"run_dir={run}") == 0
    assert _dispatch(["resume", str(run), "env_steps=300"]) == 0
    assert sum(one.steps for one in read(data / "new")) >= 300


def test_the_command_needs_no_env(recorded, tmp_path, capsys):
    words = ["train", *OFFLINE[:2], "resources=debug", "logger=[]", f"data.path={recorded}", "env_steps=500"]
    assert _dispatch([*words, f"run_dir={tmp_path / 'run'}"]) == 0
    assert "dqn on rlrun/Identity-v0" in capsys.readouterr().out
    with warnings.catch_warnings():
        warnings.simplefilter("error", Notice)
        assert _dispatch(["evaluate", str(tmp_path / "run"), "episodes=1", "checkpoint=last"]) == 0


def test_a_policy_is_recorded_and_shown(tmp_path, capsys, monkeypatch):
    """Episodes come evenly from all environments, one name of a policy stands for each recording, and returns are shown."""
    from rlrun.commands.data import main as data
    from rlrun.commands.record import main as record

    words = ["algo=impala", *SMALL, "env=rlrun/Counting-v0", "env_steps=200"]
    assert train(*words, f"run_dir={tmp_path / 'run'}") == 0
    to = f"to={tmp_path / 'set'}"
    assert record([str(tmp_path / "run"), to, "episodes=10", "num_envs=4", "random"]) == 0
    assert record([str(tmp_path / "run"), to, "episodes=5", "greedy", "--json"]) == 0
    assert '"episodes": 5' in capsys.readouterr().out.splitlines()[-1]
    found = read(tmp_path / "set")
    assert check_counting(found) == 15 * LENGTH and all(one.whole and one.has_log_prob for one in found)
    source = open_source(str(tmp_path / "set"))
    by_policy = {
        name: [one for one in found if source.facts.policies[one.policy] == name] for name in source.facts.policies
    }
    assert {name.split(",")[0]: len(ones) for name, ones in by_policy.items()} == {"uniformly random": 10, "impala": 5}
    for one in by_policy["uniformly random"]:
        assert np.allclose(one.record["log_prob"][one.valid], -np.log(5))
    assert data([str(tmp_path / "set"), "check=true", "random_return=0", "expert_return=56", "bins=3"]) == 0
    shown = capsys.readouterr().out
    for said in (
        "15 trajectories, 105 decisions",
        "uniformly random: 10",
        "50.0 of 100",
        "the right sha256",
        "28.00 (deviation 0.00)",
    ):
        assert said in shown
    copied = tmp_path / "copied"  # files without their list, then one of two with it
    shutil.copytree(tmp_path / "set", copied)
    (copied / "dataset.json").unlink()
    assert data([str(copied), "check=true"]) == 0
    shown = capsys.readouterr().out
    assert "no file was compared, because dataset.json" in shown and "every row can be read" in shown
    listed = json.loads((tmp_path / "set" / "dataset.json").read_text())
    listed["files"].popitem()
    (copied / "dataset.json").write_text(json.dumps(listed))
    assert data([str(copied), "check=true"]) == 0
    files = len(listed["files"])
    assert f"{files} of {files + 1} files have sha256 sums, which are right" in capsys.readouterr().out
    assert record([str(tmp_path / "run"), f"to={tmp_path / 'steps'}", "env_steps=100"]) == 0
    assert 100 <= sum(one.steps for one in read(tmp_path / "steps")) < 100 + 8 * 16
    (tmp_path / "foreign").mkdir()
    pq.write_table(pa.table({"obs": [1]}), tmp_path / "foreign" / "theirs.parquet")
    for words, said in (
        ([str(tmp_path / "run"), f"to={tmp_path / 'foreign'}"], "holds other files, such as theirs.parquet"),
        ([str(tmp_path / "run"), "greedy", "random"], "chosen in one way"),
        ([str(tmp_path / "run"), "episodes=3", "env_steps=5"], "give one of them"),
        ([str(tmp_path / "run"), f"to={tmp_path / 'run'}"], "holds other files"),
    ):
        with pytest.raises(UserError, match=said):
            record(words)


def test_9_the_observation_filter_is_that_of_the_data_and_stays(recorded, tmp_path):
    """Known answer 9 of the reference: computed from the set once, saved and loaded, never again on resume."""
    from rlrun.commands.resume import main as resume
    from rlrun.runtime.trained import load

    words = [*OFFLINE, "env=data", f"data.path={recorded}", "model.observation_filter=mean_std", "env_steps=400"]
    assert train(*words, f"run_dir={tmp_path / 'run'}") == 0
    seen = np.concatenate([one.obs["observation"][one.valid] for one in read(recorded)])
    before = {name: value.clone() for name, value in load(tmp_path / "run").policy.filter.state_dict().items()}
    assert any(np.allclose(value.numpy(), seen.mean(0), atol=1e-4) for value in before.values() if value.shape == (4,))
    assert resume([str(tmp_path / "run"), "env_steps=800"]) == 0
    for name, value in load(tmp_path / "run").policy.filter.state_dict().items():
        assert torch.equal(value, before[name])


def make_data():
    """The program behind scripts/make_offline_data."""
    path = Path(__file__).parents[2] / "scripts" / "offline" / "make_data.py"
    spec = importlib.util.spec_from_file_location("make_data", path)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


def test_sets_of_policies_that_nobody_trained_are_refused_or_left_out(tmp_path, monkeypatch, capsys):
    """Without --levels the others are made. A run that ends at a medium policy is not trained to an expert."""
    script = make_data()
    script.POLICIES = tmp_path
    tiny = {"words": [*small("dqn", "tiny"), "env=rlrun/Identity-v0"], "levels": {}, "last": "medium"}
    (tmp_path / "tiny.json").write_text(json.dumps(tiny))
    (tmp_path / "other.json").write_text(json.dumps({**tiny, "extra": "mujoco"}))

    def run(*words):
        monkeypatch.setattr("sys.argv", ["make_data.py", "--folder", str(tmp_path / "data"), "--rows", "100", *words])
        return script.main()

    for words, said in (
        (["--levels", "random,expert"], "nobody has trained a policy for tiny-expert yet"),
        (["--levels", "replay", "--train"], "tiny-replay yet"),
        (["--levels", "best"], "best: there are other, tiny"),
    ):
        with pytest.raises(SystemExit) as stopped:
            run(*words)
        assert stopped.value.code == 2 and said in capsys.readouterr().err
    assert run() == 0 and [path.name for path in (tmp_path / "data").iterdir()] == ["tiny-random"]
    facts = json.loads((tmp_path / "data" / "tiny-random" / "dataset.json").read_text())["facts"]
    assert facts.get("expert_return") is None, "there is no expert whose return could be a reference"
    assert script.can_make("tiny", "medium_replay", train=True) and not script.can_make("tiny", "medium_replay")
    (tmp_path / "tiny.json").write_text(json.dumps({**tiny, "levels": {"medium": {"env_steps": 9}}}))
    assert script.can_make("tiny", "medium_replay") and not script.can_make("tiny", "replay")


def test_a_set_that_is_made_again_elsewhere_has_the_same_sum_of_rows(tmp_path, monkeypatch, capsys, written):
    """The files differ, since they name folders and times; the rows of random play, and of a run that learns, do not."""
    script = make_data()
    tiny = {"words": [*small("dqn", "tiny"), "env=rlrun/Identity-v0"], "levels": {"expert": {"env_steps": 120}}}
    monkeypatch.setattr(script, "described", lambda name: tiny)

    def shown(folder):
        from rlrun.commands.data import main as data

        assert data([str(folder), "--json"]) == 0
        return json.loads(capsys.readouterr().out.splitlines()[-1])["content_sha256"]

    for name, make, seeds in (
        ("random", lambda folder, seed: script.sampled("x", "random", folder, 100, f"made in {folder}", seed), (5, 5, 6)),
        ("replay", lambda folder, seed: script.replay("x", folder, "expert"), (0, 0)),
    ):
        sums, files = [], []
        for number, seed in enumerate(seeds):
            folder = tmp_path / f"{name}{number}" / "set"
            make(folder, seed)
            sums.append(shown(folder))
            files.append(next(folder.glob("*.parquet")).read_bytes())
            assert sums[-1] in script.content(folder)
        assert sums[0] == sums[1] and files[0] != files[1] and len(set(sums)) == len(set(seeds))
    # Neither files and row groups nor the order of trajectories count, and what stands in dead rows does not either.
    made = [episode(n, 9, life=n == 3) for n in range(20)]
    dead = [replace(one, reward=np.where(one.valid, one.reward, 7).astype(np.float32)) for one in made]
    one, other = written(made, folder="one"), written(reversed(dead), folder="other", group_rows=30)
    assert shown(one) == shown(other) != shown(written(made[1:], folder="less"))
    changed = replace(made[0], reward=made[0].reward + np.float32(1e-6))
    assert shown(one) != shown(written([changed, *made[1:]], folder="changed"))


@pytest.fixture
def full_disk(monkeypatch):
    """full_disk(after) lets the disk be full after so many row groups of 50 rows, two of which fill a file. It returns a
    function that makes room again."""
    monkeypatch.setattr("rlrun.datasets.parquet_writer.Writer.__init__.__defaults__", (50,))

    def fill(after, method="write_table"):
        writer, real, calls = pq.ParquetWriter, getattr(pq.ParquetWriter, method), []

        def write(self, *args, **options):
            calls.append(None)
            if len(calls) > after:
                if method == "write_table":
                    real(self, args[0].slice(0, 10))  # half of it is there
                raise OSError(errno.ENOSPC, "No space left on device")
            return real(self, *args, **options)

        monkeypatch.setattr(writer, method, write)
        return lambda: monkeypatch.setattr(writer, method, real)

    return fill


@pytest.mark.parametrize("method, after", [("write_table", 5), ("close", 1)])
def test_a_full_disk_ends_a_run_that_records_and_the_run_is_saved(method, after, full_disk, tmp_path, monkeypatch, capsys):
    from rlrun.commands.resume import main as resume

    monkeypatch.setattr("rlrun.datasets.parquet_writer.FILE_BYTES", 100 * 40)
    run, data = tmp_path / "run", tmp_path / "data"
    room = full_disk(after, method)
    words = [*small("dqn", "tiny"), "env=rlrun/Identity-v0", "resources=debug", "logger=[]", "env_steps=800"]
    assert train(*words, f"record={data}", f"run_dir={run}") == 1
    said = capsys.readouterr()
    assert re.search(rf"rlrun: {data}: data cannot be written, because the disk is full: [\d,]+ rows take up to [\d.]+ MB, and [\d,.]+ MB are free; \d+ recorded rows are in no finished file and are lost$", said.err.strip()) and "Traceback" not in said.out + said.err  # fmt: skip
    summary = json.loads((run / "summary.json").read_text())
    assert summary["status"] == "FAILED" and "the disk is full" in summary["reason"]
    steps = int(checkpoints_of(run).names()[-1])
    assert steps == summary["env_steps"] < 800, "a checkpoint was made when the disk was full"
    rlrun.load(run)
    left = sorted(path.name for path in data.iterdir() if path.name not in ("dataset.json", ".lock"))
    source = open_source(str(data))
    assert len(left) == len(source.listed) and source.check_hashes() == len(left) and 100 <= source.most_rows <= steps
    room()
    assert resume([str(run)]) == 0
    assert json.loads((run / "summary.json").read_text())["status"] == "COMPLETED"
    assert sum(one.steps for one in read(data)) >= 800 - steps


def test_a_full_disk_ends_the_recording_of_a_policy(full_disk, tmp_path):
    from rlrun.commands.record import main as record

    run, data = tmp_path / "run", tmp_path / "data"
    assert train("algo=impala", *SMALL, "env=rlrun/Counting-v0", "env_steps=200", f"run_dir={run}") == 0
    room = full_disk(1)
    with pytest.raises(RunFailed, match=rf"{data}: data cannot be written, because the disk is full: "):
        record([str(run), f"to={data}", "episodes=30"])
    assert [path.name for path in data.iterdir()] == []
    with pytest.raises(UserError, match="holds no data"):
        open_source(str(data))
    room()
    assert record([str(run), f"to={data}", "episodes=30"]) == 0 and len(read(data)) == 30


def test_a_set_without_rows_is_refused_before_there_is_a_run(recorded, tmp_path, monkeypatch):
    from rlrun.runtime.data_plan import DataPlan

    monkeypatch.setattr(DataPlan, "rows", 0)
    words = [*OFFLINE, "env=data", f"data.path={recorded}", "env_steps=200", f"run_dir={tmp_path / 'run'}"]
    with pytest.raises(UserError, match=r"there is nothing to learn from: .* holds no rows"):
        train(*words)
    assert not (tmp_path / "run").exists()


def test_a_run_on_data_alone_is_played_with_the_options_of_the_data(tmp_path):
    """A short limit gives short games. Options are not taken where the data differ, or may name code."""
    common = ["logger=[]", "resources=debug", "model.hidden=[8]"]
    for name, words in (("short", ["env.max_episode_steps=7"]), ("plain", [])):
        made = ["algo=pg", "env=CartPole-v1", "env_steps=400", *words, f"record={tmp_path / name}"]
        assert train(*made, *common, f"run_dir={tmp_path / name}-run") == 0
        saved = load_yaml(tmp_path / f"{name}-run" / "config.yaml")
        assert open_source(str(tmp_path / name)).facts.env == saved["env"]
    both = f"{{{tmp_path}/short: 0.5, {tmp_path}/plain: 0.5}}"
    runs = {}
    for name, path in (("short", tmp_path / "short"), ("plain", tmp_path / "plain"), ("both", both)):
        runs[name] = tmp_path / f"{name}-bc"
        words = ["algo=bc", f"data.path={path}", "algo.batch_size=50", "env_steps=200", f"run_dir={runs[name]}"]
        assert _dispatch(["train", *words, *common]) == 0
    with pytest.warns(Notice, match="CartPole-v1 is played with env.max_episode_steps=7, as the data were recorded"):
        played = in_environment(rlrun.load(runs["short"]))
    assert played.config.env.max_episode_steps == played.spec.max_episode_steps == 7
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert in_environment(rlrun.load(runs["plain"])).spec.max_episode_steps == 500
    config = load_yaml(runs["both"] / "config.yaml")
    assert config["env"]["options"] is None
    config["env"]["spec"]["max_episode_steps"] = 500
    save_yaml(config, runs["both"] / "config.yaml")
    with pytest.warns(Notice, match="not known with which options CartPole-v1 was made"):
        in_environment(rlrun.load(runs["both"]))
    config["env"]["options"] = {"slippery": True}
    save_yaml(config, runs["both"] / "config.yaml")
    with pytest.raises(UserError, match=r"CartPole-v1 has no option env\.slippery here"):
        in_environment(rlrun.load(runs["both"]))
    with pytest.raises(UserError, match=r"env\.options is what a run stores"):
        _dispatch(["train", "algo=bc", f"data.path={tmp_path}/short", "env.options={stack: 2}", *common])
    again = ["--from-run", str(runs["short"]), f"data.path={tmp_path}/plain", f"run_dir={tmp_path}/again"]
    assert _dispatch(["train", *again]) == 0
    assert load_yaml(tmp_path / "again" / "config.yaml")["env"]["options"]["max_episode_steps"] is None
    served = replace(rlrun.load(tmp_path / "short-run").config.env, kwargs={"server": "tcp://me:hunter2@host:1"})
    assert "hunter2" not in json.dumps(recorded_options(served))
    for harmless in ({"max_episode_steps": 7}, {"kwargs": {"map_name": "8x8", "slippery": False, "goals": [1, 2.5]}}):
        assert taken_options({"name": "a:B", "family": "gym", "reward_clip": 1.0, **harmless}) == harmless
    deep = {"kwargs": functools.reduce(lambda inside, _: [inside], range(9), 1)}
    for harmful in ({"wrappers": ["my_rl.envs:Hurry"]}, {"kwargs": {"file": "/etc/passwd"}}, {"kwargs": {"a.b": 1}}, {"kwargs": {"_target_": "a"}}, {"kwargs": {"module": "a"}}, deep):
        assert taken_options({"stack": 1, **harmful}) is None
