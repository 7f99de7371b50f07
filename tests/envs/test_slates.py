"""Recommender systems and bandits: what random and simple rules get there, which proves the rebuilding, and seeds."""

import gymnasium
import numpy as np
import pytest

import rlrun.envs.own  # noqa: F401
from rlrun.cli import _dispatch
from rlrun.core.errors import UserError
from rlrun.envs.slates import InterestEvolution, InterestExploration, LongTermSatisfaction

IDS = ("InterestEvolution", "InterestExploration", "LongTermSatisfaction", "SimpleBandit", "LinearBandit", "WheelBandit", "ParametricItems")  # fmt: skip


def best_by(score):
    return lambda env, obs, rng: np.argsort(-score(env, obs), 1, kind="stable")[:, : env.slate_size]


def randomly(env, obs, rng):
    return rng.random((env.num_envs, env.num_candidates)).argsort(1)[:, : env.slate_size]


MYOPIC = best_by(lambda env, obs: (obs["candidates"] @ obs["user"][:, :20, None])[:, :, 0])
BEST_TOPIC = best_by(lambda env, obs: obs["candidates"] @ env.MEANS)
FIRST_NUMBER = best_by(lambda env, obs: obs["candidates"][:, :, 0])


def played(kind, choose, envs=500, each=4, **kwargs):
    """Returns (mean return of envs * each episodes, mean quality of what was chosen)."""
    env, rng = kind(num_envs=envs, **kwargs), np.random.default_rng(1)
    obs, _ = env.reset(seed=0)
    total, ended, returns, quality = np.zeros(envs), np.zeros(envs, dtype=int), [], []
    while (ended < each).any():
        obs, reward, terminated, truncated, info = env.step(choose(env, obs, rng))
        total += reward
        if "clicked_quality" in info:
            quality.append(info["clicked_quality"][info["_clicked_quality"]])
        over = terminated | truncated
        returns.extend(total[over & (ended < each)])
        ended += over
        total[over] = 0.0
    return float(np.mean(returns)), float(np.concatenate(quality).mean()) if quality else 0.0


def test_interest_evolution_pays_random_and_simple_rules_what_others_found():
    """Known answer 31, and the other figures of the reference, section 4.1, within three of their standard errors."""
    mean, quality = played(InterestEvolution, randomly)
    assert mean == pytest.approx(154.3, abs=1.0) and quality == pytest.approx(-0.59, abs=0.02)
    assert played(InterestEvolution, MYOPIC)[0] == pytest.approx(165.8, abs=2.5)
    assert played(InterestEvolution, BEST_TOPIC)[0] == pytest.approx(278, abs=6)
    assert played(InterestEvolution, MYOPIC, num_candidates=50)[0] == pytest.approx(189.5, abs=8)
    assert played(InterestEvolution, randomly, slate_size=3)[0] == pytest.approx(160.4, abs=1.2)


def test_long_term_satisfaction_and_interest_exploration():
    assert played(LongTermSatisfaction, randomly, num_candidates=50)[0] == pytest.approx(948, abs=15)
    assert played(LongTermSatisfaction, FIRST_NUMBER, num_candidates=50)[0] == pytest.approx(1150, abs=17)
    good, common = (
        played(InterestExploration, best_by(lambda env, obs, topic=topic: obs["candidates"][:, :, topic]))[0]
        for topic in (0, 1)
    )
    # RecSim's logistic choice at the means: exp(4.2) of topic 0 and exp(2.3) of topic 1 against exp(5), for most users.
    assert good > 2 * common


@pytest.mark.parametrize("name", IDS)
def test_the_same_seed_is_the_same_run_and_what_was_seen_never_changes(name):
    """Known answer 31. One episode alone is a vector of one."""
    runs = []
    for _ in range(2):
        env = gymnasium.make_vec(f"rlrun/{name}-v0", 4, vectorization_mode="vector_entry_point")
        env.action_space.seed(5)
        seen = [env.reset(seed=3)[0]]
        copies = [_copied(seen[0])]
        rewards = []
        for _ in range(150):
            obs, reward, *_ = env.step(env.action_space.sample())
            seen.append(obs), copies.append(_copied(obs)), rewards.append(reward.copy())
        assert all(_equal(a, b) for a, b in zip(seen, copies, strict=True))
        runs.append((copies, rewards))
    assert all(_equal(a, b) for a, b in zip(runs[0][0], runs[1][0])) and np.array_equal(runs[0][1], runs[1][1])
    alone = gymnasium.make(f"rlrun/{name}-v0")
    obs, _ = alone.reset(seed=3)
    alone.action_space.seed(0)
    over = False
    while not over:
        assert alone.observation_space.contains(obs)
        obs, reward, terminated, truncated, info = alone.step(alone.action_space.sample())
        over = terminated or truncated
    assert ("regret" in info) == (not name.startswith(("Interest", "Long")))


