"""`rlrun explain` finds options by their names."""

import re

import pytest

from rlrun.cli import _dispatch
from rlrun.config.option_lookup import LINES, find_option, last_names, said_of
from rlrun.core.errors import UserError


def test_an_option_is_found_with_its_owners_defaults_and_comments(capsys):
    assert _dispatch(["explain", "clip"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("algo.clip=<value>\n  clip range of the ratio, eq. 7")
    assert "    default auto: ddppo, ppo\n" in said and "    default 0.3: maml\n    default 0.5: mbmpo\n" in said
    assert said.count("algo.clip=<value>") == 1 and "algo.inner.<option>" in said


@pytest.mark.parametrize(
    ("name", "key", "default", "owner"),
    [
        ("learning_starts", "algo.learning_starts", "100", "sac"),  # from off_policy/actor_critic
        ("learning_starts", "algo.learning_starts", "1088", "dreamerv3"),
        ("algo.lr", "algo.lr", "4.0e-3", "pg"),
        ("eval.every", "eval.every", "null", ""),
        ("exploration.epsilon", "algo.exploration.epsilon", "1.0 to 0.02 over 10000", "dqn"),
        ("kind", "algo.optimizer.kind", "rmsprop", "qmix"),  # given in its own file, in place of conf/optimizer's
        ("epsilon", "algo.optimizer.epsilon", "auto", "a2c"),
        ("frame_skip", "env.frame_skip", "4", "Atari games"),
        ("kind", "model.memory.kind", "gru", "model/memory=gru"),
        ("capacity", "replay.capacity", "auto", "replay=prioritized"),  # inherited
        ("uri", "logger.mlflow.uri", "null", "logger=mlflow"),
    ],
)
def test_options_have_the_default_that_a_run_has(name, key, default, owner):
    found = [one for one in find_option(name) if (one.key, one.owner) == (key, owner)]
    assert [one.default for one in found] == [default] and found[0].comment


def test_parts_of_words_are_no_options():
    assert find_option("starts") == [] and find_option("go.lr") == [] and find_option("") == []


def test_what_is_said_of_any_option_fits_on_a_screen():
    for name in last_names():
        lines = said_of(find_option(name)).splitlines()
        assert len(lines) <= LINES + 12 and max(map(len, lines)) <= 120, name
    assert "There are also " in said_of(find_option("hidden"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("learning_start", "no option 'learning_start'. Did you mean learning_starts"),
        ("sac ent_coef", "no option 'ent_coef'. Stable-Baselines3's ent_coef is algo.initial_alpha here"),
        ("sgd_minibatch_size", "RLlib's sgd_minibatch_size is algo.minibatch_size here."),
        ("DDPPO", "RLlib's DDPPO is algo=ddppo here."),
        ("tuned=ppo/cartpol", "There is no tuned=ppo/cartpol. Did you mean ppo/cartpole"),
        ("lr ppo", "takes one name, such as lr; 'ppo' is one too many"),
    ],
)
def test_a_name_that_is_none_is_a_sentence(words, said):
    with pytest.raises(UserError, match=re.escape(said)):
        _dispatch(["explain", *words.split()])


def test_an_algorithms_option_a_tuned_file_and_an_environment_are_explained(capsys):
    told = {}
    for words in (
        "ppo lr",
        "algo=sac learning_starts",
        "ppo hidden",
        "tuned=ppo/cartpole",
        "CartPole-v1 env.max_episode_steps=9",
    ):
        assert _dispatch(["explain", *words.split()]) == 0
        told[words.split()[-1]] = capsys.readouterr().out
    assert told["lr"].count("default") == 1 and "default auto: ppo\n" in told["lr"]
    assert told["learning_starts"].count("default") == 1 and "    default 100: sac\n" in told["learning_starts"]
    assert "model.hidden=<value>" in told["hidden"], "PPO has no option of this name, but its models have"
    assert "  - override /algo: ppo\n" in told["tuned=ppo/cartpole"] and "@package" not in told["tuned=ppo/cartpole"]
    assert "longest episode  9 env steps" in told["env.max_episode_steps=9"]
