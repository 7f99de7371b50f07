"""MAML: its inner and outer steps, the data flow of tasks and rounds, and learning to learn."""

import copy
import itertools
import json
import math

import gymnasium
import numpy as np
import pytest
import torch
from conftest import small
from test_all import start
from torch import nn
from torch.func import vmap
from wired import Wired, checked

from rlrun.core.batch import nested, stack_columns
from rlrun.core.errors import UserError
from rlrun.core.schedule import Clock
from rlrun.models.per_column import plain, vector_of, with_vector
from rlrun.ops.inner_steps import gradient_descent
from rlrun.ops.linear_baseline import features, fitted, rows_since_start
from rlrun.samplers.local import LocalSampler

PENDULUM = ["env=Pendulum-v1", "env.max_episode_steps=5"]
PIXELS = ["env=CartPole-v1", "env.observation=pixels", "env.size=48", "env.max_episode_steps=5"]
PLAIN = ["algo.optimizer.kind=sgd", "algo.lr=0.01", "algo.value_clip=0", "algo.kl_coef=0"]
EXACT = {"rtol": 1e-5, "atol": 1e-7}
START = Clock()


class Tasks(gymnasium.Env):
    """An environment as RLlib's users wrote it: tasks from NumPy's global generator. It shows its task."""

    observation_space = gymnasium.spaces.Box(0.0, 1.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self):
        self.task, self.steps = 0.0, 0

    def sample_tasks(self, n_tasks):
        return np.random.uniform(size=(n_tasks,))

    def set_task(self, task):
        self.task = task

    def _obs(self):
        return np.array([self.task], dtype=np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self._obs(), {}

    def step(self, action):
        self.steps += 1
        return self._obs(), float(action), False, self.steps >= 5, {}


class Awkward(Tasks):
    def sample_tasks(self, n_tasks):
        return [0.5]


class Side(gymnasium.Env):
    """Actions are to hit 1 in some tasks and -1 in the others, which nothing shows but the rewards."""

    observation_space = gymnasium.spaces.Box(0.0, 1.0, (1,), np.float32)
    action_space = gymnasium.spaces.Box(-2.0, 2.0, (1,), np.float32)
    goal, steps = 1.0, 0

    def sample_tasks(self, n_tasks):
        return self.np_random.permutation(np.resize([-1.0, 1.0], n_tasks))

    def set_task(self, task):
        self.goal = task

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.ones(1, dtype=np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.ones(1, dtype=np.float32), -float((action[0] - self.goal) ** 2), self.steps >= 5, False, {}


gymnasium.register("Side-v0", entry_point=Side, max_episode_steps=5)
gymnasium.register("Awkward-v0", entry_point=Awkward, max_episode_steps=5)
gymnasium.register("ShowsTask-v0", entry_point=Tasks, max_episode_steps=5)
SHOWS_TASK = "test_maml:ShowsTask-v0"


def played(made, sampler, wiring, clock=START):
    """The rounds of one update as runner=meta collects them."""
    rounds = []
    made.adapt(None)
    sampler.publish(made.policy, clock)
    count = wiring.needs.columns // wiring.needs.tasks.rounds // sampler.columns
    for number in range(wiring.needs.tasks.rounds):
        fragments = sorted(sampler.take(count), key=lambda fragment: fragment.header.worker)
        rounds.append(stack_columns([fragment.batch for fragment in fragments]).clone().lived())
        if number < wiring.needs.tasks.rounds - 1:
            made.adapt(rounds[-1])
        sampler.publish(made.policy, clock)
        sampler.free(fragments)
    return rounds


# -- known answers -----------------------------------------------------------------------------------------------------


def test_with_inner_lr_0_it_is_ppo(typed):
    words = [*PENDULUM, *PLAIN, "algo.inner_lr=0", "algo.num_tasks=1", "algo.envs_per_task=4", "algo.outer_steps=3"]
    wiring, maml, sampler = start(typed, "maml", *words)
    rounds = played(maml, sampler, wiring)
    assert (maml.policy.adapted == maml.policy.vector()).all()
    rows = rounds[1].valid.numel()
    same = ["algo.optimizer.kind=sgd", "algo.lr=0.01", "algo.clip=0.3", "algo.lambda_=1", "algo.value_coef=1"]
    same += [f"algo.batch_size={rows}", f"algo.minibatch_size={rows}", f"algo.fragment_length={len(rounds[1].valid)}"]
    ppo = start(typed, "ppo", *PENDULUM, *same, "algo.num_epochs=3", "algo.max_grad_norm=0", "algo.sequence_length=1")[1]
    ppo.policy.load_state_dict(maml.policy.state_dict())
    before = vector_of(maml.policy).detach().clone()
    told = maml.update(stack_columns(rounds), Clock()).metrics
    expected = ppo.update(rounds[1], Clock()).metrics
    assert (before - maml.policy.vector()).abs().max() > 1e-4
    torch.testing.assert_close(maml.policy.vector(), vector_of(ppo.policy), **EXACT)
    for name in ("policy_loss", "value_loss", "entropy", "clip_fraction"):
        torch.testing.assert_close(told[name], expected[name], rtol=1e-4, atol=1e-6)


def test_without_adaptation_the_mean_delta_is_0(typed):
    """CartPole's returns of two rounds with the same policy differ by chance alone."""
    words = ["env=CartPole-v1", "algo.inner_lr=0", "algo.lr=0", "algo.num_tasks=20", "algo.envs_per_task=5"]
    wiring, maml, sampler = start(typed, "maml", *words)
    told = maml.update(stack_columns(level(played(maml, sampler, wiring))), Clock()).metrics
    assert told["adaptation_delta"] == pytest.approx(told["adapt_1"] - told["adapt_0"])
    assert abs(told["adaptation_delta"]) < 6.0 and 15 < told["adapt_0"] < 30


def level(rounds):
    """Rounds cut to as many rows as all of them have, as tests that need no more rows may do."""
    rows = min(len(one.valid) for one in rounds)

    def cut(name, value):
        if hasattr(value, "items"):
            return type(value)({key: cut(name, part) for key, part in value.items()})
        return value[: rows + (name in ("obs", "is_first"))]

    return [type(one)({name: cut(name, value) for name, value in one.items()}) for one in rounds]


@pytest.mark.parametrize("env", ["Pendulum-v1", "CartPole-v1"])
@pytest.mark.parametrize("baseline", ["value", "linear"])
def test_the_second_order_gradient_is_that_of_finite_differences(typed, env, baseline, monkeypatch):
    """In float64, to which the layers' own conversions of observations are turned as well."""
    torch.manual_seed(0)
    words = [f"env={env}", "env.max_episode_steps=5", "algo.inner_lr=0.3", "algo.kl_coef=0.5", "algo.inner_steps=2"]
    words += [f"algo.baseline={baseline}", "algo.value_clip=0", "algo.entropy_coef=0.1", "algo.clip=1e9"]
    wiring, maml, sampler = start(typed, "maml", *words)
    rounds = [doubled(rows) for rows in maml.rounds(stack_columns(level(played(maml, sampler, wiring))))[0]]
    first_order = start(typed, "maml", *words, "algo.first_order=true")[1]
    maml.double(), first_order.double()
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    theta = maml.policy.vector().detach() + 0.05 * torch.randn(maml.policy.size, dtype=torch.float64)

    def gradient(made):
        point = theta.clone().requires_grad_()
        return torch.autograd.grad(made.outer_loss(point, rounds, Clock())[0], point)[0]

    exact, approximate, step = gradient(maml), gradient(first_order), 1e-5
    for _ in range(3):
        way = torch.randn(len(theta), dtype=torch.float64)
        ahead, behind = (maml.outer_loss(theta + sign * step * way, rounds, Clock())[0] for sign in (1, -1))
        measured = float(ahead - behind) / (2 * step)
        assert float(exact @ way) == pytest.approx(measured, rel=1e-6, abs=1e-9)
    assert (exact - approximate).norm() > 0.01 * exact.norm()


@pytest.mark.parametrize("first_order", [True, False])
@pytest.mark.parametrize("number", [0, 1])
def test_a_row_whose_ratio_would_be_infinite_spoils_no_gradient(typed, number, first_order):
    """In the round of the inner step, and in that of the outer one."""
    wiring, maml, sampler = start(typed, "maml", *PENDULUM, f"algo.first_order={first_order}")
    rounds = maml.rounds(stack_columns(level(played(maml, sampler, wiring))))[0]
    known, gradients = rounds[number]["log_prob"].clone(), []
    assert rounds[number]["valid"][0, 1, 0]
    for lowered in (50.0, 100.0):
        rounds[number]["log_prob"] = known.clone()
        rounds[number]["log_prob"][0, 1, 0] -= lowered
        point = maml.policy.vector().detach().requires_grad_()
        gradients.append(torch.autograd.grad(maml.outer_loss(point, rounds, Clock())[0], point)[0])
    assert gradients[0].isfinite().all() and gradients[0].abs().max() > 0
    assert torch.equal(*gradients)


def test_the_outer_gradient_knows_that_the_noise_of_actions_scales_the_inner_step(typed):
    """One state, normal actions, reward -(a - g)^2: the inner step moves the mean m by
    lr K 2 (g - m) / deviation, where K = |dm/dtheta|^2 and deviation^2 = 4 (m - g)^2 s^2 + 2 s^4 of the deviation s."""
    words = ["env=test_maml:Side-v0", "env.max_episode_steps=null", "algo.baseline=linear", "model.hidden=[]"]
    lr, goal, mean, log_std, count = 0.05, 0.4, 0.1, -0.5, 20001
    maml = start(typed, "maml", *words, f"algo.inner_lr={lr}")[1]
    with torch.no_grad():
        for name, parameter in maml.policy.named_parameters():
            parameter.fill_(log_std if "log_std" in name else 0.0)
        maml.policy.action_head.get_parameter(name_of_mean_bias(maml.policy)).fill_(mean)
    even = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    action = (mean + math.exp(log_std) * math.sqrt(2) * torch.erfinv(2 * even - 1)).float().view(count, 1, 1)
    obs, first = {"observation": torch.ones(count, 1, 1)}, torch.ones(count, 1, dtype=torch.bool)
    theta = maml.policy.vector().detach()
    said = with_vector(maml.policy, theta, nested(obs), first).dist
    reward = -(action - goal).square().squeeze(-1)
    rows = {"obs": obs, "is_first": first, "action": action, "log_prob": said.log_prob(action).detach()}
    rows |= {"dist": plain(said.record().map(torch.Tensor.detach)), "valid": first}
    rows["advantage"] = (reward - reward.mean()) / reward.std()

    def mean_after(vector):
        adapted = maml.adapted(vector, [rows])[0]
        return with_vector(maml.policy, adapted, nested(obs)[:1], first[:1]).dist.mean.squeeze()

    def known(mean, log_std):
        s = log_std.exp()
        return mean + lr * 2 * 2 * (goal - mean) / (4 * (mean - goal) ** 2 * s**2 + 2 * s**4).sqrt()

    point = torch.tensor([mean, log_std], dtype=torch.float64, requires_grad=True)
    expected = known(*point)
    assert float(mean_after(theta).detach()) == pytest.approx(float(expected.detach()), abs=2e-3)
    found = torch.func.grad(mean_after)(theta)
    derivative = torch.autograd.grad(expected, point)[0]
    places = dict(zip([name for name, _ in maml.policy.named_parameters()], ends(maml.policy), strict=True))
    by_mean = found[places["action_head." + name_of_mean_bias(maml.policy)]]
    by_log_std = found[next(place for name, place in places.items() if "log_std" in name)]
    assert abs(float(derivative[1])) > 0.1
    assert [float(by_mean), float(by_log_std)] == pytest.approx(derivative.tolist(), abs=5e-3)


def name_of_mean_bias(policy):
    (name,) = (name for name, _ in policy.action_head.named_parameters() if name.endswith("bias"))
    return name


def ends(policy):
    """The place of each parameter's last number in the policy's vector."""
    return [total - 1 for total in itertools.accumulate(one.numel() for one in policy.parameters())]


def doubled(rows):
    """Nested dictionaries with float64 in place of float32."""
    if isinstance(rows, dict):
        return {name: doubled(value) for name, value in rows.items()}
    return rows.double() if rows.is_floating_point() else rows


def test_a_quadratic_loss_has_its_gradient_in_closed_form():
    a, b, lr = 1.5, -0.7, 0.2

    def loss(theta, data):
        made = (0.5 * a * (theta - b).square()).sum()
        return made, made

    theta = torch.tensor([2.0], dtype=torch.float64, requires_grad=True)
    for first_order, factor in ((False, (1 - lr * a) ** 2), (True, 1 - lr * a)):
        after, _ = gradient_descent(loss, theta, [None], lr, first_order)
        assert float(after.detach()) == pytest.approx(b + (1 - lr * a) * (2.0 - b))
        made = torch.autograd.grad(loss(after, None)[0], theta)[0]
        assert float(made) == pytest.approx(a * factor * (2.0 - b))


def test_the_linear_baseline_finds_a_linear_function_of_its_features_and_survives_an_empty_task():
    obs, row = torch.randn(3, 50, 2), torch.arange(50).expand(3, 50)
    x = features(obs, row)
    weights = torch.randn(3, x.shape[-1], dtype=torch.float64)
    target, valid = (x @ weights.unsqueeze(-1)).squeeze(-1), torch.ones(3, 50, dtype=torch.bool)
    valid[2], target[2] = False, torch.nan
    made = fitted(x, target, valid, 1e-10)
    torch.testing.assert_close((x @ made.unsqueeze(-1)).squeeze(-1)[:2], target[:2], rtol=1e-6, atol=1e-6)
    assert (made[2] == 0).all()


def test_rows_are_counted_from_the_start_of_their_episode():
    first = torch.tensor([[True, False], [False, False], [False, True], [True, False]])
    assert rows_since_start(first).T.tolist() == [[0, 1, 2, 0], [0, 1, 0, 1]]


# -- the data flow -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("baseline, env", [*((one, PENDULUM) for one in ["value", "linear"]), ("value", PIXELS)])
def test_each_round_is_played_with_what_plain_gradient_descent_made_of_the_ones_before(typed, baseline, env):
    rate = 0.02 if env == PIXELS else 0.2  # large steps through convolutions would magnify rounding
    words = [*env, "algo.inner_steps=2", f"algo.inner_lr={rate}", f"algo.baseline={baseline}", "algo.value_clip=0"]
    wiring, maml, sampler = start(typed, "maml", *words)
    rounds = played(maml, sampler, wiring)
    rows = [maml.rows(one, maml.policy.adapted) for one in rounds]
    for task in range(2):
        copied = copy.deepcopy(maml.policy)
        for number, batch in enumerate(rounds):
            mine = batch.columns(slice(2 * task, 2 * task + 2))
            dist, value = copied.unroll(mine)
            dist, value = dist[:-1], value[:-1]
            log_prob, live = dist.log_prob(mine.action), mine.valid
            torch.testing.assert_close(log_prob[live], mine.log_prob[live], **EXACT)
            given = {name: rows[number][name][task] for name in ("advantage", "target")}
            loss = -((log_prob - mine.log_prob).exp() * given["advantage"])[live].mean()
            if baseline == "value":
                loss = loss + 0.5 * (value - given["target"])[live].square().mean()
                torch.testing.assert_close(value[live], mine.value[live], **EXACT)
            copied.zero_grad()
            loss.backward()
            with torch.no_grad():
                for parameter in copied.parameters():
                    if parameter.grad is not None:
                        parameter -= rate * parameter.grad


def test_values_behind_a_round_are_those_of_the_parameters_that_played_it(typed):
    """Also if the rows of that round go on behind its end, and those of the round before do not."""
    wiring, maml, sampler = start(typed, "maml", *PENDULUM, "algo.inner_lr=0.2")
    first, second = level(played(maml, sampler, wiring))
    first.valid[-1], second.valid[-1] = False, True
    theta = maml.policy.vector().detach().expand_as(maml.policy.adapted)
    of_first = maml.rows(first, theta)
    wanted = maml.rows(second, maml.after_step(theta, of_first))
    assert not torch.equal(wanted["target"], maml.rows(second, theta)["target"])
    got, _ = maml.rounds(stack_columns([first, second]))
    assert torch.equal(got[0]["target"], of_first["target"]) and torch.equal(got[1]["target"], wanted["target"])


def test_every_column_plays_its_task_in_all_rounds_and_updates_have_tasks_of_their_own(typed):
    by_inference = []
    for inference, samplers in (("serial", 1), ("local", 2)):
        words = [*small("maml", "tiny"), f"env={SHOWS_TASK}", "algo.sample_tasks=true", "algo.num_tasks=4", "logger=[]"]
        words += ["resources.device=cpu", f"resources.inference={inference}", f"resources.num_samplers={samplers}"]
        wiring = Wired(typed(*words))
        maml, sampler = wiring.algorithm(), wiring.sampler(0)
        assert isinstance(sampler, LocalSampler) == (inference == "local")
        seen = []
        try:
            sampler.publish(maml.policy, Clock())
            for number in range(4):  # two rounds of two updates
                fragments = sorted(sampler.take(samplers), key=lambda one: one.header.worker)
                batch = stack_columns([fragment.batch for fragment in fragments]).clone().lived()
                assert (batch.obs.observation == batch.obs.observation[:1]).all() and batch.valid.sum() == 5 * 8
                seen.append(batch.obs.observation[0, :, 0])
                sampler.publish(maml.policy, Clock(0, (number + 1) // 2))
                sampler.free(fragments)
        finally:
            sampler.close()
        for tasks in seen:
            assert torch.equal(tasks, tasks[::2].repeat_interleave(2)) and len(tasks.unique()) == 4
        assert torch.equal(seen[0], seen[1]) and torch.equal(seen[2], seen[3]) and not torch.equal(seen[0], seen[2])
        by_inference.append(torch.stack(seen))
    assert torch.equal(*by_inference), "tasks depend on the seed alone"


@pytest.mark.parametrize("env", [SHOWS_TASK, "CartPoleMass-v0"])
def test_every_episode_of_an_evaluation_has_a_task_of_its_own(typed, env):
    """Whether environments are stepped one by one or as one vector, and again the same ones for the same evaluation."""
    wiring = Wired(typed(*small("maml", "tiny"), f"env={env}", "algo.sample_tasks=true", "logger=[]"))
    made, again = [], wiring.plan.eval_env()(0, 3)
    for round_ in (0, 0, 1):
        obs, seen, ended = again.reset(round_)["observation"], [[], [], []], np.ones(3, bool)
        for step in range(60):
            now = obs[:, 0].copy() if env == SHOWS_TASK else again.env.masscart.copy()
            for column in range(3):
                if ended[column]:
                    seen[column].append(float(now[column]))
                assert now[column] == seen[column][-1], "a task lasts for a whole episode"
            told = again.step(np.full(3, step % 7 > 1))
            obs, ended = told.obs["observation"], told.is_first
        assert min(map(len, seen)) >= 2 and len({task for each in seen for task in each}) == sum(map(len, seen))
        made.append(seen)
    again.close()
    assert made[0] == made[1] != made[2]


@pytest.mark.parametrize(
    "words, said",
    [
        (["env=CartPole-v1", "algo.sample_tasks=true"], "CartPole-v1 has no sample_tasks"),
        (["env=PendulumMass-v0", "runner=on_policy"], "maml runs with runner=meta"),
        (["env=PendulumMass-v0", "model=lstm"], "has no memory"),
        (["env=PendulumMass-v0", "resources.inference=batched"], "every task has weights of its own"),
        (["env=PendulumMass-v0", "resources.envs_per_sampler=3"], "each plays one task|envs_per_sampler=3"),
        (["env=rlrun/Identity-v0", "env.max_episode_steps=null"], "makes room for the longest episode"),
        ([*PIXELS, "resources.precision=bf16"], "policies are adapted in fp32"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_with_a_sentence(typed, words, said):
    with pytest.raises(UserError, match=said):
        checked(typed(*small("maml", "tiny"), "logger=[]", *words))


def test_an_environment_that_gives_too_few_tasks_is_named(typed):
    from rlrun.core.errors import EnvError

    with pytest.raises(EnvError, match=r"Awkward-v0.*are not 2 tasks"):
        wiring, made, sampler = start(typed, "maml", "env=test_maml:Awkward-v0", "algo.sample_tasks=true")
        played(made, sampler, wiring)


# -- learning to learn -------------------------------------------------------------------------------------------------


class Regression(nn.Module):
    """Two layers of 40 (Finn et al. 2017, section 5.1)."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(1, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 1))

    def forward(self, x):
        return self.layers(x)


def sines(tasks, shots, rng):
    """x and y [tasks, 2, shots, 1] of sines with amplitude U(0.1, 5) and phase U(0, pi), for x in U(-5, 5)."""
    amplitude = 0.1 + 4.9 * torch.rand(tasks, 1, 1, 1, generator=rng)
    phase = math.pi * torch.rand(tasks, 1, 1, 1, generator=rng)
    x = 10 * torch.rand(tasks, 2, shots, 1, generator=rng) - 5
    return x, amplitude * torch.sin(x - phase)


def error(net, vector, data):
    x, y = data
    loss = (with_vector(net, vector, x) - y).square().mean()
    return loss, loss


@pytest.mark.slow
def test_a_sine_is_learnt_from_five_points():
    """Finn et al. 2017, figure 3: the error is about 2.8 before any step, 0.7 after one and 0.35 after ten."""
    torch.manual_seed(0)
    rng, net, updates, inner_lr = torch.Generator().manual_seed(1), Regression(), 9000, 0.01
    theta = vector_of(net).detach().requires_grad_()
    optimizer = torch.optim.Adam([theta], 3e-3)
    decay = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, updates)

    def after(x, y, steps):
        """The error on a task's last points after steps on its first ones."""
        vector, _ = gradient_descent(lambda *given: error(net, *given), theta, [(x[0], y[0])] * steps, inner_lr)
        return error(net, vector, (x[1], y[1]))[0]

    for _ in range(updates):
        loss = vmap(lambda x, y: after(x, y, 1))(*sines(25, 5, rng)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        decay.step()
    with torch.no_grad():
        x, y = sines(2000, 5, torch.Generator().manual_seed(2))
        before, one, ten = (float(vmap(lambda x, y, n=n: after(x, y, n))(x, y).mean()) for n in (0, 1, 10))
    assert 2.5 < before < 3.1 and one <= 0.75 and ten <= 0.45, (before, one, ten)


def test_adaptation_finds_a_hidden_goal(typed):
    """No single policy gets more than -5 on average, which is what hitting 0 is worth."""
    words = ["env=test_maml:Side-v0", "env.max_episode_steps=null", "algo.sample_tasks=true", "algo.num_tasks=8"]
    words += ["algo.envs_per_task=10", "algo.fragment_length=10", "model.hidden=[32]", "algo.outer_steps=8"]
    words += ["algo.lr=0.01", "algo.clip=0.2", "algo.value_clip=0", "algo.discount=0"]
    wiring, maml, sampler = start(typed, "maml", *words)
    clock, gains, after = Clock(), [], []
    for _ in range(25):
        told = maml.update(stack_columns(played(maml, sampler, wiring, clock)), clock).metrics
        clock = clock.after(updates=1)
        gains.append(float(told["adaptation_delta"]))
        after.append(float(told["adapt_1"]))
    assert np.mean(after[-10:]) > -3.0 and np.mean(gains[-10:]) > 3.0, (after, gains)


@pytest.mark.parametrize("algo", ["maml", "mbmpo"])
def test_a_resumed_exact_run_equals_one_without_a_pause_and_is_evaluated(tmp_path, algo, capsys):
    from rlrun.cli import _dispatch
    from rlrun.core.checkpoint import Checkpoints

    env = ["env=PendulumMass-v0", "algo.sample_tasks=true"] if algo == "maml" else ["env=Pendulum-v1"]
    steps = 160 if algo == "maml" else 60
    words = ["train", *small(algo, "tiny"), *env, "env.max_episode_steps=10", "resources=debug", "logger=[]"]
    words += [f"checkpoint.every={steps}", "checkpoint.every_sec=null"]
    runs = [tmp_path / "whole", tmp_path / "parts"]
    assert _dispatch([*words, f"run_dir={runs[0]}", f"env_steps={2 * steps}"]) == 0
    assert _dispatch([*words, f"run_dir={runs[1]}", f"env_steps={steps}"]) == 0
    assert _dispatch(["resume", str(runs[1]), f"env_steps={2 * steps}"]) == 0
    saved = [Checkpoints(run / "checkpoints", keep=3).load(None, parts=("algorithm",)) for run in runs]
    (one, facts), (other, others) = saved
    assert facts["env_steps"] == others["env_steps"] >= 2 * steps and facts["updates"] == others["updates"] > 2
    for name, value in one["algorithm"]["module"].items():
        assert torch.equal(value, other["algorithm"]["module"][name]), name
    told = []
    for run in runs:
        capsys.readouterr()
        assert _dispatch(["evaluate", str(run), "episodes=4", "--json"]) == 0
        told.append({**json.loads(capsys.readouterr().out), "run_dir": None})
    assert told[0] == told[1] and told[0]["adapt_0" if algo == "maml" else "return_mean"] < 0
    assert algo == "mbmpo" or told[0]["adapt_1"] != told[0]["adapt_0"]