@pytest.mark.parametrize("name", ["LinearBandit", "ParametricItems"])
def test_a_bandit_is_the_same_in_every_process_and_after_every_reset(name):
    """Its arms follow from `world` alone: samplers, evaluations and resumed runs have other seeds of contexts."""

    def arms(world, seed):
        env = gymnasium.make_vec(f"rlrun/{name}-v0", 2, vectorization_mode="vector_entry_point", world=world)
        context = env.reset(seed=seed)[0]
        own = (env.weights,) if name == "LinearBandit" else (env.items, env.tastes)
        return np.concatenate([part.ravel() for part in own]), context

    (one, seen), (again, other) = arms(0, 1), arms(0, 2)
    assert np.array_equal(one, again) and not _equal(seen, other) and not np.array_equal(one, arms(1, 1)[0])


def _copied(obs):
    return {k: v.copy() for k, v in obs.items()} if isinstance(obs, dict) else obs.copy()


def _equal(a, b):
    return all(np.array_equal(a[k], b[k]) for k in a) if isinstance(a, dict) else np.array_equal(a, b)


@pytest.mark.parametrize("delta, uniform", [(0.5, 29.41), (0.7, 20.05), (0.9, 7.57), (0.95, 3.96)])
def test_an_arm_drawn_uniformly_costs_what_the_wheels_formula_says(delta, uniform):
    """Known answer 33: within 1%. The safe arm alone costs a little more than that."""
    env = gymnasium.make_vec(
        "rlrun/WheelBandit-v0", 20000, vectorization_mode="vector_entry_point", delta=delta, length=100
    )
    rng, costs, said = np.random.default_rng(0), [], []
    env.reset(seed=0)
    for _ in range(20):
        info = env.step(rng.integers(5, size=20000))[4]
        costs.append(info["regret"]), said.append(info["regret_uniform"])
    assert np.mean(said) == pytest.approx(uniform, rel=0.01) and np.mean(costs) == pytest.approx(uniform, rel=0.01)


def test_a_document_that_stands_twice_counts_once():
    """Otherwise other algorithms, which may fill a slate with one document, would play another game."""
    env = InterestEvolution(num_envs=4000, num_candidates=3)
    env.reset(seed=0)
    env.step(np.zeros((4000, 2), dtype=np.int64))
    assert (env.click != 1).all() and 0.2 < (env.click == 0).mean() < 0.5


@pytest.mark.parametrize("words, said", [
    (["algo=slateq", "env=rlrun/InterestEvolution-v0", "env.kwargs.num_candidates=2", "env.kwargs.slate_size=3"], "slate_size=3 must be at least 1, and at most the number of candidates, 2"),
    (["algo=lin_ucb", "env=rlrun/WheelBandit-v0", "env.kwargs.delta=2"], "delta=2 is a radius in the unit disc"),
    (["algo=lin_ucb", "env=rlrun/ParametricItems-v0", "env.kwargs.num_candidates=200"], "at most num_items=100"),
    (["algo=slateq", "env=CartPole-v1"], "is for actions that are several choices (MultiDiscrete)"),
    (["algo=slateq", "env=rlrun/InterestEvolution-v0", "algo.candidates=candidate"], "Did you mean candidates?"),
    (["algo=slateq", "env=rlrun/LongTermSatisfaction-v0", "algo.choice=affinity"], "multiplies a user by a document"),
    (["algo=slateq", "env=rlrun/InterestEvolution-v0", "algo.train_slates=taken", "algo.n_step=[1,3]"], "needs one n_step"),
    (["algo=lin_ucb", "env=rlrun/InterestEvolution-v0"], "needs algo.items and algo.click"),
    (["algo=lin_ts", "env=rlrun/ParametricItems-v0", "algo.items=items", "algo.initial_pulls=2"], "algo.items describes arms"),
    (["algo=lin_ts", "env=rlrun/WheelBandit-v0", "algo.items=items"], "has no such part"),
    (["algo=lin_ucb", "env=CartPole-v1", "model=lstm"], "it has no use for a memory"),
    (["algo=lin_ts", "env=rlrun/LinearBandit-v0", "model.observation_filter=mean_std"], "adds up the features of all rows"),
])  # fmt: skip
def test_bad_input_gets_a_sentence(words, said, tmp_path):
    """A UserError is exit code 2; no run has begun."""
    with pytest.raises(UserError) as error:
        _dispatch(["train", *words, "logger=[]", f"run_dir={tmp_path / 'run'}"])
    assert said in str(error.value) and "\n" not in str(error.value) and not (tmp_path / "run").exists()
