"""Checks BC, MARWIL, CQL, discrete CQL, implicit Q-learning and TD3+BC: losses by hand, and tests whose answer is known."""

import copy
import json
import math

import numpy as np
import pytest
import torch
from conftest import compose, small
from datasets_of_tests import data_of
from families import IMITATING, NEEDS
from test_actor_critics import Losses, drawn, folded, manual_critic, rows, shake, transitions
from wired import Wired, checked

from rlrun.algos.bc import mean_log_std
from rlrun.cli import _dispatch
from rlrun.config.automatic import settled
from rlrun.config.run import type_config
from rlrun.core.algorithm import LearnerContext
from rlrun.core.batch import Batch
from rlrun.core.errors import Diverged, UserError
from rlrun.core.schedule import Clock
from rlrun.families.off_policy import values_taken
from rlrun.models.model import Model
from rlrun.ops.distributions import Gaussian, Joint
from rlrun.runtime.fitting import make_spec
from rlrun.runtime.rundir import checkpoints_of

NETS = ["algo.actor.hidden=[8]", "algo.critic.hidden=[8]"]
STILL = ["algo.target_update_interval=100"]  # targets do not move
CLOCK = Clock()


def algorithm(algo, *words, env="Pendulum-v1", hidden=None, seed=0):
    """The algorithm of a config, without a runner."""
    hidden = [f"model.hidden={hidden}"] if hidden is not None else []
    config = type_config(
        settled(compose(f"algo={algo}", f"env={env}", "resources=debug", "logger=[]", *hidden, *words))[0]
    )
    spec = make_spec(config, config.algorithm.needs(config.algo))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Model(config.run.model, "fp32")
        policy = config.algorithm.make_policy(spec, model, config.algo)
        rng = torch.Generator().manual_seed(seed)
        made = config.algorithm(policy, spec, config.algo, LearnerContext(torch.device("cpu"), rng, model=model))
    if hasattr(made, "target_critic"):
        shake(made.target_critic, 1)
    return made


def single_rows(count=6, env="CartPole-v1", seed=0) -> Batch:
    """Single rows of data, of which the second and the last lead to terminated ends."""
    rng = torch.Generator().manual_seed(seed)
    width = 4 if env == "CartPole-v1" else 3
    action = torch.randint(2, (1, count), generator=rng)
    if env != "CartPole-v1":
        action = torch.rand(1, count, 1, generator=rng) * 2 - 1
    discount = 0.9 ** torch.arange(1.0, count + 1)[None]
    discount[0, [1, -1]] = 0.0
    return Batch(
        obs=Batch(observation=torch.randn(2, count, width, generator=rng)), is_first=torch.zeros(2, count, dtype=torch.bool),
        action=action, reward=torch.randn(1, count, generator=rng), terminated=torch.zeros(1, count, dtype=torch.bool),
        valid=torch.ones(1, count, dtype=torch.bool), weight=torch.ones(count), key=torch.arange(count),
        return_to_go=torch.randn(1, count, generator=rng) * 20, end_discount=discount,
        end=Batch(obs=Batch(observation=torch.randn(1, count, width, generator=rng)), is_first=torch.zeros(1, count, dtype=torch.bool)),
    )  # fmt: skip


def whole_rows(length=7, columns=3, seed=0) -> Batch:
    """Fragments of CartPole in which one episode terminates, another is cut off, and a new one begins behind each."""
    rng = torch.Generator().manual_seed(seed)
    valid, terminated = torch.ones(length, columns, dtype=torch.bool), torch.zeros(length, columns, dtype=torch.bool)
    is_first = torch.zeros(length + 1, columns, dtype=torch.bool)
    terminated[1, 0], valid[2, 0], is_first[3, 0] = True, False, True
    valid[4, 1], is_first[5, 1] = False, True
    return Batch(
        obs=Batch(observation=torch.randn(length + 1, columns, 4, generator=rng)), is_first=is_first,
        action=torch.randint(2, (length, columns), generator=rng), reward=torch.randn(length, columns, generator=rng),
        terminated=terminated, valid=valid, weight=torch.ones(columns), key=torch.arange(columns),
    )  # fmt: skip


def filled(field, *leading):
    """Random numbers in the fields of a row, which may be nested, and zeros where they are no floats."""
    if not hasattr(field, "shape"):
        return Batch({name: filled(part, *leading) for name, part in field.items()})
    shape = (*leading, *field.shape)
    if field.dtype.is_floating_point:
        return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)), dtype=field.dtype)
    return torch.zeros(shape, dtype=field.dtype)


def gradients(made, loss, parameters):
    return torch.autograd.grad(loss, list(parameters), allow_unused=True)


def policy_parameters(policy):
    return [*policy.trunk.parameters(), *policy.action_head.parameters()]


def outputs(made, observation):
    """Distribution and values of one row of observations [N, ...]."""
    first = torch.zeros(1, len(observation), dtype=torch.bool)
    dist, value = made.policy.unroll(Batch(obs=Batch(observation=observation[None]), is_first=first))
    return dist[0], value[0]


# -- behaviour cloning ---------------------------------------------------------------------------------------------------


def test_bc_by_hand():
    made, batch = algorithm("bc", "algo.entropy_coef=0.1", env="CartPole-v1", hidden=[8]), single_rows()
    dist, _ = outputs(made, batch.obs.observation[0])
    p = dist.log_probs.exp()
    likelihood = torch.stack([p[i, a].log() for i, a in enumerate(batch.action[0])])
    entropy = -(p * p.log()).sum(-1)
    loss, shares, _ = made.loss(batch, CLOCK)
    torch.testing.assert_close(loss, -likelihood.mean() - 0.1 * entropy.mean())
    torch.testing.assert_close(shares["policy_loss"], -likelihood.mean())


def test_bc_of_numbers_is_told_to_keep_its_deviation():
    """With log_std_coef, a Gaussian's log standard deviation counts as that much likelihood."""
    made, batch = (
        algorithm("bc", "algo.log_std_coef=0.5", "model.log_std=-0.7", hidden=[8]),
        single_rows(env="Pendulum-v1"),
    )
    dist, _ = outputs(made, batch.obs.observation[0])
    std = math.exp(-0.7)
    likelihood = (-0.5 * ((batch.action[0] - dist.mean) / std) ** 2 - math.log(std) - 0.5 * math.log(2 * math.pi)).sum(
        -1
    )
    loss, _, _ = made.loss(batch, CLOCK)
    torch.testing.assert_close(loss, -(likelihood + 0.5 * -0.7).mean())
    (gradient,) = gradients(made, loss, [made.policy.action_head.log_std])
    z = ((batch.action[0] - dist.mean) / std) ** 2
    torch.testing.assert_close(gradient, -(z - 1 + 0.5).mean()[None])
    three, one = Gaussian(torch.zeros(5, 3), torch.tensor([0.3, -0.6, 0.9])), Gaussian(torch.zeros(5, 1), torch.ones(1))
    torch.testing.assert_close(mean_log_std(three), torch.full((5,), 0.2))
    torch.testing.assert_close(mean_log_std(Joint({"three": three, "one": one})), torch.full((5,), 0.4))


