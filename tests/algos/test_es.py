"""Checks ES and ARS: ranks, gradients and steps by hand, and which perturbations are made."""

import math
from contextlib import nullcontext

import gymnasium
import numpy as np
import pytest
import torch
from conftest import SMALL
from wired import Wired, checked

from rlrun.algos.es import centered_ranks
from rlrun.cli import _dispatch
from rlrun.core.batch import Batch
from rlrun.core.errors import UserError
from rlrun.core.evolution import NoiseTable
from rlrun.core.schedule import Clock
from rlrun.core.seeding import Seeds
from rlrun.envs import registry
from rlrun.families import evolution
from rlrun.samplers import evaluator, population
from rlrun.samplers.evaluator import to_torch

WORDS = [
    *[word for word in SMALL if not word.startswith("algo.")],
    "model.hidden=[]",
    "algo.noise_size=5000",
    "algo.actor.hidden=[4]",
]


def algorithm(typed, algo, *words, env="CartPole-v1"):
    made = Wired(typed(f"algo={algo}", f"env={env}", *WORDS, *words)).algorithm()
    made.attach_noise(NoiseTable(5000, Seeds(1)))
    return made


def results(fitness, offset, evaluation=()):
    fitness = torch.tensor(fitness)
    return Batch(offset=torch.tensor(offset), fitness=fitness, ret=fitness + 1.0, evaluation=torch.tensor(evaluation))


def test_centered_ranks():
    x = torch.tensor([[3.0, -1.0], [10.0, 3.0], [0.0, 7.0]])
    # in order: -1, 0, 3, 3, 7, 10
    torch.testing.assert_close(centered_ranks(x), torch.tensor([[0.0, -0.5], [0.5, 0.0], [-0.3, 0.3]]))
    torch.testing.assert_close(centered_ranks(torch.tensor([[4.0, 4.0]])), torch.zeros(1, 2))


@pytest.mark.parametrize(
    "mode, weight",
    [("centered_rank", [-0.8, 0.4, -0.2]), ("sign", [-39.0, 20.0, -10.0]), ("centered_sign_rank", [-0.8, 0.4, -0.2])],
)
def test_es_by_hand(typed, mode, weight):
    """Plain gradient steps (SGD) make the gradient visible in the parameters."""
    made = algorithm(
        typed, "es", f"algo.return_processing={mode}", "algo.l2=0.1", "algo.lr=0.5", "algo.optimizer.kind=sgd"
    )
    assert made.needs(made.cfg).population.reward_signs == (mode != "centered_rank")
    fitness = [[1.0, 40.0], [50.0, 30.0], [10.0, 20.0]]  # ranks 0 4 5 3 1 2 of 5
    weight = torch.tensor(weight)
    before, size = made.policy.vector().detach(), made.policy.size
    noise = torch.stack([made.noise.numbers[start : start + size] for start in (7, 0, 300)])
    update = made.update(results(fitness, [7, 0, 300], [5.0, 7.0]), Clock())
    expected = before + 0.5 * ((weight[:, None] * noise).sum(0) / 6 - 0.1 * before)
    torch.testing.assert_close(made.policy.vector().detach(), expected)
    assert update.metrics["perturbed_return"] == pytest.approx(151 / 6 + 1) and update.metrics["report_return"] == 6.0


@pytest.mark.parametrize("used", [1, 2, 3])
def test_ars_by_hand(typed, used):
    made = algorithm(typed, "ars", "algo.num_rollouts=3", f"algo.rollouts_used={used}", "algo.lr=0.5")
    fitness = np.array([[1.0, 40.0], [50.0, 30.0], [10.0, 20.0]])
    before, size = made.policy.vector().detach(), made.policy.size
    chosen = [1, 0, 2][:used]  # ordered by the better return of each pair
    step = sum((fitness[i, 0] - fitness[i, 1]) * made.noise.numbers[[7, 0, 300][i] :][:size] for i in chosen) / (
        used * fitness[chosen].std()
    )
    made.update(results(fitness.tolist(), [7, 0, 300]), Clock())
    torch.testing.assert_close(made.policy.vector().detach(), before + 0.5 * step.float(), rtol=1e-4, atol=1e-5)


