"""Checks DDPG, TD3, SAC and TQC: targets and losses by hand, which gradient reaches what, and exploration."""

import copy
import dataclasses
import math

import gymnasium
import numpy as np
import pytest
import torch
from conftest import SMALL
from test_all import batches, start
from wired import Wired, checked

from rlrun.algos.sac import SAC
from rlrun.core.batch import Batch
from rlrun.core.errors import UserError
from rlrun.core.optimizer import Optimizer
from rlrun.core.schedule import Clock
from rlrun.models.critic import Critics
from rlrun.models.model import Seen
from rlrun.ops.distributions import Beta, SquashedGaussian
from rlrun.policies.noise import ladder

WORDS = [*SMALL, "model.hidden=[]", "algo.learning_starts=30", "replay.capacity=300", "algo.actor.hidden=[8]", "algo.critic.hidden=[8]", "algo.discount=0.5",
         "algo.random_steps=0", "algo.target_update_interval=100"]  # fmt: skip


class Moved(gymnasium.Env):
    """An environment that refuses actions outside its space."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,))

    def __init__(self, low, high):
        self.action_space = gymnasium.spaces.Box(low, high, (), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.rows = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        assert self.action_space.contains(np.asarray(action, np.float32)), action
        self.rows += 1
        return np.zeros(2, np.float32), float(action), False, self.rows == 5, {}


gymnasium.register("tests/Scalar-v0", lambda **kwargs: Moved(-2.0, 3.0))
gymnasium.register("tests/Half-v0", lambda **kwargs: Moved(0.0, np.inf))


def algorithm(typed, algo, *words, env="Pendulum-v1"):
    made = Wired(typed(f"algo={algo}", f"env={env}", *WORDS, *words)).algorithm()
    shake(made.target_critic, 1)
    if hasattr(made, "target_actor"):
        shake(made.target_actor, 2)
    return made


def shake(net, seed):
    """Changes the parameters, so that a target network differs from the network that it follows."""
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed)))


def transitions(n=1, width=3, discrete=False) -> Batch:
    """Three fragments of n rows: one goes on, one terminates at row 0, one meets a dead row at row 1 (with n > 1)."""
    valid, terminated = torch.ones(n, 3, dtype=torch.bool), torch.zeros(n, 3, dtype=torch.bool)
    terminated[0, 1] = True
    if n > 1:
        valid[1:, 1:] = False
    observation = torch.arange(2.0 * 3 * width).view(2, 3, width) / 10
    action = torch.tensor([[1, 0, 1]]) if discrete else torch.tensor([[[0.5], [-0.9], [0.1]]])
    return Batch(obs=Batch(observation=observation), is_first=torch.zeros(2, 3, dtype=torch.bool), action=action.expand(n, *action.shape[1:]),
                 reward=torch.tensor([[1.0, 2.0, 3.0]]).expand(n, 3).clone(), terminated=terminated, valid=valid, weight=torch.tensor([1.0, 0.5, 0.25]),
                 key=torch.arange(3))  # fmt: skip


def folded(value, n):
    """Returns the targets of transitions() with discount 0.5, if `value` [3] belongs to the last observations."""
    return torch.stack((sum(0.5**k for k in range(n)) + 0.5**n * value[0], torch.tensor(2.0), 3.0 + 0.5 * value[2]))


def rows(batch, which):
    observation, first = batch.obs.observation[which : which + 1], batch.is_first[which : which + 1]
    return Seen(Batch(observation=observation), first, Batch())


class Losses:
    """Records the losses that Optimizers would step on, and prevents the steps."""

    def __init__(self, monkeypatch):
        self.seen = []
        monkeypatch.setattr(Optimizer, "differentiate", lambda self_, loss: self.seen.append((self_, loss.detach())))
        monkeypatch.setattr(Optimizer, "apply", lambda self_, clock: {"grad_norm": torch.tensor(0.0)})


def manual_critic(critic: Critics, seen, e):
    """Evaluates critic e of the ensemble layer by layer."""
    x = seen
    layers = [layer for layer in critic.net if hasattr(layer, "weight")]
    for index, layer in enumerate(layers):
        x = x @ layer.weight[e] + layer.bias[e]
        if index < len(layers) - 1:
            x = x.relu()
    return x


@pytest.mark.parametrize("n", [1, 3])
def test_ddpg_by_hand(typed, monkeypatch, n):
    made = algorithm(typed, "ddpg", f"algo.n_step={n}")
    batch, losses = transitions(n), Losses(monkeypatch)
    actor = lambda net, x: torch.tanh(net.head.linear(net.hidden(x)))  # noqa: E731
    update = made.update(batch, Clock())
    now, then = batch.obs.observation[0], batch.obs.observation[1]
    with torch.no_grad():
        value = manual_critic(made.target_critic, torch.cat([then, actor(made.target_actor, then)], -1), 0)[:, 0]
        target = folded(value, n)
        q = manual_critic(made.critic, torch.cat([now, batch.action[0]], -1), 0)[:, 0]
        own = manual_critic(made.critic, torch.cat([now, actor(made.policy.net, now)], -1), 0)[:, 0]
    torch.testing.assert_close(update.writes["priority"], (target - q).abs())
    (first, critic_loss), (second, actor_loss) = losses.seen
    torch.testing.assert_close(critic_loss, (batch.weight * 0.5 * (target - q) ** 2).mean())
    torch.testing.assert_close(actor_loss, -own.mean())
    assert first is made.critic_optimizer and second is made.actor_optimizer


@pytest.mark.parametrize("twin", [False, True])
def test_td3_by_hand(typed, monkeypatch, twin):
    made = algorithm(
        typed,
        "td3",
        f"algo.twin_q={twin}",
        "algo.target_noise=3.0",
        "algo.target_noise_clip=0.2",
        "algo.policy_delay=2",
        "algo.huber_delta=0.1",
    )
    batch, losses = transitions(), Losses(monkeypatch)
    with torch.no_grad():  # with the noise, some of the target's actions are beyond the bounds
        made.target_actor.head.linear.weight.mul_(10.0)
        made.target_actor.head.linear.bias.add_(1.5)
    count = 2 if twin else 1
    now, then = batch.obs.observation[0], batch.obs.observation[1]
    state = made.ctx.rng.get_state()
    update = made.update(batch, Clock(0, 0))
    made.ctx.rng.set_state(state)
    noise = (torch.randn(3, 1, generator=made.ctx.rng) * 3.0).clamp(-0.2, 0.2)
    with torch.no_grad():
        net = made.target_actor
        noisy = torch.tanh(net.head.linear(net.hidden(then))) + noise
        assert (noisy.abs() > 1).any() and (noisy.abs() < 1).any()
        action = noisy.clamp(-1, 1)
        values = torch.stack(
            [manual_critic(made.target_critic, torch.cat([then, action], -1), e)[:, 0] for e in range(count)]
        )
        target = folded(values.min(0).values, 1)
        q = torch.stack(
            [manual_critic(made.critic, torch.cat([now, batch.action[0]], -1), e)[:, 0] for e in range(count)]
        )
    size = (target - q).abs()
    loss = torch.where(size < 0.1, 0.5 * size**2, 0.1 * (size - 0.05)).sum(0)
    torch.testing.assert_close(losses.seen[0][1], (batch.weight * loss).mean())
    torch.testing.assert_close(update.writes["priority"], size.mean(0))
    assert len(losses.seen) == 1 and "actor_loss" not in update.metrics, "the policy waits"
    made.update(batch, Clock(0, 1))
    assert [optimizer for optimizer, _ in losses.seen[1:]] == [made.critic_optimizer, made.actor_optimizer]


def streams(made):
    """Returns copies of the generators that the targets' and the policy's own actions will be drawn from."""
    return made.target_rng.clone_state(), made.ctx.rng.clone_state()


def drawn(rng, dist):
    """Returns what soft() draws from a squashed Gaussian, and its log density by the formula of appendix C."""
    x = dist.mean + dist.log_std.exp() * torch.randn(dist.mean.shape, generator=rng)
    normal = torch.distributions.Normal(dist.mean, dist.log_std.exp()).log_prob(x).sum(-1)
    return torch.tanh(x), normal - torch.log(1 - torch.tanh(x) ** 2 + 1e-12).sum(-1)


@pytest.mark.parametrize("n", [1, 3])
def test_sac_by_hand(typed, monkeypatch, n):
    made = algorithm(typed, "sac", f"algo.n_step={n}", "algo.initial_alpha=0.3", "algo.target_entropy=-0.7")
    batch, losses = transitions(n), Losses(monkeypatch)
    now, then = batch.obs.observation[0], batch.obs.observation[1]
    target_rng, rng = streams(made)
    update = made.update(batch, Clock())
    with torch.no_grad():
        action, log_prob = drawn(target_rng, made.policy.net.of(rows(batch, 1)))
        values = torch.stack(
            [manual_critic(made.target_critic, torch.cat([then, action], -1), e)[:, 0] for e in range(2)]
        )
        target = folded(values.min(0).values - 0.3 * log_prob, n)
        q = torch.stack([manual_critic(made.critic, torch.cat([now, batch.action[0]], -1), e)[:, 0] for e in range(2)])
        own, own_log_prob = drawn(rng, made.policy.net.of(rows(batch, 0)))
        own_q = (
            torch.stack([manual_critic(made.critic, torch.cat([now, own], -1), e)[:, 0] for e in range(2)])
            .min(0)
            .values
        )
    critic_loss, actor_loss, alpha_loss = (loss for _, loss in losses.seen)
    torch.testing.assert_close(
        critic_loss, (batch.weight * (0.5 * (target - q) ** 2).sum(0)).mean(), rtol=1e-4, atol=1e-5
    )
    torch.testing.assert_close(actor_loss, (0.3 * own_log_prob - own_q).mean(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(alpha_loss, -(math.log(0.3) * (own_log_prob - 0.7)).mean(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(update.metrics["entropy"], -own_log_prob.mean(), rtol=1e-4, atol=1e-5)


def test_sac_of_choices_by_hand(typed, monkeypatch):
    made = algorithm(typed, "sac", "algo.initial_alpha=0.3", env="CartPole-v1")
    batch, losses = transitions(width=4, discrete=True), Losses(monkeypatch)
    assert made.temperature.target_entropy == pytest.approx(0.98 * math.log(2))
    now, then = batch.obs.observation[0], batch.obs.observation[1]
    made.update(batch, Clock())
    with torch.no_grad():
        probability = made.policy.net.of(rows(batch, 1)).log_probs.exp()
        values = torch.stack([manual_critic(made.target_critic, then, e) for e in range(2)]).min(0).values  # [B, A]
        target = folded((probability * (values - 0.3 * probability.log())).sum(-1), 1)
        q = torch.stack([manual_critic(made.critic, now, e)[torch.arange(3), batch.action[0]] for e in range(2)])
        p = made.policy.net.of(rows(batch, 0)).log_probs.exp()
        own = torch.stack([manual_critic(made.critic, now, e) for e in range(2)]).min(0).values
    critic_loss, actor_loss, alpha_loss = (loss for _, loss in losses.seen)
    torch.testing.assert_close(critic_loss, (batch.weight * (0.5 * (target - q) ** 2).sum(0)).mean())
    torch.testing.assert_close(actor_loss, (p * (0.3 * p.log() - own)).sum(-1).mean())
    torch.testing.assert_close(
        alpha_loss, -(math.log(0.3) * ((p * p.log()).sum(-1) + made.temperature.target_entropy)).mean()
    )


def test_tqc_by_hand(typed, monkeypatch):
    words = [
        "algo.num_critics=3",
        "algo.num_quantiles=4",
        "algo.dropped_quantiles=1",
        "algo.initial_alpha=0.3",
        "algo.target_entropy=-0.7",
    ]
    made = algorithm(typed, "tqc", *words)
    batch, losses = transitions(), Losses(monkeypatch)
    now, then = batch.obs.observation[0], batch.obs.observation[1]
    target_rng, rng = streams(made)
    made.update(batch, Clock())
    with torch.no_grad():
        action, log_prob = drawn(target_rng, made.policy.net.of(rows(batch, 1)))
        pooled = torch.cat([manual_critic(made.target_critic, torch.cat([then, action], -1), e) for e in range(3)], -1)
        kept = pooled.sort(-1).values[:, :9] - 0.3 * log_prob[:, None]  # one of 12 is dropped for each critic
        target = torch.stack([folded(kept[:, k], 1) for k in range(9)], -1)
        quantile = [manual_critic(made.critic, torch.cat([now, batch.action[0]], -1), e) for e in range(3)]
        own, own_log_prob = drawn(rng, made.policy.net.of(rows(batch, 0)))
        own_q = torch.stack([manual_critic(made.critic, torch.cat([now, own], -1), e) for e in range(3)]).mean((0, 2))
    loss = torch.zeros(3)
    for one in quantile:  # eq. 11, element by element
        for b in range(3):
            for m in range(4):
                for j in range(9):
                    u = (target[b, j] - one[b, m]).item()
                    huber = 0.5 * u * u if abs(u) <= 1 else abs(u) - 0.5
                    loss[b] += abs((m + 0.5) / 4 - (u < 0)) * huber / (4 * 9)
    critic_loss, actor_loss, _ = (value for _, value in losses.seen)
    torch.testing.assert_close(critic_loss, (batch.weight * loss).mean(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(actor_loss, (0.3 * own_log_prob - own_q).mean(), rtol=1e-4, atol=1e-5)


def test_sac_wants_of_legal_choices_what_they_can_have(typed, monkeypatch):
    """The target is 0.98 log A for A legal actions.

    A policy over two actions could not reach the entropy target of all five, and alpha would grow without bound."""
    wiring, made, sampler = start(typed, "sac", "env=rlrun/Masked-v0")
    replay = wiring.replay(0)
    for _ in range(20):
        fragments = sampler.take(1)
        replay.add(fragments[0])
        sampler.free(fragments)
    batch, losses = replay.sample(20, Clock()), Losses(monkeypatch)
    ends = batch.ends()
    now = Seen(ends.obs[:1], ends.is_first[:1], Batch())
    made.log_alpha.data.fill_(1.0)
    with torch.no_grad():
        entropy = -made.soft(made.critic, made.critic.features(now), now, made.ctx.rng).log_prob
    made.update(batch, Clock())
    legal = now.mask.sum(-1)
    assert set(legal.tolist()) <= {1, 2, 3, 4} and made.spec.action.n == 5
    torch.testing.assert_close(losses.seen[2][1], (entropy - 0.98 * legal.float().log()).mean())
    assert made.temperature.wanted_entropy(None) == pytest.approx(0.98 * math.log(5))
    few = torch.tensor([[0, 0, 0, 0, 0], [0, 1, 0, 0, 0], [1, 1, 0, 0, 0]])  # at an end all may be illegal
    torch.testing.assert_close(made.temperature.wanted_entropy(few), torch.tensor([0.0, 0.0, 0.98 * math.log(2)]))


@pytest.mark.parametrize("algo", ["ddpg", "td3"])
def test_targets_begin_anew_with_given_weights(typed, algo):
    words = ["algo.input_priorities=true", "replay=prioritized"]
    made, other = algorithm(typed, algo, *words), algorithm(typed, algo, *words, "seed=7")
    made.policy.load_state_dict(other.policy.state_dict())
    made.renew_targets()
    for target, net in ((made.target_actor, other.policy.net), (made.target_critic, other.critic)):
        assert all(torch.equal(p, q) for p, q in zip(target.parameters(), net.parameters(), strict=True))


@pytest.mark.parametrize("algo", ["ddpg", "td3", "sac", "tqc", "dreamer", "dreamerv3"])
def test_one_number_without_a_shape_is_an_action_too(typed, algo):
    wiring, made, sampler = start(typed, algo, "env=tests/Scalar-v0")
    flat = made.policy.actor.flat if made.has_world_model else made.policy.flat
    assert wiring.spec.action.shape == () and flat(torch.zeros(3)).shape == (3, 1)
    made.update(batches(wiring, sampler, 1)[0], Clock())


@pytest.mark.parametrize("algo", ["ddpg", "td3", "sac", "tqc"])
def test_every_loss_moves_its_own_net_alone(typed, algo):
    made = algorithm(typed, algo, *(["algo.policy_delay=1"] if algo == "td3" else []))
    apply, changed = Optimizer.apply, []

    def watched(self, clock):
        before = {name: p.detach().clone() for name, p in made.named_parameters()}
        told = apply(self, clock)
        changed.append({name.split(".")[0] for name, p in made.named_parameters() if not torch.equal(p, before[name])})
        return told

    differentiate = Optimizer.differentiate

    def changes_nothing(self, loss):
        before = {name: p.detach().clone() for name, p in made.named_parameters()}
        differentiate(self, loss)
        assert all(torch.equal(p, before[name]) for name, p in made.named_parameters())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Optimizer, "apply", watched)
        patch.setattr(Optimizer, "differentiate", changes_nothing)
        made.update(transitions(), Clock())
    assert changed[:2] == [{"critic"}, {"policy"}] and changed[2:] == (
        [{"log_alpha"}] if algo in ("sac", "tqc") else []
    )
    assert all(p.grad is None for p in made.target_critic.parameters())


@pytest.mark.parametrize("algo", ["sac", "tqc"])
def test_two_threads_learn_what_one_learns(typed, algo):
    """Twenty updates agree to the bit, because critics and policy write to disjoint tensors."""
    one, two = (algorithm(typed, algo) for _ in range(2))
    two.ctx.beside.threads = 2
    for updates in range(20):
        told = [made.update(transitions(), Clock(0, updates)).metrics for made in (one, two)]
        assert told[0] == told[1]
    assert two.ctx.beside.helper is not None and one.ctx.beside.helper is None
    for (name, a), b in zip(one.state_dict().items(), two.state_dict().values(), strict=True):
        assert torch.equal(a, b), name


@pytest.mark.parametrize("algo", ["sac", "tqc"])
def test_the_targets_stream_is_saved_and_older_checkpoints_without_it_load(typed, algo):
    made, other = algorithm(typed, algo), algorithm(typed, algo, "seed=7")
    made.update(transitions(), Clock())
    state = made.state()
    other.load_state(state)
    assert torch.equal(other.target_rng.get_state(), made.target_rng.get_state()) and torch.equal(
        other.ctx.rng.get_state(), made.ctx.rng.get_state()
    )
    assert made.update(transitions(), Clock(0, 1)).metrics == other.update(transitions(), Clock(0, 1)).metrics
    own = other.target_rng.get_state()
    other.load_state({name: value for name, value in state.items() if name != "rngs"})
    assert torch.equal(other.target_rng.get_state(), own) and torch.equal(other.ctx.rng.get_state(), state["rng"])


@pytest.mark.parametrize("algo", ["ddpg", "td3", "sac", "tqc"])
def test_targets_follow_as_they_are_told(typed, algo):
    made = algorithm(typed, algo, "algo.target_update_interval=2", "algo.target_tau=0.25")
    pairs = [(made.target_critic, made.critic)] + (
        [(made.target_actor, made.policy.net)] if algo in ("ddpg", "td3") else []
    )
    before = [[p.clone() for p in target.parameters()] for target, _ in pairs]
    made.update(transitions(), Clock(0, 0))
    assert all(
        torch.equal(a, b)
        for old, (target, _) in zip(before, pairs, strict=True)
        for a, b in zip(old, target.parameters(), strict=True)
    )
    made.update(transitions(), Clock(0, 1))
    for old, (target, net) in zip(before, pairs, strict=True):
        for a, b, c in zip(old, target.parameters(), net.parameters(), strict=True):
            torch.testing.assert_close(b, 0.75 * a + 0.25 * c)


@pytest.mark.parametrize("algo", ["ddpg", "td3", "sac", "tqc"])
def test_what_stands_in_dead_rows_changes_nothing_and_the_end_counts(typed, algo):
    batch = transitions(3)
    dirty = {"reward": torch.where(batch.valid, batch.reward, 1e6), "terminated": batch.terminated | ~batch.valid,
             "action": torch.where(batch.valid[..., None], batch.action, 1.0)}  # fmt: skip
    seen = batch.obs.observation.clone()
    seen[1] += 1.0
    sizes = []
    for changed in (batch, batch.replace(**dirty), batch.replace(obs=Batch(observation=seen))):
        sizes.append(algorithm(typed, algo, "algo.n_step=3").update(changed, Clock()).writes["priority"])
    assert torch.equal(*sizes[:2])
    assert (sizes[0] != sizes[2])[[0, 2]].all() and sizes[0][1] == sizes[2][1], (
        "only a terminated one does not bootstrap"
    )


def test_l2_is_of_weights_alone(typed, monkeypatch):
    made, losses = algorithm(typed, "ddpg", "algo.l2=0.5"), Losses(monkeypatch)
    made.update(transitions(), Clock())
    with_l2 = [loss for _, loss in losses.seen]
    made.cfg = copy.copy(made.cfg)
    object.__setattr__(made.cfg, "l2", 0.0)
    made.update(transitions(), Clock())
    for before, (_, after), net in zip(with_l2, losses.seen[2:], (made.critic, made.policy.net), strict=True):
        weights = sum(p.square().sum() for name, p in net.named_parameters() if name.endswith("weight"))
        torch.testing.assert_close(before - after, 0.5 * 0.5 * weights.detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("algo", ["sac", "tqc", "cql"])
def test_bounds_of_gradients_are_for_weights_alone(typed, algo):
    """Temperatures move as far with the optimiser's bounds as without them, and the critics less far."""
    words = ["algo.optimizer.kind=sgd", "algo.alpha_lr=0.1", "algo.critic_lr=0.1", "algo.max_grad_norm=0"]
    if algo == "cql":
        words += ["runner=replay", "algo.lagrangian=true", "algo.num_actions=2"]
    moved = []
    for bound in ("algo.optimizer.agc=0", "algo.optimizer.agc=1e-4", "algo.optimizer.max_grad_value=1e-5"):
        made = algorithm(typed, algo, *words, bound)
        before = copy.deepcopy(dict(made.named_parameters()))
        made.update(transitions(), Clock(updates=10**9))
        moved.append({name: (x - before[name]).abs().max().item() for name, x in made.named_parameters()})
    temperatures = {name for name in moved[0] if "log_alpha" in name}
    assert len(temperatures) == (2 if algo == "cql" else 1)
    for bounded in moved[1:]:
        assert all(bounded[name] == moved[0][name] > 1e-3 for name in temperatures)
        assert max(x for name, x in bounded.items() if "critic" in name) < 1e-3
    assert max(x for name, x in moved[0].items() if "critic" in name) > 1e-3