def test_bc_learns_nothing_about_values():
    made = algorithm("bc", env="CartPole-v1", hidden=[8])
    values = copy.deepcopy([*made.policy.value_trunk.parameters(), *made.policy.value_head.parameters()])
    for number in range(3):
        made.update(single_rows(seed=number), CLOCK)
    assert all(map(torch.equal, values, made.policy.value_parameters()))


def test_bc_of_nested_actions_learns_every_part():
    made = algorithm("bc", "algo.log_std_coef=0.1", "algo.lr=0.03", env="rlrun/EverySpace-v0", hidden=[8])
    rng = torch.Generator().manual_seed(0)
    observation = filled(made.spec.obs_rows["observation"], 2, 4)
    first = torch.zeros(2, 4, dtype=torch.bool)
    with torch.no_grad():
        dist, _ = made.policy.unroll(Batch(obs=Batch(observation=observation)[:1], is_first=first[:1]))
        action = dist.sample(rng)
    flat = {"reward": torch.zeros(1, 4), "terminated": first[:1], "valid": ~first[:1]}
    batch = Batch(obs=Batch(observation=observation), is_first=first, action=action, weight=torch.ones(4), **flat)
    before = made.loss(batch, CLOCK)[1]["policy_loss"].item()
    for _ in range(100):
        made.update(batch, CLOCK)
    assert made.loss(batch, CLOCK)[1]["policy_loss"].item() < before - 1.0


MEMORY = ["model=lstm", "model.memory.size=4", "algo.sequence_length=4", "algo.batch_size=12", "model.share_value=true"]


def test_bc_with_memory_begins_sequences_with_nothing_and_does_not_learn_from_burn_in():
    made, batch = algorithm("bc", *MEMORY, "algo.burn_in=3", env="CartPole-v1", hidden=[8]), whole_rows()
    for parameter in made.policy.parameters():
        torch.nn.init.normal_(parameter, 0.0, 0.5, generator=torch.Generator().manual_seed(parameter.numel()))
    loss = made.loss(batch, CLOCK)[0]
    # Row by row, with the memory carried by hand.
    state, wanted, count = made.policy.initial_state(3), torch.zeros(()), 0
    for t in range(7):
        row = batch.obs.map(lambda x, t=t: x[t : t + 1])
        out, state = made.policy._forward(row, batch.is_first[t : t + 1], state)
        if t >= 3:
            live = batch.valid[t]
            wanted = wanted - out.dist[0].log_prob(batch.action[t])[live].sum()
            count += int(live.sum())
    torch.testing.assert_close(loss, wanted / count)
    through = torch.autograd.grad(loss, made.policy.trunk.memory.parameters())
    state, wanted = made.policy.initial_state(3), torch.zeros(())
    for t in range(7):
        row = batch.obs.map(lambda x, t=t: x[t : t + 1])
        with torch.set_grad_enabled(t >= 3):
            out, state = made.policy._forward(row, batch.is_first[t : t + 1], state)
        if t >= 3:
            wanted = wanted - out.dist[0].log_prob(batch.action[t])[batch.valid[t]].sum()
    for gradient, by_hand in zip(through, torch.autograd.grad(wanted / count, made.policy.trunk.memory.parameters()), strict=True):  # fmt: skip
        torch.testing.assert_close(gradient, by_hand, msg="no gradient goes through burn-in")
    loss = loss.detach()
    other = batch.action.clone()
    other[:3] = 1 - other[:3]
    assert torch.equal(made.loss(batch.replace(action=other), CLOCK)[0], loss), "burn-in rows are not learnt from"
    core = Batch({name: torch.ones(1, *state[name].shape) for name in state})
    assert torch.equal(made.loss(batch.replace(core=core), CLOCK)[0], loss), "what is stored there means nothing"
    seen = batch.obs.observation.clone()
    seen[0] += 1.0
    assert not torch.equal(made.loss(batch.replace(obs=Batch(observation=seen)), CLOCK)[0], loss)


# -- MARWIL --------------------------------------------------------------------------------------------------------------


def test_1_marwil_with_beta_0_is_bc_to_the_bit():
    one, other = (algorithm(algo, *words, env="CartPole-v1", hidden=[8]) for algo, *words in (("bc",), ("marwil", "algo.beta=0")))  # fmt: skip
    values = copy.deepcopy(list(other.policy.value_parameters()))
    for number in range(4):
        batch = single_rows(seed=number)
        a, b = one.update(batch, CLOCK).metrics, other.update(batch, CLOCK).metrics
        assert a.keys() == b.keys() and all(torch.equal(torch.as_tensor(a[name]), torch.as_tensor(b[name])) for name in a)  # fmt: skip
    saved = other.state_dict()
    assert all(torch.equal(value, saved[name]) for name, value in one.state_dict().items())
    assert all(map(torch.equal, values, other.policy.value_parameters())), "values are not learnt"
    assert other.needs(other.cfg).replay == one.needs(one.cfg).replay, "returns are not asked for"


def test_2_marwil_with_equal_advantages_has_the_gradient_of_bc_times_a_number():
    bc, made = (algorithm(algo, env="CartPole-v1", hidden=[8]) for algo in ("bc", "marwil"))
    for parameter in made.policy.value_head.parameters():
        torch.nn.init.zeros_(parameter)  # V = 0, so that returns are advantages
    batch = single_rows().replace(return_to_go=torch.full((1, 6), 7.0))
    loss, shares, same = made.loss(batch, CLOCK)
    factor = math.exp(7.0 / math.sqrt(100 + 1e-8 * (49 - 100)))
    assert same["squared_advantage"].item() == pytest.approx(100)
    ours = gradients(made, loss, policy_parameters(made.policy))
    theirs = gradients(bc, bc.loss(batch, CLOCK)[0], policy_parameters(bc.policy))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, factor * b)
    assert shares["weight"].item() == pytest.approx(factor)


