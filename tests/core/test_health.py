"""Each note on a run's health is given once, after its sign was seen for long enough, and never about a healthy run."""

import math

import pytest
from conftest import compose

from rlrun.core.health import ROWS, CutEpisodes, Health, largest_entropy
from rlrun.core.specs import Box, Discrete, EnvSpec, MultiBinary, MultiDiscrete

HEALTHY = {"learn/entropy": 0.4, "learn/explained_variance": 0.5, "learn/approx_kl": 0.01, "learn/grad_norm": 1.0}
HEALTHY |= {"sample/return_mean": 20.0, "sample/return_min": 9.0, "sample/return_max": 30.0, "sample/episodes": 100}
SIGNS = {
    "hardly explores": {"learn/entropy": 0.001},
    "acts at random": {"learn/entropy": 0.6931},
    "no better than their mean would (learn/explained_variance is -0.100)": {"learn/explained_variance": -0.1},
    "learn/speaker_0/explained_variance is 0.000": {"learn/speaker_0/explained_variance": 0.0},
    "KL divergence of 0.9": {"learn/approx_kl": 0.9},
    "returns of all 100 episodes are 0": {f"sample/return_{name}": 0.0 for name in ("mean", "min", "max")},
    "no episode has ended": {"sample/episodes": 0},
    "imagined trajectories never end": {"learn/terminated_share": 0.02},
}


def spec(action, name="x"):
    return EnvSpec(
        name=name, obs={"observation": Box(shape=(4,), dtype="float32", low=(-1.0,), high=(1.0,))}, action=action
    )


def notes(rows, total=100_000, update_rows=None, plays=True):
    said = []
    health = Health(total, spec(Discrete(n=2)), said.append, update_rows, plays=plays)
    for number, row in enumerate(rows):
        health.look({"env_steps": 1000 * number, "updates": 10 * number, **row})
    return said


def test_a_healthy_run_gets_no_note():
    assert notes([HEALTHY] * 100) == []
    zero_sum = SIGNS["returns of all 100 episodes are 0"] | {
        "sample/return/player_0": 0.3,
        "sample/return/player_1": -0.3,
    }
    assert notes([HEALTHY | zero_sum] * 100) == []


@pytest.mark.parametrize("text", SIGNS)
def test_a_sign_that_lasts_gets_one_note(text):
    sick = HEALTHY | SIGNS[text]
    (said,) = notes([sick] * 100)
    assert text in said and "look at" in said
    assert notes([HEALTHY] * 40 + [sick] * (ROWS - 1) + [HEALTHY] * 40) == [], "it did not last"


Q_LEARNING = {"learn/q": 80.0, "sample/episode_length_mean": 20.0, **HEALTHY}
DQN = compose("algo=dqn", "env=CartPole-v1")  # discount 0.99: 20 points in 20 steps allow values of 100


@pytest.mark.parametrize(
    "change, options, said",
    [
        ({"learn/q": 390.0}, DQN, None),
        ({"learn/q": -410.0}, DQN, "action values diverge: learn/q is -410, and the games so far allow about 100"),
        ({"learn/driver/q": 1600.0}, DQN, "learn/driver/q"),
        ({"learn/q": 1600.0, "learn/intrinsic_reward": 1.0}, DQN, None),
        ({"learn/q": 1600.0, "learn/alpha": 1.0}, DQN, None),
        ({"learn/q": 1600.0, "sample/return_max": 401.0}, DQN, None),
        ({"learn/q": 90.0, "sample/return_max": 0.5, "sample/return_min": 0.0, "sample/return_mean": 0.2}, DQN, "values diverge"),
        ({"learn/q": 90.0, "sample/return_max": 0.5, "sample/return_min": 0.0, "sample/return_mean": 0.2}, compose("algo=dqn", "env=Pong"), None),
    ],
)
def test_action_values_that_no_game_explains_diverge(change, options, said):
    found = []
    health = Health(100_000, None, found.append, options=options)
    for number in range(20):
        health.look({"env_steps": 1000 * number, "updates": 10 * number, **Q_LEARNING, **change})
    assert len(found) == (said is not None) and (said is None or (said in found[0] and "algo.lr" in found[0]))


def test_data_of_random_play_are_imitated_without_a_note():
    row = HEALTHY | SIGNS["acts at random"]
    assert len(notes([row] * 100)) == 1 and notes([row] * 100, plays=False) == []


def test_gradients_that_explode_or_are_not_finite():
    wild = HEALTHY | {"learn/grad_norm": 5000.0}
    (said,) = notes([HEALTHY] * 20 + [wild] * ROWS)
    assert "5e+03, and 1 was usual" in said
    several = {"learn/critic_grad_norm": 2.0, "learn/actor_grad_norm": 0.01, "learn/alpha_grad_norm": 1e-6}
    wild = several | {"learn/critic_grad_norm": 9000.0, "learn/actor_grad_norm": 0.9, "learn/alpha_grad_norm": 5.0}
    (said,) = notes([several] * 20 + [wild] * 2 * ROWS)
    assert said.startswith("learn/critic_grad_norm is 9e+03, and 2 was usual")
    (said,) = notes([HEALTHY, HEALTHY | {"learn/critic_grad_norm": None}])
    assert "critic_grad_norm is not finite" in said


