"""Checks DQN's targets by hand, its exploration, and the distributional algorithms on the same transitions."""

import copy
import dataclasses
import math

import pytest
import torch
from conftest import SMALL
from test_actor_learner import run_wired
from test_all import batches, start
from wired import Wired, checked

from rlrun.algos.dqn import DQN
from rlrun.core.algorithm import Update
from rlrun.core.batch import Batch
from rlrun.core.errors import UserError
from rlrun.core.schedule import Clock
from rlrun.models.heads import QHead, QHeadConfig
from rlrun.models.noisy import NoisyLinear
from rlrun.ops.td import categorical_projection

WORDS = ["env=CartPole-v1", *SMALL, "algo.learning_starts=30", "replay.capacity=300", "algo.exploration.epsilon=0"]


def algorithm(typed, algo="dqn", *words):
    return Wired(typed(f"algo={algo}", *WORDS, *words)).algorithm()


def transitions(n=1) -> Batch:
    """Three fragments of n rows: one goes on, one terminates at row 0, one meets a dead row at row 1 (with n > 1)."""
    valid = torch.ones(n, 3, dtype=torch.bool)
    terminated = torch.zeros(n, 3, dtype=torch.bool)
    terminated[0, 1] = True
    if n > 1:
        valid[1:, 2] = False
        valid[1:, 1] = False
    observation = torch.arange(24.0).view(2, 3, 4) / 10
    return Batch(obs=Batch(observation=observation), is_first=torch.zeros(2, 3, dtype=torch.bool), action=torch.tensor([[1, 0, 1]]).expand(n, 3),
                 reward=torch.tensor([[1.0, 2.0, 3.0]]).expand(n, 3).clone(), terminated=terminated, valid=valid, weight=torch.tensor([1.0, 0.5, 0.25]),
                 key=torch.arange(3))  # fmt: skip


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("n", [1, 3])
def test_targets_by_hand(typed, double, n):
    made = algorithm(
        typed, "dqn", f"algo.double={double}", "algo.discount=0.5", f"algo.n_step={n}", "algo.huber_delta=null"
    )
    with torch.no_grad():
        for parameter in made.target.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0)))
    batch = transitions(n)
    with torch.no_grad():
        q, following = made.policy.values(batch)
        other = made.target.values(batch)[1]
    best = following.argmax(-1) if double else other.argmax(-1)
    value = other[torch.arange(3), best]
    power = 0.5**n
    total = sum(0.5**k for k in range(n))
    # The last one bootstraps from the dead row's observation.
    expected = torch.stack((total * 1.0 + power * value[0], torch.tensor(2.0), 3.0 + 0.5 * value[2]))
    loss, td_error, _ = made.loss(batch)
    taken = q[torch.arange(3), batch.action[0]]
    torch.testing.assert_close(td_error, (expected - taken).abs())
    torch.testing.assert_close(loss.detach(), (batch.weight * 0.5 * (expected - taken) ** 2).mean())
    loss.backward()
    assert all(p.grad is None for p in made.target.parameters()) and any(
        p.grad.abs().sum() > 0 for p in made.policy.parameters()
    )


def test_huber_bounds_the_gradient_and_reward_clip_the_reward(typed):
    small, large = (
        algorithm(typed, "dqn", "algo.huber_delta=1.0", f"algo.reward_clip={clip}") for clip in ("sign", "none")
    )
    _, clipped, _ = small.loss(transitions())
    _, raw, _ = large.loss(transitions())
    torch.testing.assert_close(raw - clipped, torch.tensor([0.0, 1.0, 2.0]))


@pytest.mark.parametrize("algo", ["dqn", "c51", "rainbow", "qr_dqn", "iqn"])
def test_what_stands_in_dead_rows_changes_nothing_and_the_end_counts(typed, algo):
    batch = transitions(3)
    dirty = {"reward": torch.where(batch.valid, batch.reward, 1e6), "action": torch.where(batch.valid, batch.action, 0),
             "terminated": batch.terminated | ~batch.valid}  # fmt: skip
    seen = batch.obs.observation.clone()
    seen[1] += 1.0
    results = []
    for changed in (batch, batch.replace(**dirty), batch.replace(obs=Batch(observation=seen))):
        made = algorithm(typed, algo, "algo.n_step=3")
        results.append(made.loss(changed)[1])
    assert torch.equal(*results[:2])
    torch.testing.assert_close(results[0][1], results[2][1])
    assert (results[0] != results[2])[[0, 2]].all(), "only a terminated one does not bootstrap"


