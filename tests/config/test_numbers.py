"""Whole numbers may be written 200k, 1M and 10_000 wherever an option is one, and what is saved are plain numbers.
A ~ in front of a path is the home folder."""

import os

import pytest
from conftest import SMALL, compose

import rlrun
from rlrun.cli import _dispatch, take_flags
from rlrun.config.run import type_config, with_home, with_numbers
from rlrun.config.types import ConfigError, load_yaml, parse_assignments
from rlrun.config.words import word_at_home
from rlrun.core.errors import UserError
from rlrun.core.numbers import number, whole_number
from rlrun.core.schedule import Clock, Schedule

READ = {"200k": 200_000, "200K": 200_000, "1M": 1_000_000, "1.5M": 1_500_000, "2G": 2_000_000_000, "1B": 10**9}
READ |= {"10_000": 10_000, "2e6": 2_000_000, "-3k": -3000, "1.1M": 1_100_000, "0.0005M": 500}


@pytest.mark.parametrize("text", READ)
def test_how_numbers_are_read(text):
    assert whole_number(text) == READ[text] and isinstance(number(text), int)


@pytest.mark.parametrize("text", ["1Q", "1m", "M", "1 M", "1MM", "k1", "1e999999", "", "auto", "1.2.3"])
def test_what_is_no_number(text):
    assert number(text) is None


def test_texts_become_numbers_where_an_option_is_one():
    base = compose("algo=impala", "env=CartPole-v1", *SMALL)
    words = {"env_steps": "1.5M", "log_every_steps": "2k", "run_dir": "1M"}
    made = with_numbers({**base, **words, "eval": {**base["eval"], "every": "200k"},
                         "model": {**base["model"], "hidden": ["1k", 64]}, "stop": {**base["stop"], "return_mean": "0.5k"}})  # fmt: skip
    assert (made["env_steps"], made["log_every_steps"], made["eval"]["every"]) == (1_500_000, 2000, 200_000)
    assert made["model"]["hidden"] == [1000, 64] and made["stop"]["return_mean"] == 500.0
    assert made["run_dir"] == "1M", "a folder may be called 1M"


def test_the_home_folder_replaces_a_tilde_in_front_of_a_path(tmp_path, monkeypatch):
    """bash leaves it in data.path=~/rows and --out=~/x, and zsh in every word."""
    monkeypatch.setenv("HOME", str(tmp_path))
    run, rows = str(tmp_path / "run"), str(tmp_path / "rows")
    words = ["algo=dqn", "env=CartPole-v1", "resources=debug", "logger=[]", "env_steps=300", "algo.learning_starts=100"]
    assert _dispatch(["train", *words, "replay.capacity=200", "run_dir=~/run", "record=~/rows"]) == 0
    assert load_yaml(tmp_path / "run" / "config.yaml")["record"] == rows
    assert rlrun.load("~/run").clock.env_steps == 300
    assert rlrun.evaluate("~/run", episodes=1)["episodes"] == 1
    for place in ("~/rows", "'~/rows'", "{~/rows: 1.0}"):
        assert _dispatch(["train", "--plan", "algo=bc", "resources=debug", "logger=[]", f"data.path={place}"]) == 0
    assert _dispatch(["sweep", "algo=pg", "env=CartPole-v1", "record=~/a,~/b", "logger=[]", "--dry-run"]) == 0
    assert word_at_home("a='see ~/x, or: ~/y'") == "a='see ~/x, or: ~/y'" and word_at_home("a=[~/x, ~/y]").count("~") == 0
    assert take_flags(["--out=~/x", "y=~/z"], {"--out": str}) == ({"--out": f"{tmp_path}/x"}, ["y=~/z"])
    assert parse_assignments(["to=~/x", "kind=x~/y"]) == {"to": f"{tmp_path}/x", "kind": "x~/y"}
    plain = {"runs_root": "~", "data": {"path": {"~/rows": 1.0}}, "algo": {"fixed": {"a": "~/run"}}}
    found = {"runs_root": str(tmp_path), "data": {"path": {rows: 1.0}}, "algo": {"fixed": {"a": run}}}
    assert with_home(plain) == found


def test_schedules_count_env_steps_in_the_same_way():
    for given in ("1 to 0 over 2k", {"start": 1, "end": 0, "steps": "2k"}, [["0", 1.0], ["2k", "0"]]):
        assert Schedule.parse(given)(Clock(1000)) == pytest.approx(0.5)


