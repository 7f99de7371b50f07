"""MBMPO: the ensemble, early stopping, imagination, and MAML on the true environment in place of the ensemble."""

import gymnasium
import numpy as np
import pytest
import torch
from conftest import compose, small
from gymnasium.envs.classic_control.pendulum import PendulumEnv
from test_all import batches, changed_by_an_update, same, start
from wired import Wired, checked

from rlrun.cli import _dispatch
from rlrun.config.run import type_config
from rlrun.core.batch import Batch
from rlrun.core.errors import Notice, UserError
from rlrun.core.schedule import Clock
from rlrun.envs import rewards
from rlrun.models.dynamics import Ensemble, LearntEnv, Patience
from rlrun.runtime.rundir import checkpoints_of

TRUE = ["env=Pendulum-v1", "env.max_episode_steps=1000"]


def real_rows(made, sampler, count=4):
    """Lets an algorithm remember real rows."""
    for _ in range(count):
        fragments = sampler.take(1)
        made.remember(fragments[0].batch.clone())
        sampler.free(fragments)


# -- the ensemble ------------------------------------------------------------------------------------------------------


def test_every_member_is_a_net_of_its_own_and_normalisation_is_undone(typed):
    _, made, sampler = start(typed, "mbmpo", "env=Pendulum-v1", "algo.num_tasks=3", "algo.dynamics.members=3")
    real_rows(made, sampler)
    ensemble: Ensemble = made.ensemble
    x, change = made.inputs[: int(made.rows_seen)], made.changes[: int(made.rows_seen)]
    ensemble.measure(x, change)
    told = ensemble(x.expand(3, -1, -1))
    for member in range(3):
        hidden = (x - x.mean(0)) / x.std(0, unbiased=False)
        for number, layer in enumerate(ensemble.layers):
            v, g, b = layer.weight[member], layer.length[member], layer.bias[member]
            hidden = hidden @ (g * v / v.norm(dim=0)) + b
            hidden = hidden.relu() if number < len(ensemble.layers) - 1 else hidden
        torch.testing.assert_close(told[member], hidden, rtol=1e-4, atol=1e-4)
    obs = 10 * x[:, :3]  # some are beyond what can be seen
    after = ensemble.next(obs.expand(3, -1, -1), x.expand(3, -1, -1))
    expected = obs + told * change.std(0, unbiased=False) + change.mean(0)
    assert (expected.abs() > 8).any()
    torch.testing.assert_close(after, expected.clamp(-8, 8), rtol=1e-4, atol=1e-4)


def test_numbers_that_never_change_do_no_harm(typed):
    """A deviation of 0 is rounding, and dividing by it makes thousands of it."""
    _, made, _ = start(typed, "mbmpo", "env=Pendulum-v1")
    ensemble = made.ensemble
    x = torch.randn(1000, ensemble.inputs, generator=torch.Generator().manual_seed(0))
    change = x[:, : ensemble.outputs] * 0.1
    x[:, 0], x[:, 1], change[:, 1] = 1.7, 1e-9 * x[:, 1], 0.3
    clock = torch.arange(1001, dtype=torch.float32) * 0.01
    x[:, 2], change[:, 2] = clock[:-1], clock.diff()  # the deviation of which is rounding
    ensemble.measure(x, change)
    scaled = (x - ensemble.input_mean) / ensemble.input_deviation
    assert scaled[:, 0].abs().max() == 0 and 0.9 < scaled[:, 1].std() < 1.1
    assert (ensemble.normalized(change).abs().max(0).values[1:] == 0).all() and change[:, 2].std() > 1e-8
    obs = x[:, : ensemble.outputs]
    after = ensemble.next(obs.expand(2, -1, -1), x.expand(2, -1, -1))
    torch.testing.assert_close(after[..., 1], (obs[:, 1] + 0.3).expand(2, -1))


def test_a_member_without_a_task_is_told(typed):
    with pytest.warns(Notice, match="num_tasks=2 is below algo.dynamics.members=3, so that some members are fitted and"):
        start(typed, "mbmpo", "env=Pendulum-v1", "algo.dynamics.members=3")