@pytest.mark.parametrize("rate", [1e-8, 0.25])
def test_3_the_moving_average_moves_before_it_is_used(rate):
    made = algorithm("marwil", f"algo.squared_advantage_rate={rate}", "algo.beta=0.5", env="CartPole-v1", hidden=[8])
    batch = single_rows()
    now, end = outputs(made, batch.obs.observation[0])[1], outputs(made, batch.end.obs.observation[0])[1]
    advantage = (batch.return_to_go[0] + batch.end_discount[0] * end - now).detach()
    metrics = made.update(batch, CLOCK).metrics
    wanted = 100 + rate * (advantage.double().square().mean() - 100)
    torch.testing.assert_close(made.squared_advantage, wanted, rtol=1e-12 if rate < 1e-6 else 1e-6, atol=0)
    assert made.squared_advantage != 100
    weight = torch.exp(0.5 * advantage / (1e-8 + wanted.sqrt().float()))
    torch.testing.assert_close(metrics["weight"], weight.mean())


@pytest.mark.parametrize("words", [["algo.beta=1"], ["algo.beta=1", "algo.weight_clip=20"], ["algo.beta=0"]], ids=" ".join)
def test_marwil_says_what_to_do_where_its_weights_overflow(words):
    """exp(1000 / 10) is infinite in float32. Runs that diverge for another reason get no such advice."""
    made, overflows = algorithm("marwil", *words, env="CartPole-v1", hidden=[8]), words == ["algo.beta=1"]
    batch = single_rows().replace(return_to_go=torch.full((1, 6), 1000.0))
    with pytest.raises(Diverged, match="if the run has saved one") as failed:
        for _ in range(20):
            made.update(batch, CLOCK)
        assert not overflows
        for _ in range(20):
            made.update(batch.replace(obs=batch.obs.map(lambda x: x * math.nan)), CLOCK)
    assert ("set algo.weight_clip, a smaller algo.beta" in str(failed.value)) is overflows