def test_a_run_is_saved_with_plain_numbers(tmp_path):
    words = ["algo=impala", "env=CartPole-v1", *SMALL, "env_steps=0.2k", "checkpoint.every=0.1k"]
    assert _dispatch(["train", *words, f"run_dir={tmp_path / 'run'}"]) == 0
    saved = load_yaml(tmp_path / "run" / "config.yaml")
    assert (saved["env_steps"], saved["checkpoint"]["every"]) == (200, 100)
    assert _dispatch(["resume", str(tmp_path / "run"), "env_steps=0.3k"]) == 0
    assert load_yaml(tmp_path / "run" / "config.yaml")["env_steps"] == 300


def test_a_folder_of_options_may_hold_them(tmp_path, monkeypatch):
    """As a tuned file does. --plan shows the batch, which is an option of the file too."""
    folder = tmp_path / "conf" / "tuned" / "impala"
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text(
        "# @package _global_\ndefaults:\n  - override /algo: impala\n  - override /env: CartPole-v1\n"
        "env_steps: 3k\nalgo: {batch_size: 1k, fragment_length: 50}\n"
    )
    found = []
    monkeypatch.setattr("rlrun.commands.train.start", lambda values, *rest: found.append(values) or 0)
    assert _dispatch(["train", f"--config-dir={tmp_path / 'conf'}", "tuned=impala/mine"]) == 0
    assert found[0]["env_steps"] == 3000 and found[0]["algo"]["batch_size"] == 1000


@pytest.mark.parametrize("word", ["env_steps=1Q", "log_every_steps=3m", "eval.every=1MM"])
def test_a_wrong_suffix_gets_a_sentence(word):
    option, _, value = word.partition("=")
    with pytest.raises(UserError, match=rf"^{option} must be a whole number.*{value}.*k, M and G stand for a thousand"):
        _dispatch(["train", "--plan", "algo=ppo", "env=CartPole-v1", word])


def test_flags_of_commands_take_them_too():
    assert take_flags(["--every", "10k", "--trials=1k"], {"--every": float, "--trials": int})[0] == {
        "--every": 10_000.0,
        "--trials": 1000,
    }
    with pytest.raises(UserError, match="--trials 1Q: this is not a whole number"):
        take_flags(["--trials", "1Q"], {"--trials": int})


def test_the_name_of_a_checkpoints_folder_is_a_decimal_number():
    """YAML would read 000000001647 as octal."""
    words = ["checkpoint=000000001647", "seed=0", "share=0.5", "bits=0x10"]
    assert parse_assignments(words) == {"checkpoint": 1647, "seed": 0, "share": 0.5, "bits": "0x10"}


@pytest.mark.parametrize("algo, option", [("sac", "target_entropy"), ("sac", "initial_alpha"), ("c51", "v_max")])
def test_what_is_added_or_multiplied_is_finite(algo, option):
    env = "CartPole-v1" if algo == "c51" else "Pendulum-v1"
    with pytest.raises(ConfigError, match=f"{option} must be .*finite"):
        type_config(compose(f"algo={algo}", f"env={env}", f"algo.{option}=inf"))


@pytest.mark.parametrize("algo, said", [
    ("qr_dqn", "must be positive and finite"), ("iqn", "must be positive and finite"), ("tqc", "must be a finite number"),
])  # fmt: skip
def test_a_loss_that_is_divided_by_its_bound_takes_no_infinite_one(algo, said):
    """The loss would be 0, and nothing would be learnt."""
    env = "Pendulum-v1" if algo == "tqc" else "CartPole-v1"
    with pytest.raises(ConfigError, match=f"huber_delta {said}"):
        type_config(compose(f"algo={algo}", f"env={env}", "algo.huber_delta=inf"))


def test_all_commands_read_values_as_train_does():
    words = ["a={size:5, hard: yes}", "b=[1,~/x,'2']", "c=a path #1", "d=3e-4 to 1e-5 over 1M", "e=true", "f=null", "g=\"x\"", "h=1_000"]
    assert parse_assignments(words) == {
        "a": {"size": 5, "hard": "yes"}, "b": [1, os.path.expanduser("~/x"), "2"], "c": "a path #1", "d": "3e-4 to 1e-5 over 1M",
        "e": True, "f": None, "g": "x", "h": 1000,
    }  # fmt: skip
    for word, said in (("a=[1", "a bracket or a quote may be missing"), ("a=range(1,3)", "one value each"), ("a=&a [*a]", "")):
        if said:
            with pytest.raises(UserError, match=said):
                parse_assignments([word])
        else:
            assert parse_assignments([word]) == {"a": "&a [*a]"}
    assert parse_assignments(["a=is,wis", 'b={"render_mode": null}']) == {"a": "is,wis", "b": {"render_mode": None}}