def test_linear_dynamics_are_learnt_to_the_noise(typed):
    words = ["env=Pendulum-v1", "algo.dynamics.max_epochs=400", "algo.dynamics.batch_size=64", "algo.dynamics.lr=3e-3"]
    _, made, _ = start(typed, "mbmpo", *words, "algo.dynamics.capacity=600", "algo.dynamics.hidden=[32]")
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(600, made.ensemble.inputs, generator=rng)
    change = x @ torch.randn(made.ensemble.inputs, made.ensemble.outputs, generator=rng)
    made.write("rows_seen", inputs=x, changes=change)
    first = made.cfg.dynamics.max_epochs
    told = made.fit(Clock())
    assert float(told["model_loss"]) < 0.01 and told["model_epochs"] <= first


def test_a_member_stops_when_its_rolling_error_grows():
    patience = Patience(2, 0.5)
    errors = [[1.0, 1.0], [0.5, 0.9], [0.4, 3.0], [0.3, 0.1], [9.0, 0.1]]
    stopped = [patience.hear(torch.tensor(one)).tolist() for one in errors]
    # means: 1.25, 1.25 -> .875, 1.075 -> .6375, 2.0375 (grew) ... -> the first one grows at the last
    assert stopped == [[False, False], [False, False], [False, True], [False, False], [True, False]]
    assert not patience.going.any()


def test_a_member_that_has_stopped_keeps_its_weights(typed):
    words = ["env=Pendulum-v1", "algo.dynamics.max_epochs=30", "algo.dynamics.patience=0", "algo.dynamics.lr=0.1"]
    _, made, sampler = start(typed, "mbmpo", *words)
    real_rows(made, sampler)
    seen = []

    class Watched(Patience):
        def hear(self, error):
            stopped = super().hear(error)
            seen.append((stopped.clone(), [p.detach().clone() for p in made.ensemble.parameters()]))
            return stopped

    from rlrun.algos import mbmpo

    plain, mbmpo.Patience = mbmpo.Patience, Watched
    try:
        made.fit(Clock())
    finally:
        mbmpo.Patience = plain
    stops = [(number, member) for number, (stopped, _) in enumerate(seen) for member in stopped.nonzero().flatten().tolist()]
    assert stops and min(stops)[0] < len(seen) - 1, "some member stops early"
    for number, member in stops:
        for kept, now in zip(seen[number][1], made.ensemble.parameters(), strict=True):
            assert torch.equal(kept[member], now[member])


def test_every_member_is_as_often_a_task_as_the_others(typed):
    _, made, sampler = start(typed, "mbmpo", "env=Pendulum-v1", "algo.num_tasks=7", "algo.dynamics.members=3")
    real_rows(made, sampler)
    counts = np.bincount(made.world().tasks.numpy() if isinstance(made.world(), LearntEnv) else [])
    assert counts.max() - counts.min() <= made.cfg.envs_per_task and counts.sum() == 7 * made.cfg.envs_per_task


@pytest.mark.parametrize("tasks", [2, 3])
def test_each_column_is_moved_by_its_member(typed, tasks):
    """With members in equal numbers, and in unequal ones."""
    _, made, sampler = start(typed, "mbmpo", "env=Pendulum-v1", f"algo.num_tasks={tasks}")
    real_rows(made, sampler)
    world = made.world()
    before = torch.from_numpy(world.reset(0)["observation"]).clone()
    action = np.random.default_rng(0).uniform(-1, 1, (world.count, 1)).astype(np.float32)
    step = world.step(action)
    x = made.ensemble.inputs_of(before, torch.from_numpy(action))
    each = made.ensemble.next(before.expand(2, -1, -1), x.expand(2, -1, -1))
    expected = each[world.tasks, torch.arange(world.count)].detach().numpy()
    np.testing.assert_allclose(step.obs["observation"], expected, rtol=1e-5, atol=1e-5)
    paid = rewards.Pendulum().reward(before.numpy(), made.spec.action.to_env(action), expected)
    np.testing.assert_allclose(step.reward, paid, rtol=1e-5)