def act(policy, clock=None, seed=0, columns=4, state=None, first=False, mode="explore", record=()):
    obs = Batch(observation=torch.linspace(-1, 1, columns * 3).view(columns, 3))
    state = policy.initial_state(columns, torch.linspace(0, 1, columns)) if state is None else state
    is_first = torch.full((columns,), first)
    with torch.no_grad():
        return policy.act(obs, is_first, state, clock or Clock(), mode, torch.Generator().manual_seed(seed), record)


def test_ornstein_uhlenbeck_noise(typed):
    ou = ("kind=ou", "std=0.2", "theta=0.15", "scale=0.5")
    policy = algorithm(typed, "ddpg", *(f"algo.exploration.{word}" for word in ou)).policy
    best = act(policy, mode="greedy").action
    first = act(policy, first=True)
    drawn = 0.2 * torch.randn(4, 1, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(first.action, (best + 0.5 * drawn).clamp(-1, 1))
    second = act(policy, state=first.state)
    torch.testing.assert_close(second.action, (best + 0.5 * (drawn * 0.85 + drawn)).clamp(-1, 1))
    third = act(policy, state=second.state, first=True)
    torch.testing.assert_close(third.action, first.action), "a new episode forgets"
    assert torch.equal(act(policy, mode="greedy", state=second.state).action, best)
    policy.explore = dataclasses.replace(policy.explore, std=40.0)
    wild = act(policy, first=True).action
    torch.testing.assert_close(wild, (best + 0.5 * 200 * drawn).clamp(-1, 1))
    assert wild.abs().max() == 1, "however large the noise is"


def test_random_steps_scale_and_its_ladder(typed):
    words = [
        "algo.random_steps=100",
        "algo.exploration.kind=gaussian",
        "algo.exploration.std=0.1",
        "algo.exploration.scale=1.0",
        "algo.exploration.scale_min=0.01",
    ]
    policy = algorithm(typed, "ddpg", *words).policy
    early, late = (
        torch.stack([act(policy, Clock(steps), seed=seed).action for seed in range(200)]) for steps in (99, 100)
    )
    assert early.min() < -0.95 and early.max() > 0.95 and abs(early.mean()) < 0.1 and abs(early.var() - 1 / 3) < 0.05, (
        "uniform over the whole range"
    )
    torch.testing.assert_close(
        late.std(0)[:, 0], torch.tensor([0.1, 0.1 * 0.01 ** (1 / 3), 0.1 * 0.01 ** (2 / 3), 0.001]), rtol=0.2, atol=0
    )
    assert torch.equal(ladder(0.0, 0.01, torch.ones(2)), torch.zeros(2)) and ladder(0.5, None, torch.ones(2)) == 0.5


def test_parameter_noise_lasts_an_episode_and_is_kept_at_its_distance(typed):
    policy = algorithm(typed, "ddpg", "algo.exploration.kind=parameter_noise", "algo.exploration.std=0.3").policy
    best = act(policy, mode="greedy").action
    first = act(policy, first=True)
    again = act(policy, state=first.state, seed=1)
    assert torch.equal(first.action, again.action) and not torch.equal(first.action, best)
    assert len(set(first.state["noise"][:, 0].tolist())) == 4, "each column its own"
    torch.testing.assert_close(again.state["moved"], 2 * (first.action - best).square().mean(-1))
    later = act(policy, state=again.state, first=True, seed=2)
    far = (again.state["moved"] / 2).sqrt()
    torch.testing.assert_close(later.state["deviation"], torch.where(far < 0.3, 0.3 * 1.01, 0.3 / 1.01))
    assert (later.state["rows"] == 1).all()
    torch.testing.assert_close(later.state["moved"], (later.action - best).square().mean(-1)), "of this episode alone"


@pytest.mark.parametrize("algo", ["ddpg", "td3"])
def test_priorities_of_new_rows_are_their_td_errors(typed, algo):
    """Samplers and learner agree if targets are copies, nothing is smoothed and every action is the policy's own."""
    words = [
        "algo.n_step=2",
        "algo.input_priorities=true",
        "replay=prioritized",
        "replay.alpha=1",
        "replay.priority_epsilon=0",
        "algo.exploration.scale=0",
        "algo.reward_clip=2.0",
    ]
    wiring, made, sampler = start(
        typed, algo, "env=Pendulum-v1", *words, *(["algo.target_noise=0"] if algo == "td3" else [])
    )
    replay = wiring.replay(0)
    for _ in range(20):
        fragments = sampler.take(1)
        replay.add(fragments[0])
        sampler.free(fragments)
    batch = replay.sample(20, Clock())
    keys = batch.key.numpy()
    leaf = replay.draws.leaf(keys % replay.layout.columns, keys // replay.layout.columns)
    stored = torch.from_numpy(replay.draws.tree.leaves[leaf]).float()
    ends = batch.ends()
    with torch.no_grad():
        now, then = (Seen(ends.obs[part], ends.is_first[part], Batch()) for part in (slice(0, 1), slice(1, 2)))
        q = made.critic(now, batch.action[0].flatten(1))[:, :, 0].mean(0)  # as the errors of an update's critics
        value = made.critic(then, made.policy.net.of(then))[:, :, 0].min(0).values
    assert (batch.reward < -2.0).any() and (batch.reward > -2.0).any()
    first, second = batch.reward.clamp(-2.0, 2.0)
    expected = (first + 0.99 * second + 0.99**2 * value - q).abs()
    whole = batch.valid.all(0)
    assert whole.sum() > 10
    torch.testing.assert_close(stored[whole], expected[whole], atol=1e-4, rtol=1e-4)


def test_reparametrised_draws_have_the_density_that_log_prob_says():
    rng = torch.Generator().manual_seed(0)
    for dist in (
        SquashedGaussian(torch.tensor([[0.3, -0.5]]), torch.tensor([[-0.7, 0.2]])),
        Beta(torch.tensor([[2.0, 1.5]]), torch.tensor([[3.0, 4.0]]), (2,)),
    ):
        action, log_prob = dist.rsample(rng)
        torch.testing.assert_close(log_prob, dist.log_prob(action), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["squashed", "beta"])
def test_reparametrised_gradients_are_those_of_the_mean(kind):
    """Compares d E[action] / d parameter by rsample with differences of means over the same random stream."""
    first = torch.tensor([[0.4]], requires_grad=True)

    def mean(x, rng):
        rows = x.expand(20000, 1)
        dist = (
            SquashedGaussian(rows, torch.full_like(rows, -0.5))
            if kind == "squashed"
            else Beta(1.5 + rows, torch.full_like(rows, 2.0), (1,))
        )
        return dist.rsample(rng)[0].mean()

    mean(first, torch.Generator().manual_seed(1)).backward()
    with torch.no_grad():
        if kind == "squashed":
            numeric = (
                mean(first + 1e-2, torch.Generator().manual_seed(1))
                - mean(first - 1e-2, torch.Generator().manual_seed(1))
            ) / 2e-2
        else:
            a = 1.5 + 0.4
            numeric = torch.tensor(2 * 2.0 / (a + 2.0) ** 2)  # derivative of 2 a / (a + b) - 1
    torch.testing.assert_close(first.grad[0, 0], numeric, rtol=0.03, atol=1e-3)


def test_critics_are_separate_nets_over_one_encoder(typed):
    made = algorithm(typed, "sac", "algo.critic.layer_norm=true")
    critic = made.critic
    seen, action = rows(transitions(), 0), torch.zeros(3, 1)
    before = critic(seen, action)
    with torch.no_grad():
        for layer in critic.net:
            if hasattr(layer, "weight"):
                layer.weight[1].add_(0.1)
    after = critic(seen, action)
    assert before.shape == (2, 3, 1) and torch.equal(before[0], after[0]) and not torch.equal(before[1], after[1])


def test_sac_of_images_learns_its_encoders_by_the_right_losses(typed):
    words = [
        *SMALL,
        "model.hidden=[]",
        "algo.learning_starts=30",
        "replay.capacity=300",
        "algo.random_steps=0",
        "env.size=42",
    ]
    made = Wired(typed("algo=sac", "env=Pong", *words)).algorithm()
    assert isinstance(made, SAC)
    observation = torch.randint(
        0, 255, (2, 3, 4, 42, 42), generator=torch.Generator().manual_seed(0), dtype=torch.uint8
    )
    batch = transitions(discrete=True).replace(obs=Batch(observation=observation))
    before = copy.deepcopy(made.state_dict())
    made.update(batch, Clock())
    changed = {name for name, value in made.state_dict().items() if not torch.equal(value, before[name])}
    assert any("critic.trunk" in name for name in changed) and any("policy.net.trunk" in name for name in changed)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["algo=ddpg", "env=CartPole-v1"], r"ddpg is for actions that are numbers \(Box\); CartPole-v1 has Discrete\(2\).*such as ppo or dqn"),
        (["algo=td3", "env=Pong"], "td3 is for actions that are numbers"),
        (["algo=ddpg", "env=rlrun/IdentityBox-v0", "++env.kwargs.high=inf"], "has unbounded actions"),
        (["algo=sac", "env=rlrun/IdentityBox-v0", "++env.kwargs.high=inf"], "has unbounded actions"),
        (
            ["algo=td3", "env=rlrun/IdentityBox-v0", "++env.kwargs.high=-1.0"],
            "an action whose lowest value is its highest",
        ),
        (["algo=ddpg", "env=Pendulum-v1", "model=lstm"], "with memory learns from sequences"),
        (
            ["algo=sac", "env=Pendulum-v1", "model.action_distribution=gaussian"],
            "action_distribution must be squashed_gaussian, beta or package.module:Name",
        ),
        (["algo=sac", "env=Pendulum-v1", "model=lstm"], "with memory learns from sequences"),
        (["algo=ddpg", "env=tests/Half-v0"], "has unbounded actions"),
        (
            ["algo=sac", "env=Pendulum-v1", "algo.input_priorities=true", "replay=prioritized"],
            "only those of ddpg and td3",
        ),
        (["algo=sac", "env=Pendulum-v1", "algo.initial_alpha=0"], "initial_alpha must be positive"),
        (["algo=td3", "env=Pendulum-v1", "algo.policy_delay=0"], "policy_delay must be at least 1"),
        (
            ["algo=tqc", "env=Pendulum-v1", "algo.dropped_quantiles=25"],
            "dropped_quantiles 25 must be below num_quantiles 25",
        ),
        (["algo=ddpg", "env=Pendulum-v1", "algo.exploration.std=0"], "std must be positive"),
        (["algo=ddpg", "env=Pendulum-v1", "algo.exploration.theta=2.5"], "theta must be at least 0 and below 2"),
        (["algo=apex_ddpg", "algo@algo.inner=dqn", "env=CartPole-v1"], "Ape-X DDPG needs ddpg or td3"),
    ],
)
def test_what_does_not_fit_is_said(typed, words, said):
    with pytest.raises(UserError, match=said):
        checked(typed(*words, "resources=debug", "logger=[]"))


def test_smaller_batches_come_from_a_prioritized_replay_too(typed):
    wiring, made, sampler = start(typed, "sac", "env=Pendulum-v1", "replay=prioritized")
    (batch,) = batches(wiring, sampler, 1)
    writes = made.update(batch, Clock()).writes
    assert writes["priority"].shape == (20,) and (writes["priority"] >= 0).all()


@pytest.mark.parametrize("algo, env, entropy", [("sac", "CartPole-v1", 0.7), ("sac", "Pendulum-v1", 0.7), ("tqc", "Pendulum-v1", 2.0)])
def test_an_entropy_that_no_policy_can_have_is_no_target(typed, algo, env, entropy):
    with pytest.raises((UserError, ValueError), match=f"target_entropy {entropy:g} cannot be reached: .* is 0.693 here"):
        algorithm(typed, algo, f"algo.target_entropy={entropy}", env=env)
    assert algorithm(typed, algo, "algo.target_entropy=0.69", env=env).temperature.target_entropy == 0.69