def test_marwil_by_hand():
    words = ["algo.beta=0.8", "algo.value_coef=0.3", "algo.weight_clip=2.0", "algo.entropy_coef=0.01"]
    made, batch = algorithm("marwil", *words, env="CartPole-v1", hidden=[8]), single_rows()
    dist, value = outputs(made, batch.obs.observation[0])
    end = outputs(made, batch.end.obs.observation[0])[1].detach()
    assert made.needs(made.cfg).replay.returns == 0.99
    target = [
        float(batch.return_to_go[0, i]) + float(batch.end_discount[0, i]) * float(end[i]) for i in range(6)
    ]  # the value of a terminated end is left out
    advantage = torch.tensor(target) - value
    weight = torch.exp(0.8 * advantage.detach() / 10).clamp(max=2.0)
    assert (weight == 2.0).any() and (weight < 2.0).any()
    likelihood = dist.log_prob(batch.action[0])
    wanted = -(weight * likelihood).mean() + 0.3 * 0.5 * advantage.square().mean() - 0.01 * dist.entropy().mean()
    loss, shares, same = made.loss(batch, CLOCK)
    torch.testing.assert_close(loss, wanted, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(shares["value_loss"], 0.5 * advantage.square().mean())
    errors = advantage.detach()
    torch.testing.assert_close(
        same["explained_variance"], 1 - errors.var(correction=0) / torch.tensor(target).var(correction=0)
    )
    every = list(made.policy.parameters())
    for a, b in zip(gradients(made, loss, every), gradients(made, wanted, every), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("words", [["algo.learns_from=experience", "algo.fragment_length=7", "algo.batch_size=21"],
                                   [*MEMORY, "algo.sequence_length=7", "algo.batch_size=21"]])  # fmt: skip
def test_marwil_of_fragments_bootstraps_from_what_follows_them(words):
    made, batch = algorithm("marwil", *words, env="CartPole-v1", hidden=[8]), whole_rows()
    state = made.policy.initial_state(3).map(lambda x: x[None])
    with_core = batch.replace(core=state) if "model=lstm" in words else batch
    value = made.policy.unroll(with_core).value.detach()
    _, shares, _ = made.loss(batch, CLOCK)
    wanted, dist = [], made.policy.unroll(with_core).dist
    likelihood = dist[:7].log_prob(batch.action)
    for b in range(3):
        for t in range(7):
            if not batch.valid[t, b]:
                continue
            total, factor = 0.0, 1.0
            for k in range(t, 8):
                if k == 7 or not batch.valid[k, b]:
                    total += factor * value[k, b].item()
                    break
                total += factor * batch.reward[k, b].item()
                factor *= 0.99
                if batch.terminated[k, b]:
                    break
            wanted.append((total - value[t, b].item(), likelihood[t, b]))
    advantage = torch.tensor([one for one, _ in wanted])
    policy_loss = -(torch.exp(advantage / 10) * torch.stack([one for _, one in wanted])).mean()
    torch.testing.assert_close(shares["value_loss"], 0.5 * advantage.square().mean(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(shares["policy_loss"], policy_loss, rtol=1e-4, atol=1e-5)
    needs = made.needs(made.cfg)
    if "model=lstm" not in words:
        assert needs.replay is None and (needs.rows, needs.columns) == (7, 3)
    else:
        assert needs.replay.returns is None and needs.replay.sequences


# -- CQL -----------------------------------------------------------------------------------------------------------------

SAC_BACKUP = [*NETS, "algo.deterministic_backup=false"]


def step_for_step(one, other, many, updates=4):
    for number in range(updates):
        batch, clock = many(number), Clock(100 * number, number)
        a, b = one.update(batch, clock), other.update(batch, clock)
        assert all(torch.equal(torch.as_tensor(a.metrics[name]), torch.as_tensor(b.metrics[name])) for name in a.metrics)  # fmt: skip
        assert torch.equal(a.writes["priority"], b.writes["priority"])
    a, b = one.state(), other.state()
    assert a["module"].keys() == b["module"].keys()
    assert all(torch.equal(value, b["module"][name]) for name, value in a["module"].items())
    assert torch.equal(a["rng"], b["rng"]) and all(torch.equal(rng, b["rngs"][name]) for name, rng in a["rngs"].items())


@pytest.mark.parametrize("env", ["Pendulum-v1", "CartPole-v1"])
def test_4_cql_without_penalty_is_sac_to_the_bit(env):
    lrs = ["algo.actor_lr=1e-3", "algo.critic_lr=2e-3", "algo.alpha_lr=3e-3"]
    sac = algorithm("sac", *NETS, *lrs, env=env)
    cql = algorithm("cql", *SAC_BACKUP, *lrs, "algo.min_q_weight=0", "algo.bc_iters=0", env=env)
    step_for_step(sac, cql, lambda number: single_rows(env=env, seed=number))
    third = algorithm("cql", *NETS, *lrs, "algo.min_q_weight=0", env=env)
    third.update(single_rows(env=env), CLOCK)
    first = algorithm("sac", *NETS, *lrs, env=env)
    first.update(single_rows(env=env), CLOCK)
    assert not torch.equal(next(third.critic.parameters()), next(first.critic.parameters())), "another backup"


def constant_q(made, value):
    """Makes all critics say this number."""
    last = made.critic.net[-1]
    with torch.no_grad():
        last.weight.zero_()
        last.bias.fill_(value)
    return last


def test_5_a_constant_q_has_a_penalty_of_densities_alone(monkeypatch):
    made, batch = algorithm("cql", *NETS), transitions()
    last, seen = constant_q(made, 4.0), made_rows(made, batch)
    features = made.critic.features(seen.now)

    def uniform(rows):
        return torch.rand(3, 30, 1) * 2 - 1, torch.full((3, 30), math.log(0.5))

    monkeypatch.setattr(made, "candidates", uniform)
    value = made.log_sum_exp(features, seen)
    torch.testing.assert_close(value, torch.full((2, 3), 4.0 + math.log(30) + math.log(2)))
    gap = value - values_taken(made.critic, features, made.policy, seen.action)
    (gradient,) = torch.autograd.grad(gap.mean(), [last.bias])
    torch.testing.assert_close(gradient, torch.zeros_like(gradient), atol=1e-6, rtol=0)
    monkeypatch.undo()
    state = made.target_rng.clone_state()
    value = made.log_sum_exp(features, seen)
    made.target_rng.set_state(state.get_state())
    _, density = made.candidates(seen)
    torch.testing.assert_close(value, (4.0 + (-density).exp().sum(-1).log()).expand(2, 3))


def made_rows(made, batch):
    from rlrun.families.off_policy import transitions as taken_out

    return taken_out(made, batch)


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_the_penalty_estimates_an_integral(monkeypatch, temperature):
    """For Q = -a^2 / 0.1 the logarithm of the integral of exp Q over [-1, 1] is -0.579."""
    made, batch = algorithm("cql", *NETS, "algo.num_actions=6000", f"algo.temperature={temperature}"), transitions()
    monkeypatch.setattr(made.critic, "of", lambda features, action: (-action.square() / 0.1).expand(2, *action.shape))
    seen = made_rows(made, batch)
    estimate = made.log_sum_exp(made.critic.features(seen.now), seen) - temperature * math.log(3 * 6000)
    grid = torch.linspace(-1, 1, 20001, dtype=torch.float64)
    integral = temperature * torch.trapezoid((-grid.square() / 0.1 / temperature).exp(), grid).log()
    assert temperature == 2.0 or integral.item() == pytest.approx(-0.579, abs=1e-3)
    torch.testing.assert_close(estimate, integral.float().expand(2, 3), atol=0.05, rtol=0)


@pytest.mark.parametrize("lagrangian", [False, True])
@pytest.mark.parametrize("deterministic", [False, True])
def test_cql_by_hand(monkeypatch, lagrangian, deterministic):
    words = ["algo.initial_alpha=0.3", "algo.num_actions=4", "algo.temperature=0.7", "algo.min_q_weight=2", "algo.discount=0.5",
             f"algo.lagrangian={lagrangian}", "algo.lagrangian_threshold=0.9", f"algo.deterministic_backup={deterministic}"]  # fmt: skip
    made = algorithm("cql", *NETS, *STILL, *words)
    if lagrangian:
        made.log_alpha_prime.data.fill_(0.4)
    batch, losses = transitions(), Losses(monkeypatch)
    now, then = batch.obs.observation[0], batch.obs.observation[1]
    rng = made.target_rng.clone_state()
    metrics = made.update(batch, CLOCK).metrics
    net = made.policy.net.of

    def q_of(critic, observation, action, e):
        return manual_critic(critic, torch.cat([observation, action], -1), e)[:, 0]

    with torch.no_grad():
        action, log_prob = drawn(rng, net(rows(batch, 1)))
        following = torch.stack([q_of(made.target_critic, then, action, e) for e in range(2)]).min(0).values
        target = folded(following if deterministic else following - 0.3 * log_prob, 1)
        uniform = torch.rand(1, 3, 4, 1, generator=rng)[0] * 2 - 1
        everything = [(uniform, torch.full((3, 4), math.log(0.5)))]
        for which in (0, 1):  # those of the next state too are valued in this one
            dist = net(rows(batch, which))
            mean, log_std = (x.repeat_interleave(4, 0) for x in (dist.mean, dist.log_std))
            action, log_prob = drawn(rng, type(dist)(mean, log_std))
            everything.append((action.view(3, 4, 1), log_prob.view(3, 4)))
        wanted, gaps = 0.0, []
        for e in range(2):
            q = q_of(made.critic, now, batch.action[0], e)
            for b in range(3):
                total = sum(
                    math.exp(float(q_of(made.critic, now[b : b + 1], one[b, j][None], e)) / 0.7 - float(density[b, j]))
                    for one, density in everything
                    for j in range(4)
                )
                gaps.append(0.7 * math.log(total) - float(q[b]))
                factor = 2 * (math.exp(0.4) if lagrangian else 1)
                squared = float(target[b] - q[b]) ** 2
                wanted += float(batch.weight[b]) * 0.5 * (squared + factor * gaps[-1]) / 3
    assert losses.seen[0][0] is made.critic_optimizer
    torch.testing.assert_close(losses.seen[0][1], torch.tensor(wanted), rtol=1e-4, atol=1e-4)
    assert float(metrics["gap"]) == pytest.approx(sum(gaps) / 6, rel=1e-4)
    if lagrangian:
        optimizer, loss = losses.seen[3]
        assert optimizer is made.alpha_prime_optimizer and float(metrics["alpha_prime"]) == pytest.approx(math.exp(0.4))
        by_hand = -0.5 * sum(math.exp(0.4) * (2 * sum(gaps[3 * e : 3 * e + 3]) / 3 - 0.9) for e in range(2))
        assert float(loss) == pytest.approx(by_hand, rel=1e-4)
    else:
        assert len(losses.seen) == 3 and "alpha_prime" not in metrics


def test_a_wide_gap_raises_the_penalty_and_a_narrow_one_lowers_it():
    for threshold, rises in ((-50.0, True), (50.0, False)):
        made = algorithm("cql", *NETS, "algo.lagrangian=true", f"algo.lagrangian_threshold={threshold}")
        for number in range(3):
            made.update(transitions(), Clock(0, number))
        assert (made.alpha_prime > 1) == rises and made.alpha_prime != 1


def test_the_penalty_comes_back_from_its_largest_weight():
    made = algorithm("cql", *NETS, "algo.lagrangian=true", "algo.lagrangian_threshold=50", "algo.critic_lr=0.01")
    made.log_alpha_prime.data.fill_(200.0)  # its exponential is infinite
    made.update(transitions(), Clock())
    for number in range(5):
        assert float(made.update(transitions(), Clock(0, number)).metrics["alpha_prime_grad_norm"]) > 0
    assert float(made.alpha_prime) < 0.97 * made.LARGEST


def test_cql_clones_the_data_first(monkeypatch):
    made, batch = algorithm("cql", *NETS, "algo.bc_iters=2", "algo.initial_alpha=0.3"), transitions()
    losses = Losses(monkeypatch)
    for number, cloned in enumerate((True, True, False)):
        rng = made.ctx.rng.clone_state()
        made.update(batch, Clock(0, number))
        with torch.no_grad():
            dist = made.policy.net.of(rows(batch, 0))
            own, log_prob = drawn(rng, dist)
            q = made.critic(rows(batch, 0), own)[..., 0].min(0).values
            wanted = dist.log_prob(batch.action[0]) if cloned else q
        optimizer, loss = losses.seen[3 * number + 1]
        assert optimizer is made.actor_optimizer
        torch.testing.assert_close(loss, (0.3 * log_prob - wanted).mean(), rtol=1e-4, atol=1e-5)


def test_cql_of_choices_sums_over_all_of_them(monkeypatch):
    words = ["algo.temperature=0.7", "algo.min_q_weight=2", "algo.discount=0.5"]
    made = algorithm("cql", *NETS, *STILL, *words, env="CartPole-v1")
    batch, losses = transitions(width=4, discrete=True), Losses(monkeypatch)
    made.update(batch, CLOCK)
    now, then = batch.obs.observation[0], batch.obs.observation[1]
    with torch.no_grad():
        p = made.policy.net.of(rows(batch, 1)).log_probs.exp()
        values = torch.stack([manual_critic(made.target_critic, then, e) for e in range(2)]).min(0).values
        target = folded((p * values).sum(-1), 1)
        q = torch.stack([manual_critic(made.critic, now, e) for e in range(2)])  # [E, B, A]
        own = q[:, torch.arange(3), batch.action[0]]
        gap = 0.7 * (q / 0.7).exp().sum(-1).log() - own
        wanted = (batch.weight * (0.5 * (target - own) ** 2 + 0.5 * 2 * gap).sum(0)).mean()
    torch.testing.assert_close(losses.seen[0][1], wanted)
    cloning = algorithm("cql", *NETS, *words, "algo.bc_iters=1", "algo.initial_alpha=0.3", env="CartPole-v1")
    cloning.update(batch, CLOCK)
    with torch.no_grad():
        dist = cloning.policy.net.of(rows(batch, 0))
        loss = (-0.3 * dist.entropy() - dist.log_prob(batch.action[0])).mean()
    torch.testing.assert_close(losses.seen[4][1], loss)


def ring() -> Batch:
    """All rows of a small MDP: 4 states in a ring, of which the data know one action each, and every row pays 1."""
    states = torch.eye(4)
    return Batch(
        obs=Batch(observation=torch.stack((states, states.roll(-1, 0)))), is_first=torch.zeros(2, 4, dtype=torch.bool),
        action=torch.tensor([[0, 1, 0, 1]]), reward=torch.ones(1, 4), terminated=torch.zeros(1, 4, dtype=torch.bool),
        valid=torch.ones(1, 4, dtype=torch.bool), weight=torch.ones(4), key=torch.arange(4),
    )  # fmt: skip


@pytest.mark.parametrize("algo", ["cql", "discrete_cql"])
def test_6_actions_that_the_data_do_not_know_are_worth_less(algo):
    common = ["algo.discount=0.5", "algo.target_tau=0.05", "algo.target_update_interval=1"]
    words = {
        "cql": ["algo.actor.hidden=[16]", "algo.critic.hidden=[]", "algo.actor_lr=0.02", "algo.critic_lr=0.02", "algo.min_q_weight=10", "algo.initial_alpha=0.01", "algo.alpha_lr=0"],
        "discrete_cql": ["algo.head.dueling=false", "algo.lr=0.02", "algo.min_q_weight=5", "model.hidden=[]"],
    }  # fmt: skip
    made, batch = algorithm(algo, *common, *words[algo], env="CartPole-v1"), ring()
    for number in range(1500):
        made.update(batch, Clock(0, number))
    with torch.no_grad():
        if algo == "cql":
            q = made.critic(rows(batch, 0), None)[..., 0]  # [E, S, A]
            value = (made.policy.net.of(rows(batch, 0)).log_probs.exp() * q.min(0).values).sum(-1)
        else:
            q = made.policy.values(Batch(obs=batch.obs[:1], is_first=batch.is_first[:1]))
            value = q[0].max(-1).values
    seen = q[:, torch.arange(4), batch.action[0]]
    unseen = q[:, torch.arange(4), 1 - batch.action[0]]
    assert (unseen < seen - 1.0).all()
    assert (value <= 2.0 + 0.05).all() and (value > 1.5).all(), "1 / (1 - 0.5) is the true value"


def test_discrete_cql_by_hand(monkeypatch):
    words = ["algo.min_q_weight=0.7", "algo.discount=0.5", "algo.head.dueling=false", "model.hidden=[8]"]
    made, batch = algorithm("discrete_cql", *words, env="CartPole-v1"), transitions(width=4, discrete=True)
    q = made.policy.values(Batch(obs=batch.obs, is_first=batch.is_first))
    with torch.no_grad():  # the target network prefers other actions than the online network, which chooses
        for parameter in made.target.parameters():
            parameter.mul_(-1.5 if parameter.ndim == 2 and len(parameter) == 2 else 1.0)
    target_q = made.target.values(Batch(obs=batch.obs, is_first=batch.is_first))
    assert (target_q[1].argmax(-1) != q[1].argmax(-1)).any()
    wanted = torch.zeros(())
    for b in range(3):
        follows = target_q[1, b, int(q[1, b].argmax())].detach()
        target = folded(follows.expand(3), 1)[b]
        error = (target - q[0, b, batch.action[0, b]]).abs()
        huber = 0.5 * error**2 if error <= 1 else error - 0.5
        gap = q[0, b].exp().sum().log() - q[0, b, batch.action[0, b]]
        wanted = wanted + batch.weight[b] * (huber + 0.7 * gap) / 3
    loss, _, shares = made.loss(batch)
    torch.testing.assert_close(loss, wanted)
    every = list(made.policy.parameters())
    for a, b in zip(gradients(made, loss, every), gradients(made, wanted, every), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
    assert shares["gap"] > 0


def test_discrete_cql_without_penalty_is_dqn_to_the_bit():
    one = algorithm("dqn", env="CartPole-v1", hidden=[8])
    other = algorithm("discrete_cql", "algo.min_q_weight=0", env="CartPole-v1", hidden=[8])
    for number in range(4):
        batch = single_rows(seed=number)
        a, b = one.update(batch, CLOCK), other.update(batch, CLOCK)
        assert torch.equal(a.metrics["loss"], b.metrics["loss"])
    assert all(torch.equal(value, other.state_dict()[name]) for name, value in one.state_dict().items())


def test_discrete_cql_leaves_illegal_actions_out():
    made = algorithm("discrete_cql", env="rlrun/Masked-v0", hidden=[8])
    count, actions = 4, made.spec.action.n
    mask = torch.ones(2, count, actions, dtype=torch.bool)
    mask[:, :, 3:] = False
    obs = Batch(observation=filled(made.spec.obs_rows["observation"], 2, count), action_mask=mask)
    flat = torch.zeros(1, count)
    batch = Batch(obs=obs, is_first=torch.zeros(2, count, dtype=torch.bool), action=torch.zeros(1, count, dtype=torch.long), reward=flat,
                  terminated=flat.bool(), valid=~flat.bool(), weight=torch.ones(count), key=torch.arange(count))  # fmt: skip
    _, _, shares = made.loss(batch)
    q = made.policy.head_outputs(Batch(obs=obs[:1], is_first=batch.is_first[:1]))[0, :, :, 0]
    torch.testing.assert_close(shares["gap"], (q[:, :3].exp().sum(-1).log() - q[:, 0]).mean())


# -- implicit Q-learning -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("env", ["Pendulum-v1", "CartPole-v1"])
def test_implicit_q_by_hand(monkeypatch, env):
    words = ["algo.expectile=0.8", "algo.beta=2", "algo.weight_clip=1.5", "algo.discount=0.5"]
    made = algorithm("implicit_q", *NETS, *STILL, *words, env=env)
    discrete = env == "CartPole-v1"
    batch = transitions(width=4 if discrete else 3, discrete=discrete)
    losses = Losses(monkeypatch)
    update = made.update(batch, CLOCK)
    now = batch.obs.observation[0]

    def q_of(critic, e):
        if discrete:
            return manual_critic(critic, now, e)[torch.arange(3), batch.action[0]]
        return manual_critic(critic, torch.cat([now, batch.action[0]], -1), e)[:, 0]

    def value(observation):
        return made.value.linear(made.value.hidden(observation))[:, 0]

    with torch.no_grad():
        advantage = torch.minimum(*(q_of(made.target_critic, e) for e in range(2))) - value(now)
        target = folded(value(batch.obs.observation[1]), 1)
        wanted = [
            (batch.weight * torch.tensor([(0.8 if u > 0 else 0.2) * u * u for u in advantage.tolist()])).mean(),
            (batch.weight * sum(0.5 * (target - q_of(made.critic, e)) ** 2 for e in range(2))).mean(),
        ]
        weight = torch.tensor([min(math.exp(2 * u), 1.5) for u in advantage.tolist()])
        log_prob = made.policy.net.of(rows(batch, 0)).log_prob(batch.action[0])
        wanted.append(-(batch.weight * weight * log_prob).mean())
    assert [one for one, _ in losses.seen] == [made.value_optimizer, made.critic_optimizer, made.actor_optimizer]
    for (_, loss), by_hand in zip(losses.seen, wanted, strict=True):
        torch.testing.assert_close(loss, by_hand, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(update.metrics["weight"], weight.mean())


def test_7_implicit_q_with_expectile_half_and_beta_0_is_a_mean_and_bc():
    words = [
        "algo.expectile=0.5",
        "algo.beta=0",
        "algo.critic_lr=0",
        "algo.target_tau=1e-9",
        "algo.value_lr=0.02",
        "algo.actor_lr=0",
    ]
    made = algorithm("implicit_q", "algo.actor.hidden=[8]", "algo.critic.hidden=[]", *words)
    observation = torch.eye(3)[[0, 0, 0, 1, 1]]
    action = torch.tensor([-1.0, 0.0, 0.7, 0.3, -0.5])[None, :, None]
    flat = torch.zeros(1, 5)
    batch = Batch(obs=Batch(observation=torch.stack((observation, observation))), is_first=torch.zeros(2, 5, dtype=torch.bool), action=action, reward=flat,
                  terminated=flat.bool(), valid=~flat.bool(), weight=torch.ones(5), key=torch.arange(5))  # fmt: skip
    for number in range(1000):
        made.update(batch, Clock(0, number))
    with torch.no_grad():
        q = made.target_critic(rows(batch, 0), action[0])[..., 0].min(0).values
        value = made.value(rows(batch, 0))
    torch.testing.assert_close(value[0], q[:3].mean(), rtol=0, atol=1e-3)
    torch.testing.assert_close(value[3], q[3:].mean(), rtol=0, atol=1e-3)
    seen: list = []
    step, made.actor_optimizer.differentiate = made.actor_optimizer.differentiate, seen.append
    made.update(batch, CLOCK)
    made.actor_optimizer.differentiate = step
    clone = -made.policy.net.of(rows(batch, 0)).log_prob(action[0]).mean()
    every = list(made.policy.net.parameters())
    for a, b in zip(gradients(made, seen[0], every), gradients(made, clone, every), strict=True):
        torch.testing.assert_close(a, b)


def test_a_large_expectile_is_the_best_action_of_the_data():
    words = ["algo.expectile=0.99", "algo.critic_lr=0", "algo.target_tau=1e-9", "algo.value_lr=0.02"]
    made = algorithm("implicit_q", "algo.actor.hidden=[8]", "algo.critic.hidden=[]", *words)
    batch = single_rows(env="Pendulum-v1").replace(obs=Batch(observation=torch.ones(2, 6, 3)))
    for number in range(1000):
        made.update(batch, Clock(0, number))
    with torch.no_grad():
        q = made.target_critic(rows(batch, 0), batch.action[0])[..., 0].min(0).values
        value = made.value(rows(batch, 0))[0]
    assert q.mean() < q.max() - 0.1 and (q.max() - value).abs() < 0.25 * (q.max() - q.mean())


def test_the_rate_of_the_actor_falls_over_the_run():
    made = algorithm("implicit_q", *NETS, "env_steps=1000")
    assert [made.cfg.actor_lr(Clock(steps)) for steps in (0, 500, 1000)] == pytest.approx([3e-4, 1.5e-4, 0.0])


# -- TD3+BC --------------------------------------------------------------------------------------------------------------


def actor_gradient(made, loss):
    return torch.autograd.grad(loss, list(made.policy.net.parameters()))


def test_td3_bc_by_hand():
    made, batch = algorithm("td3_bc", *NETS, "algo.alpha=1.5", "model.observation_filter=none"), transitions()
    now = batch.obs.observation[0]
    net = made.policy.net
    action = torch.tanh(net.head.linear(net.hidden(now)))
    with torch.no_grad():  # the mean of sizes is not the size of the mean
        made.critic.net[-1].bias -= manual_critic(made.critic, torch.cat([now, action], -1), 0).mean()
    q = manual_critic(made.critic, torch.cat([now, action], -1), 0)[:, 0]
    assert (q > 0).any() and (q < 0).any()
    scale = 1.5 / (sum(map(abs, q.tolist())) / 3)
    wanted = -scale * q.mean() + (action - batch.action[0]).square().mean()
    loss = made.actor_loss(made_rows(made, batch))
    torch.testing.assert_close(loss, wanted)
    for a, b in zip(actor_gradient(made, loss), actor_gradient(made, wanted), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("algo", ["cql", "crr", "implicit_q", "td3_bc", "sac"])
def test_critics_learn_from_the_actions_that_were_executed(algo):
    """A Gaussian such as PPO's draws actions beyond the bounds, which are stored as they were drawn."""
    drawn_ones = torch.tensor([[[1.7], [-3.0], [0.25]]])
    metrics = []
    for action in (drawn_ones, drawn_ones.clamp(-1, 1)):
        made, batch = algorithm(algo, *NETS), transitions()
        told = made.update(batch.replace(action=action), CLOCK).metrics
        metrics.append({name: float(value) for name, value in told.items()})
    assert metrics[0] == metrics[1] and metrics[0]["q"] != 0


def test_td3_bc_is_the_paper_s_formula_on_the_normalised_observations_of_the_data(monkeypatch):
    """Both losses as the paper's code has them (section 4 and eq. 5), in numpy, from observations as they were recorded.
    Its options by default: alpha 2.5, two critics, the noise of TD3."""
    made = algorithm("td3_bc", *NETS, "algo.policy_delay=1", "algo.discount=0.9")
    rng = torch.Generator().manual_seed(4)
    seen = torch.randn(400, 1, 3, generator=rng) * torch.tensor([0.5, 2.0, 9.0]) + torch.tensor([-3.0, 0.0, 20.0])
    valid = torch.rand(399, 1, generator=rng) < 0.9
    made.absorb_rows([made.policy.moments(Batch(obs=Batch(observation=seen), valid=valid))])
    shake(made.target_actor, 2)
    batch, losses = transitions(), Losses(monkeypatch)
    batch = batch.replace(obs=Batch(observation=seen[:6].reshape(2, 3, 3)), weight=torch.ones(3))
    state = made.ctx.rng.get_state()
    made.update(batch, CLOCK)
    made.ctx.rng.set_state(state)
    noise = (torch.randn(3, 1, generator=made.ctx.rng) * 0.2).clamp(-0.5, 0.5).numpy()

    live = seen[:-1][valid].double().numpy()
    now, then = ((one.double().numpy() - live.mean(0)) / live.std(0) for one in batch.obs.observation)

    def layers(net, x, last):
        for number, (weight, bias) in enumerate(net):
            x = x @ weight.detach().double().numpy() + bias.detach().double().numpy()
            x = np.maximum(x, 0) if number < len(net) - 1 else last(x)
        return x

    def actor(net, x):
        linear = [one for one in [*net.hidden, net.head.linear] if hasattr(one, "weight")]
        return layers([(one.weight.T, one.bias) for one in linear], x, np.tanh)

    def critic(net, x, action, e):
        linear = [one for one in net.net if hasattr(one, "weight")]
        return layers([(one.weight[e], one.bias[e]) for one in linear], np.concatenate([x, action], 1), lambda x: x)[:, 0]

    following = np.clip(actor(made.target_actor, then) + noise, -1, 1)
    value = np.minimum(*(critic(made.target_critic, then, following, e) for e in range(2)))
    target = batch.reward[0].numpy() + 0.9 * ~batch.terminated[0].numpy() * value
    taken, own = batch.action[0].double().numpy(), actor(made.policy.net, now)
    errors = sum(((critic(made.critic, now, taken, e) - target) ** 2).mean() for e in range(2))
    q = critic(made.critic, now, own, 0)
    (_, critic_loss), (_, actor_loss) = losses.seen
    assert float(critic_loss) == pytest.approx(0.5 * errors, rel=1e-4), "halves of squared errors, as td3.py says"
    assert float(actor_loss) == pytest.approx(-2.5 / np.abs(q).mean() * q.mean() + ((own - taken) ** 2).mean(), rel=1e-4)


def test_8_td3_bc_is_td3_where_it_plays_the_data_and_bc_where_values_do_not_count():
    made, batch = algorithm("td3_bc", *NETS, "algo.alpha=1.5", "model.observation_filter=none"), transitions()
    td3 = algorithm("td3", *NETS)
    assert all(torch.equal(a, b) for a, b in zip(made.policy.parameters(), td3.policy.parameters(), strict=True))
    with torch.no_grad():
        own = made.policy.net.of(rows(batch, 0))
        scale = 1.5 / made.critic(rows(batch, 0), own)[0, :, 0].abs().mean()
    played = batch.replace(action=own[None])
    ours, theirs = (actor_gradient(one, one.actor_loss(made_rows(one, played))) for one in (made, td3))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, scale * b, rtol=1e-4, atol=1e-6)
    clone = algorithm("td3_bc", *NETS, "algo.alpha=0", "model.observation_filter=none")
    distance = (clone.policy.net.of(rows(batch, 0)) - batch.action[0]).square().mean()
    ours, theirs = (actor_gradient(clone, one) for one in (clone.actor_loss(made_rows(clone, batch)), distance))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b)


# -- from data -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("env", ["rlrun/Identity-v0", "rlrun/IdentityBox-v0"])
def test_naming_what_is_seen_is_learnt_from_another_run(tmp_path, env):
    """bc learns it from the run's best episodes, and marwil from all of them."""
    other, best = ("dqn", 18.0) if env == "rlrun/Identity-v0" else ("a2c", -3.0)
    words = [f"env={env}", "resources=debug", "logger=[]"]
    more = [
        f"record={tmp_path / 'data'}",
        "env_steps=150000",
        f"stop.return_mean={best}",
        f"run_dir={tmp_path / 'run'}",
    ]
    assert _dispatch(["train", *small(other, "quick"), *words, *more]) == 0
    data = [f"data.path={tmp_path / 'data'}", "eval.every=10000", "env_steps=40000"]
    learn = ["algo.batch_size=100", "algo.lr=3e-3", "model.hidden=[64]"]
    for algo, own in (
        ("bc", [f"data.min_return={best}"]),
        ("marwil", ["algo.discount=0", "algo.squared_advantage_start=0.02"]),
    ):
        path = tmp_path / algo
        assert _dispatch(["train", f"algo={algo}", *words, *data, *learn, *own, f"run_dir={path}"]) == 0
        rows = [json.loads(line) for line in (path / "progress.jsonl").read_text().splitlines()]
        found = [row["eval/return_mean"] for row in rows if row.get("eval/return_mean") is not None]
        assert found[-1] >= best, algo


# -- fine-tuning ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [[], ["model=lstm", "model.memory.size=4"], ["model.share_value=true"]])
@pytest.mark.parametrize("algo", ["bc", "marwil"])
def test_the_policy_of_a_clone_is_that_of_ppo(algo, words):
    sequences = ["algo.sequence_length=8"] if words[:1] == ["model=lstm"] else []
    clone = algorithm(algo, *sequences, *words, env="CartPole-v1", hidden=[8])
    ppo = algorithm("ppo", *words, env="CartPole-v1", hidden=[8], seed=3)
    ppo.policy.load_state_dict(clone.policy.state_dict())
    taken, given = ppo.policy.state_dict(), clone.policy.state_dict()
    assert taken.keys() == given.keys() and all(torch.equal(taken[name], given[name]) for name in given)


@pytest.mark.parametrize(
    "algo, then, more", [("bc", "ppo", []), ("cql", "sac", []), ("cql", "sac", ["algo.lagrangian=true"])]
)
def test_another_run_begins_with_what_data_taught(tmp_path, typed, algo, then, more):
    """ppo takes the policy of bc with its untrained values; sac takes the critics of cql, too."""
    env = "CartPole-v1" if algo == "bc" else "Pendulum-v1"
    words = [f"env={env}", "resources=debug", "logger=[]", "model.hidden=[8]", *(NETS if algo == "cql" else [])]
    path = tmp_path / "run"
    tiny = [word for word in small(algo, "tiny") if not word.startswith(("algo.actor", "algo.critic", "model."))]
    assert _dispatch(["train", *tiny, *words, *more, "env_steps=100", f"run_dir={path}"]) == 0
    tensors, _ = checkpoints_of(path).load(None, parts=("policy", "algorithm"))
    anew = Wired(typed(f"algo={then}", *words)).algorithm()
    made = Wired(typed(f"algo={then}", *words, f"init={path}")).algorithm()
    saved = tensors["algorithm"]["module"]
    given = [name for name in made.state_dict() if name in saved and (algo == "cql" or name.startswith("policy."))]
    assert len(given) == len(made.state_dict()) - (algo == "bc"), "all but kl_coef of ppo"
    assert all(torch.equal(made.state_dict()[name], saved[name]) for name in given)
    differ = [name for name in given if not torch.equal(anew.state_dict()[name], saved[name])]
    if algo == "cql":  # a temperature that was asked for is not that of the other run
        other = Wired(typed(f"algo={then}", *words, "algo.initial_alpha=0.5", f"init={path}")).algorithm()
        with torch.no_grad():
            assert float(other.log_alpha.exp()) == pytest.approx(0.5)
        assert torch.equal(other.state_dict()["critic.net.0.weight"], saved["critic.net.0.weight"])
    parts = ("policy.trunk", "policy.action_head") if algo == "bc" else ("policy.net", "critic.net", "target_critic", "log_alpha")  # fmt: skip
    assert all(any(name.startswith(part) for name in differ) for part in parts)


def test_a_conservative_run_takes_only_the_policy_of_one_without_its_weight(tmp_path, typed):
    """With lagrangian, cql has more than sac, so that it does not begin with its critics."""
    words = ["env=Pendulum-v1", "resources=debug", "logger=[]", *NETS]
    path = tmp_path / "run"
    tiny = [word for word in small("sac", "tiny")[1:] if not word.startswith(("algo.actor", "algo.critic", "model."))]
    assert _dispatch(["train", "algo=sac", *tiny, *words, "env_steps=100", f"run_dir={path}"]) == 0
    saved = checkpoints_of(path).load(None, parts=("policy", "algorithm"))[0]["algorithm"]["module"]
    for more, whole in (([], True), (["algo.lagrangian=true"], False)):
        made = Wired(typed("algo=cql", "runner=replay", *words, *more, f"init={path}")).algorithm().state_dict()
        assert torch.equal(made["policy.net.head.linear.weight"], saved["policy.net.head.linear.weight"])
        assert torch.equal(made["critic.net.0.weight"], saved["critic.net.0.weight"]) is whole


def test_what_does_not_fit_is_said():
    for words, said in (
        (["bc", "algo.burn_in=3"], "burn_in is for sequences"),
        (["bc", "algo.sequence_length=7"], "must be a multiple of sequence_length 7"),
        (["bc", "model=lstm"], "bc with memory learns from sequences"),
        (["bc", "algo.sequence_length=8"], "is for a model with memory"),
        (["marwil", "algo.beta=1.5"], "beta must be between 0 and 1"),
        (
            ["marwil", "algo.learns_from=experience", "algo.fragment_length=7"],
            "must be a multiple of fragment_length 7",
        ),
        (["cql", "algo.min_q_weight=0", "algo.lagrangian=true"], "min_q_weight=0 leaves the penalty out"),
        (["cql", "algo.input_priorities=true", "replay=prioritized"], "only those of ddpg and td3"),
        (["implicit_q", "algo.expectile=1.0"], "expectile must be"),
        (["implicit_q", "algo.input_priorities=true", "replay=prioritized"], "only those of ddpg and td3"),
    ):
        with pytest.raises(UserError, match=said):
            algorithm(*words)


def test_rows_are_not_drawn_by_priorities_that_nobody_writes(typed, tmp_path):
    data = f"data.path={data_of('CartPole-v1', tmp_path / 'data')}"
    unranked = [algo for algo, needs in NEEDS.items() if needs.replay is not None and not needs.replay.priorities]
    assert {*IMITATING, "dreamer", "dreamerv3"} == set(unranked)
    for algo in unranked:
        for words in ([data] if algo in IMITATING else [], ["runner=replay"]):
            with pytest.raises(UserError, match=f"{algo} writes no priorities.*use replay=uniform"):
                checked(typed(f"algo={algo}", "env=CartPole-v1", "replay=prioritized", "logger=[]", *words))
    checked(typed("algo=discrete_cql", "env=CartPole-v1", "replay=prioritized", "logger=[]", data))