def test_models_learn_and_imagine_with_the_actions_that_were_executed(typed):
    """A Gaussian draws numbers beyond the bounds, which the environment clips."""
    wiring, made, sampler = start(typed, "mbmpo", "env=Pendulum-v1")
    drawn = batches(wiring, sampler, 1)[0]
    drawn = drawn.replace(action=drawn.action * 3)
    clipped = drawn.replace(action=drawn.action.clamp(-1, 1))
    assert (clipped.action != drawn.action).any()
    for batch in (drawn, clipped):
        made.remember(batch)
    learnt = made.inputs[: int(made.rows_seen)].chunk(2)
    assert torch.equal(*learnt) and learnt[0][:, -1].abs().max() == 1
    first, second = (made.prediction_errors(batch) for batch in (drawn, clipped))
    assert first and all(torch.equal(first[name], second[name]) for name in first)
    world, after = made.world(), []
    world.reset(0)
    begin = world.obs
    for size in (3.0, 1.0):
        world.obs = begin
        after.append(world.step(np.full((world.count, 1), size, np.float32)))
    np.testing.assert_array_equal(after[0].obs["observation"], after[1].obs["observation"])
    np.testing.assert_array_equal(after[0].reward, after[1].reward)


@pytest.mark.parametrize("env", ["Pendulum-v1", "CartPole-v1"])
def test_known_rewards_are_those_of_the_environment(typed, env):
    wiring, made, sampler = start(typed, "mbmpo", f"env={env}", "algo.fragment_length=40")
    batch = batches(wiring, sampler, 1)[0]
    live = batch.valid
    obs, after = (rows[live].numpy() for rows in (batch.obs.observation[:-1], batch.obs.observation[1:]))
    paid = made.reward(obs, made.spec.action.to_env(batch.action[live].numpy()), after)
    going = ~batch.terminated[live].numpy()  # CartPole pays for its last step, at which RLlib's pays nothing
    np.testing.assert_allclose(paid[going], batch.reward[live].numpy()[going], rtol=1e-4, atol=1e-4)


class Scaled(PendulumEnv):
    """A pendulum whose own method says what it pays, in units that an argument sets."""

    def __init__(self, scale: float = 1.0):
        super().__init__()
        self.scale = scale

    def step(self, action):
        obs, reward, *rest = super().step(action)
        return obs, self.scale * reward, *rest

    def reward(self, obs, action, next_obs):
        return self.scale * rewards.Pendulum().reward(obs, action, next_obs)


gymnasium.register("tests/Scaled-v0", entry_point=Scaled, max_episode_steps=200, kwargs={"scale": 2.0})


def shifted(**options):
    return gymnasium.wrappers.TransformReward(Scaled(**options), lambda reward: reward - 5)


gymnasium.register("tests/Shifted-v1", entry_point=shifted, max_episode_steps=200)


@pytest.mark.parametrize("words", [[], ["++env.kwargs.scale=3"]])
def test_an_environments_own_reward_has_its_arguments(typed, words):
    wiring, made, sampler = start(typed, "mbmpo", "env=tests/Scaled-v0", *words)
    batch = batches(wiring, sampler, 1)[0]
    obs, after = (rows[batch.valid].numpy() for rows in (batch.obs.observation[:-1], batch.obs.observation[1:]))
    paid = made.reward(obs, made.spec.action.to_env(batch.action[batch.valid].numpy()), after)
    np.testing.assert_allclose(paid, batch.reward[batch.valid].numpy(), rtol=1e-4, atol=1e-3)


class WholeNumbers(gymnasium.Env):
    """One number rises and another one falls, in bytes, which have no negative numbers."""

    observation_space = gymnasium.spaces.Box(0, 255, (2,), np.uint8)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return np.array([0, 200], np.uint8), {}

    def step(self, action):
        self.time += 1
        return np.array([self.time, 200 - self.time], np.uint8), 1.0, False, False, {}

    def reward(self, obs, action, next_obs):
        return np.ones(len(obs))


gymnasium.register("tests/WholeNumbers-v0", entry_point=WholeNumbers)