@pytest.mark.parametrize("algo", ["dqn", "c51", "rainbow", "qr_dqn", "iqn", "r2d2"])
def test_the_target_follows_as_it_is_told(typed, algo):
    words = ["algo.target_update_interval=2", "algo.target_tau=0.5", "algo.lr=0.1"]
    if algo == "r2d2":
        words += ["algo.burn_in=0", "algo.sequence_length=5", "algo.sequence_stride=5", "model.memory.size=4"]
    wiring, made, sampler = start(typed, algo, "env=CartPole-v1", *words)
    data = batches(wiring, sampler, 2)
    before = [p.clone() for p in made.target.parameters()]
    made.update(data[0], Clock(0, 0))
    assert all(torch.equal(a, b) for a, b in zip(before, made.target.parameters(), strict=True))
    made.update(data[1], Clock(0, 1))
    for old, new, online in zip(before, made.target.parameters(), made.policy.parameters(), strict=True):
        torch.testing.assert_close(new, (old + online) / 2)


@pytest.mark.parametrize(
    "algo, more", [("dqn", ["algo.double=false"]), ("c51", []), ("rainbow", ["algo.head.noisy=false"])]
)
def test_priorities_of_new_rows_are_those_of_the_learner(typed, algo, more):
    """Samplers and learner agree if target and online network are equal and every action is the best one."""
    words = [
        "algo.n_step=2",
        "algo.input_priorities=true",
        "algo.reward_clip=0.3",
        "replay=prioritized",
        "replay.alpha=1",
        "replay.priority_epsilon=0",
        *more,
    ]
    wiring, made, sampler = start(typed, algo, "env=CartPole-v1", *words)
    with torch.no_grad():
        for policy in (made.policy, made.target):  # values and distributions that differ from state to state
            for parameter in policy.parameters():
                parameter.mul_(3.0)
    replay = wiring.replay(0)
    for _ in range(20):
        fragments = sampler.take(1)
        replay.add(fragments[0])
        sampler.free(fragments)
    batch = replay.sample(20, Clock())
    keys = batch.key.numpy()
    leaf = replay.draws.leaf(keys % replay.layout.columns, keys // replay.layout.columns)
    error = made.loss(batch)[1].abs()
    assert len(error.unique()) > 10
    torch.testing.assert_close(
        torch.from_numpy(replay.draws.tree.leaves[leaf]).float(), error, atol=1e-5, rtol=1e-4
    )
    replay.write(batch.key, error)


def another_target(made):
    """Gives the target network parameters with which it prefers other actions than the online network."""
    for seed in range(100):
        made.target.load_state_dict(made.policy.state_dict())
        with torch.no_grad():
            for parameter in made.target.parameters():
                parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed)))
            online, own = (net.values(transitions())[1].argmax(-1) for net in (made.policy, made.target))
        if (online != own).any():
            return
    raise AssertionError("no such net was found")


@pytest.mark.parametrize("algo, double", [("c51", False), ("c51", True), ("rainbow", True)])
def test_categorical_targets_by_hand(typed, algo, double):
    words = (
        ["algo.double=true"]
        if double and algo == "c51"
        else ["algo.head.noisy=false", "algo.n_step=1"]
        if algo == "rainbow"
        else []
    )
    made = algorithm(typed, algo, "algo.discount=0.5", "algo.num_atoms=5", "algo.v_min=-4", "algo.v_max=4", *words)
    another_target(made)
    batch = transitions()
    with torch.no_grad():
        logits, other = made.policy.head_outputs(batch), made.target.head_outputs(batch)[1]
    atoms = torch.linspace(-4, 4, 5)
    online, own = ((x.softmax(-1) * atoms).sum(-1).argmax(-1) for x in (logits[1], other))
    assert (online != own).any(), "or double would not show"
    best = online if double else own
    probability = other.softmax(-1)[torch.arange(3), best]
    target = categorical_projection(probability, batch.reward[0], torch.tensor([0.5, 0.0, 0.5]), atoms)
    log_p = logits[0].log_softmax(-1)[torch.arange(3), batch.action[0]]
    loss, kl, metrics = made.loss(batch)
    torch.testing.assert_close(loss.detach(), -(batch.weight * (target * log_p).sum(-1)).mean())
    expected = (torch.special.xlogy(target, target) - target * log_p).sum(-1)
    torch.testing.assert_close(kl, expected)
    assert metrics["kl"] == pytest.approx(expected.mean().item(), rel=1e-5)
    assert target[1].tolist() == pytest.approx([0, 0, 0, 1, 0]), "a terminated row's distribution is its reward"