def test_noise_is_weighed_a_part_at_a_time(typed, monkeypatch):
    """All perturbed parameters of a convolutional policy at once would need gigabytes."""
    made = algorithm(typed, "es")
    weight, offset = torch.randn(9), torch.arange(9) * 11
    whole = evolution.weighed_noise(made.noise, made.policy.size, weight, offset)
    for numbers in (1, 2 * made.policy.size):
        monkeypatch.setattr(evolution, "NUMBERS", numbers)
        torch.testing.assert_close(evolution.weighed_noise(made.noise, made.policy.size, weight, offset), whole)


def test_equal_returns_move_nothing(typed):
    for algo, words in (("ars", ["algo.num_rollouts=2", "algo.rollouts_used=2"]), ("es", ["algo.l2=0"])):
        made = algorithm(typed, algo, *words)
        before = made.policy.vector().detach()
        made.update(results([[3.0, 3.0], [3.0, 3.0]], [0, 9]), Clock())
        assert torch.equal(made.policy.vector().detach(), before)


def test_the_reported_return_is_of_the_last_unperturbed_episodes_and_saved(typed):
    made = algorithm(typed, "es", "algo.report_length=3")
    assert "report_return" not in made.update(results([[1.0, 2.0]], [0]), Clock()).metrics
    assert made.update(results([[1.0, 2.0]], [0], [4.0]), Clock()).metrics["report_return"] == 4.0
    assert made.update(results([[1.0, 2.0]], [0], [6.0, 8.0, 10.0]), Clock()).metrics["report_return"] == 8.0
    other = algorithm(typed, "es", "algo.report_length=3")
    other.load_state(made.state())
    assert torch.equal(other.latest, torch.tensor([6.0, 8.0, 10.0]))


@pytest.mark.parametrize(
    "env, words",
    [
        ("CartPole-v1", []),
        ("Pendulum-v1", []),
        ("rlrun/Masked-v0", ["model=plain"]),
        ("Pong", ["env.size=42", "model=plain"]),
    ],
)
def test_every_column_acts_with_its_own_parameters(typed, env, words):
    made = algorithm(typed, "es", *words, env=env)
    policy, spec = made.policy, made.policy.spec
    generator = torch.Generator().manual_seed(0)
    center = policy.vector().detach()
    parameters = center + 0.5 * torch.randn(3, len(center), generator=generator)
    config = typed("algo=es", f"env={env}", *WORDS, *words)
    rows = registry.Factory(cfg=config.env, spec=spec, seeds=Seeds(0), stream="env", learning=True)(0, 3).reset(0)
    obs = to_torch(rows)
    first = torch.ones(3, dtype=torch.bool)
    with torch.no_grad():
        for _ in range(2):
            together = policy.act_with(parameters, obs, first)
            alone = []
            for b in range(3):
                torch.nn.utils.vector_to_parameters(parameters[b], policy.net.parameters())
                alone.append(policy.greedy(obs[b : b + 1], first[b : b + 1], Batch())[0][0])
            torch.testing.assert_close(together, torch.stack(alone), atol=1e-5, rtol=1e-5)
            # The change is in place, as when a column begins an episode.
            parameters[1] = center + torch.randn(len(center), generator=generator)