def test_whole_numbers_change_by_negative_amounts_too(typed):
    wiring, made, sampler = start(typed, "mbmpo", "env=tests/WholeNumbers-v0")
    for number, batch in enumerate(batches(wiring, sampler, 2)):
        told = made.update(batch, Clock(100 * (number + 1), number)).metrics
        assert all(np.isfinite(float(value)) for value in told.values())
    assert float(told["model_error_1"]) < 1e-6, "every step is the same"
    seen = made.changes[: int(made.rows_seen)]
    torch.testing.assert_close(seen, torch.tensor([1.0, -1.0]).expand(len(seen), 2), rtol=0, atol=0)


@pytest.mark.parametrize("paid, said", [
    (lambda obs, action, after: after[:, :1], r"\[3\] for 3 rows, not \[3, 1\]"),
    (lambda obs, action, after: after.sum(0), r"\[3\] for 3 rows, not \[2\]"),
    (lambda obs, action, after: 1.0, r"\[3\] for 3 rows, not \[\]"),
    (lambda obs, action, after: after[:, 9], r"fails for a batch of 3 rows: IndexError: .* \(.*test_mbmpo.py, line \d+\)"),
])  # fmt: skip
def test_a_reward_that_is_not_a_number_for_each_row_is_refused(typed, monkeypatch, paid, said):
    monkeypatch.setattr(WholeNumbers, "reward", lambda self, *rows: paid(*rows))
    with pytest.raises(UserError, match=rf"the method reward\(obs, action, next_obs\) of test_mbmpo:WholeNumbers .*{said}"):
        checked(typed(*small("mbmpo", "tiny"), "logger=[]", "env=tests/WholeNumbers-v0"))


# -- MAML on it --------------------------------------------------------------------------------------------------------


class TrueModel:
    """The true environment in place of the ensemble, of which there is then one member."""

    def __init__(self, env):
        self.env, self.spec, self.count = env, env.spec, env.count

    def reset(self, generation):
        return {name: part.copy() for name, part in self.env.reset(generation).items()}

    def step(self, action):
        step = self.env.step(action)
        return step._replace(obs={name: part.copy() for name, part in step.obs.items()})


def test_with_one_true_model_it_is_maml_on_the_environment(typed):
    words = [*TRUE, "algo.num_tasks=1", "algo.dynamics.members=1", "algo.envs_per_task=3", "algo.imagined_length=6", "algo.maml_updates=1"]
    wiring, made, _ = start(typed, "mbmpo", *words)
    rounds = made.imagined_rounds(TrueModel(wiring.plan.make_env()(0, 3)))
    again, width = wiring.plan.make_env()(0, 3), 3
    for number in range(2):  # imagined rows are those of the environment, from the same start and actions
        part = rounds.columns(slice(number * width, (number + 1) * width))
        seen = again.reset(number)["observation"]
        for row in range(6):
            np.testing.assert_array_equal(part.obs.observation[row].numpy(), seen)
            step = again.step(part.action[row].numpy())
            np.testing.assert_array_equal(part.reward[row].numpy(), step.reward)
            seen = step.obs["observation"].copy()
    same_options = ["algo.num_tasks=1", "algo.envs_per_task=3", "algo.fragment_length=6", "algo.inner_lr=1e-3", "algo.clip=0.5"]
    _, maml, _ = start(typed, "maml", *TRUE, *same_options, "algo.outer_steps=2")
    maml.policy.load_state_dict(made.policy.state_dict(), strict=False)  # without the policies of tasks
    expected = maml.update(rounds, Clock()).metrics
    told = super(type(made), made).update(rounds, Clock()).metrics
    torch.testing.assert_close(made.policy.vector(), maml.policy.vector(), rtol=0, atol=0)
    assert {name: float(value) for name, value in told.items()} == {name: float(value) for name, value in expected.items()}