def test_the_targets_of_a_few_rows_say_nothing_about_values():
    """A gradient of A3C learns from 20 rows of one environment, whose targets may hardly differ."""
    sick = HEALTHY | SIGNS["no better than their mean would (learn/explained_variance is -0.100)"]
    assert len(notes([sick] * 100, update_rows=160)) == 1 and notes([sick] * 100, update_rows=20) == []


def test_values_are_judged_after_many_updates_and_only_where_returns_do_not_grow():
    """A short run has few updates, and one that learns needs no advice."""
    sick = HEALTHY | {"learn/explained_variance": -0.1}
    few = [sick | {"updates": number} for number in range(100)]
    assert notes(few) == [] and len(notes([*few, sick | {"updates": 100}, *[sick | {"updates": 101}] * ROWS])) == 1
    growing = [sick | {"sample/return_mean": 12.0 + number} for number in range(100)]
    assert notes(growing) == [], "the return grows by more than a tenth of the spread of 21"
    wavering = [sick | {"sample/return_mean": 20.0 + number % 2} for number in range(100)]
    assert len(notes(wavering)) == 1


@pytest.mark.parametrize(
    "words, sign, said",
    [
        (["algo=ppo", "env=CartPole-v1"], "hardly explores", "look at algo.entropy_coef and algo.lr"),
        (["algo=self_play", "env=TicTacToe-v0"], "hardly explores", "look at algo.inner.entropy_coef and algo.inner.lr"),
        (["algo=icm", "env=CartPole-v1"], "learn/speaker_0/explained_variance is 0.000", "look at model.share_value, algo.inner.value_coef, algo.inner.lr, algo.inner.normalize_value and the scale of rewards"),
        (["algo=alphazero", "env=TicTacToe-v0"], "acts at random", "look at algo.lr and the scale of rewards"),
        (["algo=dreamer", "env=CartPole-v1"], "acts at random", "look at algo.actor_lr and the scale of rewards"),
        (["algo=appo", "env=CartPole-v1"], "KL divergence of 0.9", "look at algo.lr, runner.num_sgd_iter and algo.clip"),
        (["algo=ppo", "env=CartPole-v1"], "KL divergence of 0.9", "look at algo.lr, algo.num_epochs and algo.clip"),
    ],
)  # fmt: skip
def test_notes_name_options_that_the_run_has(words, sign, said):
    found = []
    health = Health(100_000, spec(Discrete(n=2)), found.append, options=compose(*words))
    for number in range(100):
        health.look({"env_steps": 1000 * number, "updates": 10 * number, **HEALTHY, **SIGNS[sign]})
    assert said in found[0]


@pytest.mark.parametrize("sign", ["returns of all 100 episodes are 0", "no episode has ended"])
def test_advice_on_an_environment_of_ones_own_names_its_check(sign):
    for name, named in (("my_env:MyEnv", True), ("CartPole-v1", False)):
        said = []
        health = Health(100_000, spec(Discrete(n=2), name), said.append)
        for number in range(100):
            health.look({"env_steps": 1000 * number, "updates": number, **HEALTHY, **SIGNS[sign]})
        assert ("; rlrun check-env my_env:MyEnv looks for mistakes in it" in said[0]) == named


def test_slow_progress_is_no_sign_at_the_beginning():
    slow = HEALTHY | SIGNS["acts at random"] | SIGNS["no episode has ended"]
    assert notes([slow] * 19) == [] and notes([slow] * 6, total=6000) == [], "a fifth of the run, and 5,000 env steps"


def test_saves_that_cut_every_episode_off_are_noted_once():
    said = []
    cuts = CutEpisodes(said.append)
    for ended in (0, 3, 4):
        cuts.look(ended)
    assert said == []
    for ended in (4, 4, 6, 6):
        cuts.look(ended)
    assert len(said) == 1 and "cut episodes off" in said[0]


def test_the_largest_entropy_is_that_of_the_uniform_policy():
    assert largest_entropy(spec(Discrete(n=18))) == pytest.approx(math.log(18))
    assert largest_entropy(spec(MultiDiscrete(sizes=(2, 3), starts=(0, 0), shape=(2,)))) == pytest.approx(math.log(6))
    assert largest_entropy(spec(MultiBinary(shape=(3,)))) == pytest.approx(math.log(8))
    assert largest_entropy(spec(Box(shape=(1,), dtype="float32", low=(-1.0,), high=(1.0,)))) is None


@pytest.mark.parametrize("lag", [0.0, 6.0])
def test_a_policy_that_no_longer_explores_may_owe_it_to_old_weights(lag):
    (said,) = notes([HEALTHY | SIGNS["hardly explores"] | {"sample/policy_lag": lag}] * 100)
    assert ("weights that act are 6.0 updates old, and a larger algo.batch_size" in said) == (lag > 0)