def test_the_values_of_atoms_are_those_of_the_config(typed):
    """Weights of a run with another range, or of a time when they held the values, do not bring theirs along."""
    made = algorithm(typed, "c51", "algo.num_atoms=5", "algo.v_min=0", "algo.v_max=8")
    other = algorithm(typed, "c51", "algo.num_atoms=5", "algo.v_min=-4", "algo.v_max=4").policy.state_dict()
    assert not any("atoms" in name for name in other)
    made.policy.load_state_dict(other | {"atoms": torch.linspace(-4, 4, 5)})
    assert made.policy.atoms.tolist() == [0.0, 2.0, 4.0, 6.0, 8.0]


@pytest.mark.parametrize("algo", ["qr_dqn", "iqn"])
def test_double_chooses_by_the_online_net(typed, algo):
    errors = []
    for double in (False, True):
        made = algorithm(typed, algo, f"algo.double={double}", "model.activation=tanh")
        another_target(made)
        batch = transitions()
        with torch.no_grad():
            assert (made.policy.values(batch)[1].argmax(-1) != made.target.values(batch)[1].argmax(-1)).any()
        errors.append(made.loss(batch)[1])
    assert (errors[0] >= errors[1] - 0.3).all() and (errors[0] > errors[1] + 0.01).any(), (
        "the target's own best is worth most to it"
    )


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("algo", ["dqn", "c51", "rainbow", "qr_dqn", "iqn", "r2d2"])
def test_the_choice_and_the_prediction_have_noise_of_their_own(typed, algo, double, monkeypatch):
    """Fortunato et al. 2018, section 3.1. Noise that a call of the online network acts with is its own alone: the
    choice is made without gradients, and the prediction with them."""
    words = ["algo.head.noisy=true", *([] if algo == "rainbow" else [f"algo.double={double}"])]
    if algo == "r2d2":
        words += ["algo.burn_in=0", "algo.sequence_length=5", "algo.sequence_stride=5", "model.memory.size=4"]
    wiring, made, sampler = start(typed, algo, "env=CartPole-v1", *words)
    (batch,) = batches(wiring, sampler, 1)
    layer = next(one for one in made.policy.modules() if isinstance(one, NoisyLinear))
    used = {False: set(), True: set()}
    layer.register_forward_hook(lambda *_: used[torch.is_grad_enabled()].add(tuple(layer.noise_in.tolist())))
    made.loss(batch)
    assert len(used[True]) == 1 and len(used[False]) == (double or algo == "rainbow")
    assert not used[True] & used[False]


def linear(inputs: int, outputs: int, gain: float) -> torch.nn.Linear:
    return torch.nn.Linear(inputs, outputs)


def test_a_dueling_head_is_the_value_and_centred_advantages():
    cfg = QHeadConfig(hidden="auto", encoder_layer=False, dueling=True, gradient_scale=0.5, noisy=False, sigma0=0.5)
    head, plain = (
        QHead(4, 3, 2, (), "relu", cfg, linear),
        QHead(4, 3, 2, (), "relu", dataclasses.replace(cfg, gradient_scale=1.0), linear),
    )
    plain.load_state_dict(head.state_dict())
    x = torch.randn(5, 4, requires_grad=True)
    value, advantage = head.value(x), head.advantage(x).view(5, 3, 2)
    out = head(x)
    torch.testing.assert_close(out, value[:, None] + advantage - advantage.mean(1, keepdim=True))
    (scaled,) = torch.autograd.grad(out.sum(), x)
    (whole,) = torch.autograd.grad(plain(x).sum(), x)
    torch.testing.assert_close(scaled, 0.5 * whole)