def test_each_imagined_round_is_played_with_the_adapted_policies(typed):
    _, made, sampler = start(typed, "mbmpo", "env=CartPole-v1", "algo.inner_lr=0.5")
    real_rows(made, sampler)
    made.fit(Clock())
    rounds = list(made.imagined_rounds(made.world()).split(6))
    for number, batch in enumerate(rounds):
        made.adapt(None)
        for earlier in rounds[:number]:
            made.adapt(earlier)
        for task in range(2):
            mine = batch.columns(slice(3 * task, 3 * task + 3))
            obs = Batch(observation=mine.obs.observation[:-1].unsqueeze(0))
            outputs = made.policy.outputs_of(made.policy.adapted[task : task + 1], obs, mine.is_first[:-1].unsqueeze(0))
            torch.testing.assert_close(outputs.dist[0].log_prob(mine.action), mine.log_prob, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
def test_the_same_seed_gives_the_same_weights_and_a_restored_one_the_next_update(typed, env):
    wiring, first, sampler = start(typed, "mbmpo", f"env={env}")
    data = batches(wiring, sampler, 3)
    _, second, _ = start(typed, "mbmpo", f"env={env}")
    for made in (first, second):
        for number, batch in enumerate(data[:2]):
            metrics = made.update(batch, Clock(100 * (number + 1), number)).metrics
            assert all(np.isfinite(float(value)) for value in metrics.values())
    assert same(first, second)
    _, third, _ = start(typed, "mbmpo", f"env={env}", "seed=9")
    assert not same(first, third)
    third.load_state(first.state())
    for made in (first, third):
        made.update(data[2], Clock(300, 2))
    assert same(first, third)
    assert changed_by_an_update(first, data[0]) == []


@pytest.mark.parametrize("before, words", [("mbmpo", ["algo.num_tasks=2"]), ("maml", [])])
def test_weights_of_another_run_are_those_of_all_tasks(before, words, tmp_path):
    run, common = tmp_path / "run", ["env=CartPole-v1", "logger=[]"]
    assert _dispatch(["train", *small(before, "tiny"), *common, *words, "env_steps=20", f"run_dir={run}"]) == 0
    theirs = checkpoints_of(run).load(parts=("policy",))[0]["policy"]
    made = Wired(type_config(compose(*small("mbmpo", "tiny"), *common, "algo.num_tasks=3", f"init={run}"))).algorithm().policy
    for name, value in made.named_parameters():
        torch.testing.assert_close(value.detach(), theirs[name], rtol=0, atol=0)
    assert torch.equal(made.adapted, made.vector().expand(3, -1))


def test_nothing_is_learnt_before_the_random_steps_are_over(typed):
    wiring, made, sampler = start(typed, "mbmpo", "env=Pendulum-v1", "algo.random_steps=500")
    batch = batches(wiring, sampler, 1)[0]
    before = made.policy.vector().clone()
    assert set(made.update(batch, Clock(100)).metrics) == {"model_rows"} and torch.equal(before, made.policy.vector())
    assert "model_loss" in made.update(batch, Clock(500)).metrics and not torch.equal(before, made.policy.vector())
    wiring, made, sampler = start(typed, "mbmpo", "env=Pendulum-v1", "algo.explore=false")  # no step is random
    assert "model_loss" in made.update(batches(wiring, sampler, 1)[0], Clock(100)).metrics


@pytest.mark.parametrize(
    "words, said",
    [
        (["env=Acrobot-v1"], "rewards of imagined steps must be known"),
        (["env=CartPole-v1", "++env.kwargs.sutton_barto_reward=true"], "rewards of imagined steps must be known"),
        (["env=tests/Shifted-v1"], "rewards of imagined steps must be known"),
        (["env=CartPole-v1", "env.action_repeat=2"], "rewards of imagined steps must be known"),
        (["env=CartPole-v1", "env.stack=2"], "env.stack must be 1"),
        (["env=rlrun/EverySpace-v0"], "is for actions that are one choice .* or numbers"),
        (["env=CartPole-v1", "resources.num_learners=2", "algo.num_tasks=4"], "one learner fits the models"),
    ],
)
def test_what_does_not_fit_is_refused_with_a_sentence(typed, words, said):
    with pytest.raises(UserError, match=said):
        checked(typed(*small("mbmpo", "tiny"), "logger=[]", *words))
