"""RLlib's options of the offline data API become data.path, record and their neighbours, or get a reason."""

import json

import numpy as np
import pytest
import yaml

from rlrun.cli import _dispatch
from rlrun.rllib.translate import translate

POSITIONS = {"DQN": "CartPole-v1", "SAC": "Pendulum-v1", "PPO": "CartPole-v1", "APEX": "CartPole-v1"}


def made(run, **config):
    (one,) = translate("x", {"run": run, "env": POSITIONS[run], "config": config}, "x")
    assert "data.path" not in one.values and "record" not in one.values, "a file may not choose folders for its reader"
    found = {key: value for key, value in {**one.values, **one.places}.items() if key.split(".")[0] in ("data", "record") or key == "runner._choice"}
    return found, {line.key: line for line in one.lines if line.given}


@pytest.mark.parametrize("run, config, wanted", [
    ("DQN", {"input": "/out/cartpole"}, {"data.path": "/out/cartpole", "runner._choice": "offline"}),
    ("DQN", {"input_": "out/*.json"}, {"data.path": "out/*.json", "runner._choice": "offline"}),
    ("SAC", {"input": ["enormous.zip"], "actions_in_input_normalized": True}, {"data.path": "enormous.zip", "runner._choice": "offline", "data.actions_normalized": True}),
    ("SAC", {"input": {"/a": 0.7, "/b": 0.3}, "actions_in_input_normalized": False}, {"data.path": {"/a": 0.7, "/b": 0.3}, "runner._choice": "offline", "data.actions_normalized": False}),
    ("SAC", {"input": {"/a": 0.4, "sampler": 0.6}}, {"data.path": "/a", "data.share": 0.4}),
    ("SAC", {"input": {"/a": 0.25, "/b": 0.25, "sampler": 0.5}}, {"data.path": {"/a": 0.5, "/b": 0.5}, "data.share": 0.5}),
    ("SAC", {"input": {"/a": 1.0, "/b": 0.0}}, {"data.path": "/a", "runner._choice": "offline"}),
    ("SAC", {"input": "dataset", "input_config": {"format": "json", "paths": "/a/b.json"}}, {"data.path": "/a/b.json", "runner._choice": "offline"}),
    ("DQN", {"input": "sampler"}, {}),
    ("DQN", {"input_config": {"paths": "/a"}}, {}),
    ("PPO", {"output": "/rec"}, {"record": "/rec"}),
    ("PPO", {"output": "dataset", "output_config": {"format": "json", "path": "/rec"}}, {"record": "/rec"}),
    ("PPO", {"output": "logdir"}, {}),
    ("PPO", {"output": None}, {}),
])  # fmt: skip
def test_what_an_experiment_learns_from_and_records(run, config, wanted):
    found, lines = made(run, **config)
    assert found == wanted
    assert config.keys() <= lines.keys() and all(line.how != "not mapped" for key, line in lines.items() if key in config)


@pytest.mark.parametrize("run, value, why", [
    ("PPO", "/out", "newest policy"), ("APEX", "/out", "apex"), ("SAC", "d4rl.hopper-medium-v0", "minari"), ("SAC", "s3://bucket/a.json", "this machine"),
    ("SAC", "my_package.Reader", "ported"), ("SAC", {"/a": -1.0}, "no files"), ("SAC", {"sampler": 1.0}, "no files"), ("SAC", [], "no files"), ("SAC", "dataset", "no files"),
])  # fmt: skip
def test_inputs_without_a_counterpart_get_a_reason(run, value, why):
    found, lines = made(run, input=value, actions_in_input_normalized=False)
    assert found == {} and lines["input"].how == "not mapped" and why in lines["input"].why
    assert lines["actions_in_input_normalized"].how == "dropped"


def test_the_rest_of_the_api_is_dropped_or_said_to_be_lost():
    names = {
        "input_evaluation": ["is", "wis"], "off_policy_estimation_methods": {"is": {"type": "is"}}, "postprocess_inputs": True, "shuffle_buffer_size": 10,
        "output_max_file_size": 5000000, "output_compress_columns": ["obs"], "output_write_episodes": True, "input_read_episodes": True, "input_read_sample_batches": True,
        "materialize_data": True, "map_batches_kwargs": {"concurrency": 2}, "iter_batches_kwargs": {"prefetch_batches": 1}, "dataset_num_iters_per_learner": 1,
        "ignore_final_observation": False, "input_read_schema": {}, "evaluation_config": {"input": "sampler"},
    }  # fmt: skip
    _, lines = made("DQN", input="/out", **names)
    lines["evaluation_config"] = lines["evaluation_config.input"]
    assert {key: lines[key].how for key in names} == dict.fromkeys(names, "dropped")
    assert all(lines[key].why for key in names)
    _, lines = made("DQN", input="/out", ignore_final_observation=True, input_read_schema={"obs": "o"}, evaluation_config={"input": "/b"}, prelearner_class="my.Class")
    assert all(lines[key].how == "not mapped" for key in ("ignore_final_observation", "input_read_schema", "evaluation_config.input", "prelearner_class"))


@pytest.mark.parametrize("run", ["DQN", "SAC"])
def test_an_imported_file_trains_from_rllibs_own_files(tmp_path, run, capsys):
    count, rng = 200, np.random.default_rng(0)
    width, actions = (4, rng.integers(2, size=count)) if run == "DQN" else (3, rng.uniform(-1, 1, (count, 1)))
    obs = rng.normal(size=(count + 1, width))
    done = np.arange(count) % 20 == 19
    batch = {"type": "SampleBatch", "obs": obs[:-1], "new_obs": obs[1:], "actions": actions, "rewards": np.ones(count), "dones": done, "eps_id": np.arange(count) // 20}
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "output.json").write_text(json.dumps({key: value.tolist() if key != "type" else value for key, value in batch.items()}) + "\n")
    config = {"input": str(tmp_path / "data"), "actions_in_input_normalized": True, "train_batch_size": 16}
    file = tmp_path / "offline.yaml"
    file.write_text(yaml.safe_dump({"offline": {"run": run, "env": POSITIONS[run], "config": config}}))
    assert _dispatch(["import-rllib", str(file), "--dir", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    assert f"rlrun train --config-dir {tmp_path / 'out'} tuned={run.lower()}/offline data.path={tmp_path / 'data'}" in said
    text = (tmp_path / "out" / "tuned" / run.lower() / "offline.yaml").read_text()
    assert "# The command line has to say data.path=" in text and "\n  path:" not in text
    words = [f"data.path={tmp_path / 'data'}", "--config-dir", str(tmp_path / "out"), f"tuned={run.lower()}/offline", f"run_dir={tmp_path / 'run'}", "env_steps=320", "logger=[]", "resources=debug"]
    assert _dispatch(["train", *words]) == 0
    config = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert config["runner"]["name"] == "offline" and config["data"]["path"] == str(tmp_path / "data")
    rows = [json.loads(line) for line in (tmp_path / "run" / "progress.jsonl").read_text().splitlines()]
    assert rows[-1]["env_steps"] >= 320