@pytest.mark.parametrize("rows", [3, 40])  # Layers build noisy weights for many rows only.
def test_noise_has_the_papers_size(rows):
    layer = NoisyLinear(16, 8, 0.5)
    assert layer.weight_sigma.unique().item() == layer.bias_sigma.unique().item() == pytest.approx(0.5 / 4)
    assert 0.2 < layer.weight.abs().max() <= 0.25
    x = torch.randn(rows, 16)
    torch.testing.assert_close(layer(x), torch.nn.functional.linear(x, layer.weight, layer.bias))
    layer.draw(torch.Generator().manual_seed(0))
    drawn = torch.Generator().manual_seed(0)
    for noise in (layer.noise_in, layer.noise_out):  # f(x) = sgn(x) sqrt(|x|) of standard normal numbers
        normal = torch.randn(noise.shape, generator=drawn)
        torch.testing.assert_close(noise, torch.copysign(normal.abs().sqrt(), normal))
    noise = layer.noise_out[:, None] * layer.noise_in[None]
    torch.testing.assert_close(
        layer(x), x @ (layer.weight + layer.weight_sigma * noise).T + layer.bias + layer.bias_sigma * layer.noise_out
    )


@pytest.mark.parametrize("runner", ["replay", "distributed_replay"])
def test_priorities_go_back_to_the_replay(typed, tmp_path, runner, monkeypatch):
    """The replay contains the priorities that updates write."""
    monkeypatch.setattr(
        DQN, "update", lambda self, batch, clock: Update({}, {"priority": torch.full(batch.key.shape, 77.0)})
    )
    apart = runner == "distributed_replay"
    words = ["algo=apex" if apart else "algo=dqn", "env=CartPole-v1", "logger=[]", "replay=prioritized", "env_steps=400", "replay.alpha=1",
             "replay.priority_epsilon=0", "resources.device=cpu"]  # fmt: skip
    inner = "algo.inner" if apart else "algo"
    words += [
        f"{inner}.learning_starts=50",
        f"{inner}.fragment_length=10",
        f"{inner}.batch_size=16",
        f"{inner}.num_envs=2",
    ]
    words += ["resources.inference=local", "resources.num_samplers=2"] if apart else ["resources.inference=serial"]
    run_wired(Wired(typed(*words)), tmp_path)
    last = sorted((tmp_path / "checkpoints").glob("0*"))[-1]
    state = torch.load(last / "replay.pt", weights_only=True)["replay"]
    largest = [shard["largest"] for shard in state["shards"]] if apart else [state["largest"]]
    assert largest and all(value == 77.0 for value in largest)


def test_rainbow_is_double_c51_where_there_is_no_noise(typed):
    words = [
        "algo.head.noisy=false",
        "algo.head.dueling=true",
        "algo.n_step=2",
        "algo.head.gradient_scale=1",
        "replay=uniform",
    ]
    rainbow = algorithm(typed, "rainbow", *words)
    c51 = algorithm(typed, "c51", *words, "algo.double=true")
    c51.load_state_dict(rainbow.state_dict())
    for a, b in zip(rainbow.loss(transitions(2)), c51.loss(transitions(2)), strict=True):
        if isinstance(a, torch.Tensor):
            torch.testing.assert_close(a, b)


def test_quantiles_of_a_certain_return_come_together(typed):
    for algo in ("qr_dqn", "iqn"):
        made = algorithm(typed, algo, "algo.lr=0.01", "algo.discount=0.0")
        batch = transitions()
        for number in range(800):
            made.update(batch, Clock(0, number))
        with torch.no_grad():
            quantile = made.policy.head_outputs(batch)[0][torch.arange(3), batch.action[0]]
        torch.testing.assert_close(
            quantile, torch.tensor([1.0, 2.0, 3.0])[:, None].expand_as(quantile), atol=0.15, rtol=0
        )


# -- acting ----------------------------------------------------------------------------------------------------