def test_linear_policies_begin_at_zero(typed):
    assert not algorithm(typed, "ars", "algo.actor.hidden=[]").policy.vector().any()
    linear = algorithm(typed, "es", "algo.actor.hidden=[]")
    ratios = [linear.update(results([[3.0, 1.0], [2.0, 5.0]], [0, 9]), Clock()).metrics["update_ratio"] for _ in (1, 2)]
    assert ratios[0] == 0 and 0 < ratios[1] < math.inf
    assert algorithm(typed, "ars").policy.vector().any()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["algo=es", "algo.episodes_per_batch=5"], "episodes_per_batch must be an even number"),
        (["algo=ars", "algo.rollouts_used=99"], "rollouts_used 99 must be at most num_rollouts"),
        (["algo=es", "algo.noise_size=3"], "less than the policy's"),
        (["algo=es", "algo.noise_size=100000000000000"], "is a table of 400000.0 GB"),
        (["algo=es", "algo.noise_std=0"], "noise_std must be positive"),
        (["algo=es", "algo.eval_share=1.5"], "eval_share must be between 0 and 1"),
        (["algo=es", "model=lstm"], "no policies with memory"),
        (["algo=es", "runner=on_policy"], "es runs with runner=evolution"),
        (["algo=ppo", "runner=evolution"], "ppo runs with another runner"),
        (["algo=es", "resources.inference=batched"], "evolution has|every episode of evolution"),
        (["algo=es", "resources.num_learners=2"], "evolution has one learner"),
        (["algo=es", "resources.device=cuda"], "evolution learns on the CPU|CUDA"),
        (["algo=es", "env=rlrun/EverySpace-v0"], "es is for actions that are one choice"),
    ],
)
def test_what_does_not_fit_is_said(typed, words, said):
    env = [] if any(word.startswith("env=") for word in words) else ["env=CartPole-v1"]
    with pytest.raises(UserError, match=said):
        checked(typed(*words, *env, "logger=[]"))


@pytest.mark.parametrize(
    "words, said",
    [
        (["stop.return_mean=5"], "stop.return_mean=5.* is for runs whose training plays games that count"),
        (["stop.no_improvement_steps=99"], "stop.no_improvement_steps=99 .* is for runs that are judged"),
        (["stop.return_mean=5", "eval.every=50"], "stop.return_mean=5.* is for runs whose training plays games that"),
        (["stop.no_improvement_steps=99", "eval.every=50"], None),
        (["stop.return_mean=5", "algo.eval_share=0.1"], None),
    ],
)
def test_a_return_that_no_game_shows_ends_no_run(words, said):
    """Returns of perturbed policies are not the policy's."""
    command = ["train", "algo=ars", "env=CartPole-v1", *WORDS, "algo.eval_share=0", "logger=[]", *words, "--plan"]
    with nullcontext() if said is None else pytest.raises(UserError, match=said):
        assert _dispatch(command) == 0


def test_an_episode_without_an_end_is_no_hang(tmp_path, monkeypatch, capsys):
    gymnasium.register("tests/NoLimit-v0", "gymnasium.envs.classic_control:PendulumEnv")
    monkeypatch.setattr(evaluator, "ENDLESS", 60)
    words = ["algo=es", "env=tests/NoLimit-v0", *WORDS, "algo.env_steps_per_batch=0", "resources=debug", "logger=[]"]
    assert _dispatch(["train", *words, "env_steps=2000", f"run_dir={tmp_path / 'run'}"]) == 1
    said = capsys.readouterr().err
    assert "has not ended after 60 steps; " in said and "set env.max_episode_steps" in said
    words += ["env.max_episode_steps=20", "env_steps=100"]
    assert _dispatch(["train", *words, f"run_dir={tmp_path / 'other'}"]) == 0


@pytest.mark.parametrize("words", [[], ["algo.episodes_per_batch=40", "algo.env_steps_per_batch=900"]])
def test_a_player_beside_the_learner_plays_for_a_moment_at_a_time(typed, monkeypatch, words):
    """Between two of them the run hears of a Ctrl-C and of its limits, an update of 1,000 episodes long. The reports are
    those of whole orders, one at a time."""
    wiring = Wired(typed("algo=es", "env=CartPole-v1", *WORDS, "resources=debug", "logger=[]", *words))
    made, noise, found = wiring.algorithm(), wiring.noise(), []
    for seconds in (0.0, 60.0):
        monkeypatch.setattr(population, "WAIT_SEC", seconds)
        players = wiring.population(noise)
        try:
            players.begin(made.policy, Clock())
            taken = []
            while not players.done:
                taken.append(players.take())
            assert players.take() == [] and max(map(len, taken)) == 1
        finally:
            players.close()
        found.append([report for reports in taken for report in reports])
        pauses = len(taken) - len(found[-1])
        assert pauses > 9 * len(found[-1]) if seconds == 0 else pauses <= 1, "one step at a time, or whole orders"
    told = [[(one.order, one.rollouts, one.evaluations, one.env_steps) for one in reports] for reports in found]
    assert len(told[0]) > 1 and told[0] == told[1]