def acting(typed, *words, columns=2000, place=None, observation=None):
    made = algorithm(typed, "dqn", *words).policy
    obs = Batch(observation=torch.full((columns, 4), 0.5) if observation is None else observation)
    state = made.initial_state(columns, torch.linspace(0, 1, columns) if place is None else place)

    rng = torch.Generator().manual_seed(0)

    def act(mode="explore", clock=None, first=True, state=state):
        with torch.no_grad():
            return made.act(
                obs, torch.full((columns,), first), state, clock or Clock(), mode, rng, ("q_taken", "q_max")
            )

    return made, obs, act


def test_epsilon_is_the_share_of_random_actions(typed):
    made, obs, act = acting(typed, "algo.exploration.epsilon={start: 1.0, end: 0.2, steps: 1000}")
    with torch.no_grad():
        best = made.values(Batch(obs=obs, is_first=torch.ones(2000, dtype=torch.bool)).map(lambda x: x[None]))[
            0
        ].argmax(-1)
    for steps, epsilon in ((0, 1.0), (500, 0.6), (2000, 0.2)):
        share = (act(clock=Clock(steps)).action != best).float().mean().item()
        assert share == pytest.approx(epsilon / 2, abs=0.04)
    assert (act("greedy").action == best).all()
    record = act().record
    assert (record.q_taken <= record.q_max).all() and (record.q_taken < record.q_max).any()


def test_epsilons_of_columns_are_spaced_in_logarithm(typed):
    with pytest.raises(UserError, match=r"epsilon_min=0.5 is more than epsilon, which is 0.4"):
        typed("algo=dqn", "env=CartPole-v1", "algo.exploration.epsilon=0.4", "algo.exploration.epsilon_min=0.5")
    made, _, _ = acting(typed, "algo.exploration.epsilon=0.4", f"algo.exploration.epsilon_min={0.4**8}")
    place = torch.arange(8) / 7
    epsilon = made.epsilon(Batch(place=place), Clock())
    # Ape-X: eps^(1 + alpha i / (N - 1)) with alpha 7
    torch.testing.assert_close(epsilon, torch.tensor([0.4 ** (1 + 7 * i / 7) for i in range(8)]))


def test_every_sampler_knows_where_its_columns_stand(typed):
    wiring = Wired(typed("algo=dqn", *WORDS[:1], "logger=[]", "algo.num_envs=4", "resources.inference=serial", "resources.num_samplers=2",
                          "algo.exploration.epsilon=0.4", "algo.exploration.epsilon_min=0.001"))  # fmt: skip
    sampler = wiring.sampler(0)
    sampler.publish(wiring.algorithm().policy, Clock())
    sampler.take(2)
    places = torch.cat([collector.state["place"] for collector in sampler.collectors])
    torch.testing.assert_close(places, torch.tensor([0.0, 1 / 3, 2 / 3, 1.0]))


def test_soft_q_draws_by_softmax(typed):
    made, obs, act = acting(typed, "algo.exploration.kind=soft_q", "algo.exploration.temperature=0.5")
    with torch.no_grad():
        q = made.values(Batch(obs=obs, is_first=torch.ones(2000, dtype=torch.bool)).map(lambda x: x[None]))[0, 0]
    expected = (q / 0.5).softmax(-1)[1].item()
    assert act().action.float().mean().item() == pytest.approx(expected, abs=0.04)
    object.__setattr__(made.explore, "temperature", 1e-42)  # dividing by it makes large numbers infinite
    assert (act().action == q.argmax(-1)).all()


def test_parameter_noise_lasts_an_episode_and_adapts(typed):
    words = ["algo.exploration.kind=parameter_noise", "algo.exploration.noise_std=0.5"]
    made, obs, act = acting(
        typed, *words, columns=3, observation=torch.randn(3, 4, generator=torch.Generator().manual_seed(1))
    )
    plain = [p.clone() for p in made.parameters()]
    first = act().state
    again = act(first=False, state=first).state
    assert torch.equal(first["noise"], again["noise"]) and not torch.equal(first["noise"][0], first["noise"][1]), (
        "one for every column"
    )
    assert (again["rows"] == 2).all() and (again["moved"] >= first["moved"]).all() and (again["moved"] > 0).all()
    near = -math.log(1 - 0.1 + 0.1 / 2)
    later = act(first=True, state=again).state
    distance = again["moved"] / again["rows"]
    torch.testing.assert_close(later["deviation"], torch.where(distance < near, 0.5 * 1.01, 0.5 / 1.01))
    assert (later["rows"] == 1).all() and not torch.equal(later["noise"], again["noise"])
    assert all(torch.equal(a, b) for a, b in zip(plain, made.parameters(), strict=True))
    # The perturbed network is the network with noise added.
    copied = copy.deepcopy(made)
    torch.nn.utils.vector_to_parameters(
        torch.nn.utils.parameters_to_vector(copied.parameters()) + first["noise"][1] * 0.5, copied.parameters()
    )
    with torch.no_grad():
        q = copied.values(Batch(obs=obs, is_first=torch.ones(3, dtype=torch.bool)).map(lambda x: x[None]))[0, 1]
        disturbed = made.episodes.outputs(obs[1:2], torch.ones(1, dtype=torch.bool), first["noise"][1:2] * 0.5)[0]
    torch.testing.assert_close(q, disturbed)


def test_noise_explores_and_is_off_when_greedy(typed):
    made = algorithm(typed, "rainbow").policy
    obs, first = Batch(observation=torch.ones(1, 4)), torch.ones(1, dtype=torch.bool)

    def values(mode, seed):
        with torch.no_grad():
            return made.act(
                obs, first, Batch(), Clock(), mode, torch.Generator().manual_seed(seed), ("q_max",)
            ).record.q_max.item()

    assert values("explore", 0) == values("explore", 0) != values("explore", 1)
    assert values("greedy", 0) == values("greedy", 1)


@pytest.mark.parametrize("kind", ["epsilon_greedy", "soft_q", "parameter_noise"])
def test_illegal_actions_are_never_chosen(typed, kind):
    made = (
        Wired(
            typed(
                "algo=dqn",
                "env=rlrun/Masked-v0",
                *SMALL,
                f"algo.exploration.kind={kind}",
                "algo.exploration.epsilon=0.5",
            )
        )
        .algorithm()
        .policy
    )
    rows = 500
    mask = torch.rand(rows, made.spec.action.n, generator=torch.Generator().manual_seed(0)) < 0.4
    mask[:, 1] |= ~mask.any(1)
    obs = Batch(observation=Batch(step=torch.randn(rows, 1)), action_mask=mask.to(torch.int8))
    with torch.no_grad():
        for mode in ("explore", "greedy"):
            state = made.initial_state(rows, torch.zeros(rows))
            action = made.act(
                obs, torch.ones(rows, dtype=torch.bool), state, Clock(), mode, torch.Generator().manual_seed(1)
            ).action
            assert mask[torch.arange(rows), action].all()
    mask[0] = False  # an observation at an end, of which the value is bootstrapped from all the same
    numbers = torch.randn(rows, made.spec.action.n, 1)
    values = made.legal_q(numbers, Batch(action_mask=mask))
    assert torch.equal(values[0], numbers[0, :, 0]) and torch.equal(values[mask], numbers[mask][:, 0])
    assert (values[1:][~mask[1:]] == torch.finfo(values.dtype).min).all()


# -- user errors ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words, said", [
    (["algo=dqn", "env=Pendulum-v1"], r"dqn is for actions that are one choice \(Discrete\); Pendulum-v1 has Box.*ppo or sac"),
    (["algo=dqn", "env=CartPole-v1", "algo.batch_size=100", "replay.capacity=50"], "batch_size=100 is more than the 50 rows of replay.capacity"),
    (["algo=apex", "env=CartPole-v1", "replay.capacity=300"], "algo.inner.batch_size=512 is more than the 300 rows"),
    (["algo=apex_ddpg", "env=Pendulum-v1", "model/memory=lstm"], "inside Ape-X, has no memory: set model/memory=none"),
    (["algo=dqn", "env=CartPole-v1", "algo.learning_starts=2", "algo.n_step=3"], "learning_starts 2 is below n_step 3.*the smallest that works is learning_starts=3"),
    (["algo=dqn", "env=CartPole-v1", "replay.capacity=500"], "learning would never start"),
    (["algo=c51", "env=CartPole-v1", "algo.v_min=3", "algo.v_max=3"], "v_min 3 must be below v_max 3"),
    (["algo=r2d2", "env=CartPole-v1", "algo.n_step=21"], "n_step 21 is more than sequence_length 20"),
    (["algo=dqn", "env=Pong", "replay.capacity=1e9"], "GB of memory and .* are free; replay.capacity=.* would fit, or replay.compress=true"),
    (["algo=dqn", "env=CartPole-v1", "model=lstm"], "algo=r2d2"),
    (["algo=r2d2", "env=CartPole-v1", "model=auto"], "model=lstm"),
    (["algo=dqn", "env=CartPole-v1", "runner=on_policy"], "dqn learns from a replay, which runner=on_policy has not"),
    (["algo=ppo", "env=CartPole-v1", "runner=replay"], "newest policy's rows alone; runner=replay"),
    (["algo=impala", "env=CartPole-v1", "runner=replay"], "impala learns from rows as they come"),
    (["algo=dqn", "env=CartPole-v1", "resources.num_learners=2", "algo.batch_size=33"], "must divide the 33 fragments of a train batch"),
    (["algo=dqn", "env=CartPole-v1", "algo.input_priorities=true", "replay=uniform"], "input_priorities are for replay=prioritized"),
    (["algo=dqn", "env=CartPole-v1", "algo.n_step=[3,2]"], "n_step"),
    (["algo=dqn", "env=CartPole-v1", "algo.n_step=[1,2,3]"], "n_step"),
    (["algo=dqn", "env=CartPole-v1", "replay.compress=true", "replay.directory=/tmp/x"], "compress is for replay in memory"),
    (["algo=dqn", "env=CartPole-v1", "replay.directory=/dev/null/x"], "replay.directory=/dev/null/x: nothing can be written to /dev/null"),
    (["algo=dqn", "env=CartPole-v1", "algo.exploration.epsilon=1.5"], "must be between 0 and 1"),
    (["algo=dqn", "env=CartPole-v1", "seed=18446744073709551616"], r"seed must be at least 0 and below 2\^63"),
])  # fmt: skip
def test_what_cannot_work_gets_a_sentence(typed, words, said):
    with pytest.raises(UserError, match=said):
        checked(typed(*words))


def test_a_plan_of_a_replay_in_files_makes_none(typed, tmp_path):
    made = checked(typed("algo=dqn", "env=CartPole-v1", f"replay.directory={tmp_path / 'a' / 'b'}"))
    assert f"in files in {tmp_path / 'a' / 'b'}" in str(made.replay) and not (tmp_path / "a").exists()


@pytest.mark.parametrize("words", [
    ["algo=r2d2", "env=CartPole-v1"],
    ["algo=sac", "env=Pendulum-v1", "model/memory=lstm", "algo.sequence_length=4"],
    ["algo=qmix", "env=TwoStepGame-v0", "model/memory=gru", "algo.sequence_length=4", "algo.learning_starts=40"],
    ["algo=apex", "algo@algo.inner=iql", "env=TwoStepGame-v0"],
])  # fmt: skip
def test_replayed_sequences_begin_at_the_same_rows_of_every_fragment(typed, words):
    at = "algo.inner" if "algo=apex" in words else "algo"
    with pytest.raises(UserError, match="fragment_length 30 must be a multiple of sequence_stride 7"):
        checked(typed(*words, f"{at}.fragment_length=30", f"{at}.sequence_stride=7"))


@pytest.mark.parametrize("words, widths", [
    ([], [3200, 256, 6]),  # hidden layers replace the encoder's last layer
    (["algo.head.encoder_layer=true"], [256, 256, 6]),
    (["algo.head.encoder_layer=true", "algo.head.hidden=[512]"], [256, 512, 6]),
    (["algo=r2d2", "model.memory.size=16", "algo.head.encoder_layer=true"], [16, 6]),  # with a memory in between
])  # fmt: skip
def test_the_head_stands_on_what_its_options_say(typed, words, widths):
    pytest.importorskip("ale_py")
    made = Wired(
        typed(
            *([] if "algo=r2d2" in words else ["algo=dqn"]),
            "env=Pong",
            "env.size=42",
            "logger=[]",
            "resources.device=cpu",
            *words,
        )
    )
    policy = made.policy_factory(acting=False)()
    layers = [layer for layer in policy.head.advantage if isinstance(layer, torch.nn.Linear)]
    assert [layers[0].in_features, *(layer.out_features for layer in layers)] == widths
