"""Dreamer's losses by hand, gradients against finite differences, alignment of rows, and runs as a whole."""

import copy
import math

import numpy as np
import pytest
import torch
from conftest import small
from tape import Tapes
from test_all import batches, start

from rlrun import load
from rlrun.cli import _dispatch
from rlrun.core.batch import Batch
from rlrun.core.errors import UserError
from rlrun.core.schedule import Clock
from rlrun.models.gaussian_world_model import Belief
from rlrun.models.world_model import State
from rlrun.ops.returns import bootstrapped_returns


def begun(typed, *words, updates=1, env="Pendulum-v1"):
    wiring, made, sampler = start(typed, "dreamer", f"env={env}", *words)
    return made, batches(wiring, sampler, updates)


def test_the_kl_of_normal_variables_is_free_below_its_mean(typed):
    """KL(N(1, 2) || N(0, 1)) = (4 + 1 - 1) / 2 - log 2 = 1.306853 for each number, summed; the bound is on the mean."""
    made, _ = begun(typed, "algo.free_nats=3")
    far = Belief(torch.full((2, 4), 1.0), torch.full((2, 4), 2.0))
    near = Belief(torch.zeros(2, 4), torch.ones(2, 4))
    assert far.divergence(near).tolist() == pytest.approx([4 * 1.306853] * 2, abs=1e-5)
    assert far.divergence(far).tolist() == [0.0, 0.0]
    entropy = torch.distributions.Normal(far.mean, far.std).entropy().sum(-1)
    torch.testing.assert_close(far.entropy(), entropy)
    for rows, wanted, slope in (((1.0, 4.9), 3.0, 0.0), ((0.0, 6.4), 3.2, 0.5)):
        kl = torch.tensor(rows, requires_grad=True)
        loss = made.beyond_free_nats(kl.mean())
        assert loss.item() == pytest.approx(wanted)
        assert torch.autograd.grad(loss, kl)[0].tolist() == [slope] * 2, "one row below the bound is not free by itself"


@pytest.mark.parametrize("lambda_", [0.0, 0.7, 1.0])
def test_lambda_returns_are_the_mean_of_all_n_step_returns(lambda_):
    rng = torch.Generator().manual_seed(0)
    reward, discount, value = (torch.rand(3, 6, 2, generator=rng, dtype=torch.float64)).unbind()
    values = torch.cat((torch.zeros(1, 2), value))  # value[t] is v_{t + 1}
    inputs = [x.clone().requires_grad_() for x in (reward, discount, value)]
    got = bootstrapped_returns(*inputs, lambda_)
    for t in range(6):
        longest = 6 - t
        steps = []
        for n in range(1, longest + 1):  # V^n_t of the paper's eq. 5
            total, factor = torch.zeros(2), torch.ones(2)
            for i in range(t, t + n):
                total, factor = total + factor * reward[i], factor * discount[i]
            steps.append(total + factor * values[t + n])
        mean = sum((1 - lambda_) * lambda_ ** (n - 1) * steps[n - 1] for n in range(1, longest))
        torch.testing.assert_close(got[t], mean + lambda_ ** (longest - 1) * steps[-1])
    assert torch.autograd.gradcheck(lambda *x: bootstrapped_returns(*x, lambda_), inputs)


@pytest.mark.parametrize("continuation", [False, True])
def test_the_actors_gradient_is_that_of_its_dreams(typed, continuation, monkeypatch):
    """Finite differences of the mean discounted return, through actions, dynamics, rewards and values: what the policy
    sees is held at what it saw. The weights of later states, which an end makes smaller, are held too."""
    made, _ = begun(typed, "algo.imag_length=4", f"algo.continuation={continuation}", "algo.lambda_=0.8")
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    nets = [made.policy, made.reward, made.value, *([made.continues] if continuation else [])]
    rng = torch.Generator().manual_seed(1)
    for net in nets:
        net.double()
        for part in net.modules():
            if hasattr(part, "compute"):
                part.compute = torch.float64
        for parameter in net.parameters():
            parameter.data += 0.2 * torch.randn(parameter.shape, generator=rng, dtype=torch.float64)
    rows = 12
    first = State(*(torch.rand(rows, n, generator=rng, dtype=torch.float64) for n in (16, 4)))
    begins = torch.ones(3, 4, dtype=torch.bool)
    begins[1, 2] = False
    drawn = [torch.randn(4, 3, 4, n, generator=rng, dtype=torch.float64) for n in (1, 4)]
    held: dict = {}

    class Ctx:
        ranks, learners = made.ctx.ranks, 1

        def randn(self, shape):
            return next(x for x in drawn if x.shape == torch.Size(shape))

    made.ctx = Ctx()
    chosen, imagine = made.policy.actor.chosen, made.policy.rssm.imagine
    seen: list = []
    made.policy.actor.chosen = lambda features, noise: seen.append(features) or chosen(features, noise)
    made.policy.rssm.imagine = lambda *args: held.setdefault("dream", imagine(*args))
    loss, value_loss, _ = made.dream(first, begins)
    parameters = list(made.policy.actor.parameters())
    gradient = torch.autograd.grad(loss, parameters, retain_graph=True)
    values = list(made.value.parameters())
    assert all(x is None for x in torch.autograd.grad(value_loss, parameters, retain_graph=True, allow_unused=True))
    assert all(x.abs().max() > 0 for x in torch.autograd.grad(value_loss, values))
    noises = [x.permute(2, 1, 0, 3).flatten(1, 2) for x in drawn]
    kept = made.continues(held["dream"][0].features[1:]).squeeze(-1).sigmoid() if continuation else None

    @torch.no_grad()
    def by_hand():
        state, reward, value, go_on = first, [], [], []
        for t in range(4):
            h = made.policy.rssm.step(state, chosen(seen[t], noises[0][t]))
            state = State(h, made.policy.rssm.prior(h).drawn(noises[1][t]))
            reward.append(made.reward(state.features)[:, 0])
            value.append(made.value(state.features)[:, 0])
            go_on.append(
                made.continues(state.features)[:, 0].sigmoid() if continuation else torch.full((rows,), 0.99, dtype=torch.float64)
            )
        total, following = torch.zeros(rows).double(), value[3]
        returns = [None] * 3
        for t in (2, 1, 0):
            following = reward[t] + go_on[t] * (0.2 * value[t + 1] + 0.8 * following)
            returns[t] = following
        weight = torch.ones(rows).double()
        for t in range(3):
            total = total + weight * returns[t] / 3
            weight = weight * (kept[t] if continuation else 0.99)
        return -float(total[begins.flatten()].mean())

    assert by_hand() == pytest.approx(loss.item(), abs=1e-9)
    for parameter, slope in zip(parameters, gradient, strict=True):
        for place in torch.randperm(parameter.numel(), generator=rng)[:3].tolist():
            flat, step, ends = parameter.data.view(-1), 1e-5, []
            before = float(flat[place])
            for sign in (1, -1):
                flat[place] = before + sign * step
                ends.append(by_hand())
            flat[place] = before
            assert (ends[0] - ends[1]) / (2 * step) == pytest.approx(slope.view(-1)[place].item(), rel=1e-4, abs=1e-8)


def test_each_optimiser_moves_its_own_parts(typed):
    made, (batch,) = begun(typed, "algo.continuation=true")
    for frozen in ("model", "actor", "value"):
        state = copy.deepcopy(made.state())
        optimizer = getattr(made, f"{frozen}_optimizer")
        optimizer.apply, apply = lambda clock: {}, optimizer.apply
        parts = {"encoder": made.policy.encoder, "rssm": made.policy.rssm, "actor": made.policy.actor, "decoder": made.decoder,
                 "reward": made.reward, "continues": made.continues, "value": made.value}  # fmt: skip
        before = {name: copy.deepcopy(part.state_dict()) for name, part in parts.items()}
        made.learn(batch, Clock())
        moved = {
            name
            for name, part in parts.items()
            if any((part.state_dict()[key] != x).any() for key, x in before[name].items())
        }
        of = {"model": {"encoder", "rssm", "decoder", "reward", "continues"}, "actor": {"actor"}, "value": {"value"}}
        assert moved == set(parts) - of[frozen]
        optimizer.apply = apply
        made.load_state(state)


def test_rows_are_learnt_as_acting_sees_them(typed):
    """From the first row of an episode on, the states of learning are those of acting."""
    made, (batch,) = begun(typed, "algo.batch_length=20", "env.max_episode_steps=6")
    policy, drawn = made.policy, []
    draw = made.ctx.randn
    made.ctx = type("Ctx", (), {"randn": lambda self, shape: drawn.append(draw(shape)) or drawn[-1]})()
    with torch.no_grad():
        states, posterior, prior = made.follow(batch)
        known = torch.zeros(4, dtype=torch.bool)
        state, checked = Batch(deter=torch.zeros(4, 16)), 0
        for t in range(1, 21):
            h, belief = policy.believed(batch.obs[t], batch.is_first[t], state)
            known |= batch.is_first[t]
            z = belief.drawn(drawn[0][:, t - 1])
            for got, wanted in (
                (states.h, h),
                (states.z, z),
                (posterior.std, belief.std),
                (prior.mean, policy.rssm.prior(h).mean),
            ):
                torch.testing.assert_close(got[t - 1][known], wanted[known], atol=1e-5, rtol=1e-4)
            checked += int(known.sum())
            if t < 20:
                state = Batch(deter=policy.after(State(h, z), batch.action[t]))
    assert checked > 30


def test_numbers_beyond_the_bounds_are_learnt_as_the_environment_executed_them(typed):
    """Data of a policy with a normal distribution has such numbers, and so has a user's own exploration."""
    said = []
    for size in (1.0, 3.0):
        made, (batch,) = begun(typed)
        batch = batch.replace(action=size * (2.0 * (batch.action > 0).float() - 1.0))
        state = State(torch.zeros(4, made.policy.rssm.deter), torch.zeros(4, made.policy.rssm.size))
        said.append((made.policy.after(state, batch.action[0]), made.update(batch, Clock()).metrics))
    assert torch.equal(said[0][0], said[1][0]) and said[0][1] == said[1][1]
    assert torch.equal(made.policy.actor.flat(torch.tensor([[-1.5], [0.25]])), torch.tensor([[-1.0], [0.25]]))


def test_rewards_and_ends_belong_to_the_observations_that_they_came_with(typed):
    words = ["env=rlrun/Counting-v0", "++env.kwargs.length=3", "algo.batch_length=12", "algo.continuation=true"]
    wiring, made, sampler = start(typed, "dreamer", *words)
    (batch,) = batches(wiring, sampler, 1)
    seen = {}
    made.reward.register_forward_hook(lambda net, args, out: seen.setdefault("features", args[0]) is None or None)
    dream = made.dream
    made.dream = lambda start, begins: seen.update(begins=begins) or dream(start, begins)
    state = copy.deepcopy(made.state())
    told = made.learn(batch, Clock()).metrics
    obs, first = batch.obs.observation[1:], batch.is_first[1:]
    steps, ends = torch.where(first, 0.0, obs[..., 1]), obs[..., 1] == 3  # reward and observation count steps
    terminal = ends & (obs[..., 0] % 2 == 0)  # others are truncated
    assert first.any() and terminal.any() and (ends & ~terminal).any()
    real = batch.valid | first
    assert torch.equal(seen["begins"], real & ~terminal)
    made.load_state(state)
    with torch.no_grad():
        error = 0.5 * (made.reward(seen["features"]).view_as(steps) - steps).square()
        chance = made.continues(seen["features"]).view_as(steps).sigmoid()
        target = 0.99 * (~terminal).float()
        con = -(target * chance.log() + (1 - target) * (1 - chance).log())
    assert float(told["rew"]) == pytest.approx(float(error[real].mean()), rel=1e-4)
    assert float(told["con"]) == pytest.approx(float(con[real].mean()), rel=1e-4)
    # What stands in dead rows changes nothing.
    assert (~batch.valid).any()
    dirty = batch.replace(
        reward=torch.where(batch.valid, batch.reward, 1e6), action=torch.where(batch.valid, batch.action, 4 - batch.action),
        terminated=batch.terminated | ~batch.valid,
    )  # fmt: skip
    made.load_state(state)
    again = made.learn(dirty, Clock()).metrics
    assert {name: float(x) for name, x in told.items()} == {name: float(x) for name, x in again.items()}


def test_convolutions_are_those_of_the_paper(typed):
    """Parameters of the author's networks on 64 x 64 images and 6 numbers of an action, by formula."""
    from rlrun.models.gaussian_world_model import GaussianDecoder

    words = [
        "env=test_every_option:Pixels",
        "++env.kwargs.side=64",
        "++env.kwargs.continuous=true",
        "replay.capacity=100",
    ]
    own = ["model.deter=200", "model.stoch=30", "model.hidden=200", "model.units=400"]
    _, made, _ = start(typed, "dreamer", *words, *own)
    counts = [sum(x.numel() for x in net.parameters()) for net in (made.policy.encoder, made.decoder, made.policy.rssm, made.reward, made.value)]  # fmt: skip
    encoder = sum(16 * a * b + b for a, b in ((1, 32), (32, 64), (64, 128), (128, 256)))
    decoder = (
        230 * 1024
        + 1024
        + sum(k * k * a * b + b for k, a, b in ((5, 1024, 128), (5, 128, 64), (6, 64, 32), (6, 32, 1)))
    )
    rssm = (
        32 * 200 + 200 + 2 * (200 * 600 + 600) + (200 * 200 + 200 + 200 * 60 + 60) + (1224 * 200 + 200 + 200 * 60 + 60)
    )
    heads = [231 * 400 + n * (400 * 400 + 400) + 400 + 1 for n in (1, 2)]
    assert counts == [encoder, decoder, rssm, *heads]
    assert isinstance(made.decoder, GaussianDecoder) and made.decoder.weight == 0.5
    obs = torch.randint(256, (3, 64, 64, 1), dtype=torch.uint8)
    state = State(torch.randn(3, 200), torch.randn(3, 30))
    with torch.no_grad():
        said = made.decoder(state)["observation"]
        assert said.shape == (3, 1, 64, 64) and made.policy.encoder(obs).shape == (3, 1024)
        wanted = 0.5 * (said[:, 0] - obs[..., 0] / 255).square().sum((1, 2))
        torch.testing.assert_close(made.decoder.loss(state, obs), wanted)


@pytest.mark.parametrize("env", ["Pendulum-v1", "CartPole-v1"])
def test_exploration_disturbs_what_is_drawn(typed, env):
    made, (batch,) = begun(typed, "algo.exploration.noise=0.4 to 0 over 100", env=env)
    policy, rng = made.policy, torch.Generator().manual_seed(0)
    drawn = torch.zeros((4000, 1)) if env == "Pendulum-v1" else torch.zeros(4000, dtype=torch.long)
    half = policy.disturbed(drawn, Clock(50), rng).double()
    assert (half.std() if env == "Pendulum-v1" else half.mean()).item() == pytest.approx(
        0.2 if env == "Pendulum-v1" else 0.1, abs=0.02
    )
    assert torch.equal(policy.disturbed(drawn, Clock(100), rng), drawn)
    assert policy.disturbed(drawn + 1, Clock(), rng).max() <= 1, "noisy numbers stay within their bounds"
    assert policy.explored(Clock(50)) == {"exploration_noise": pytest.approx(0.2)}
    assert made.update(batch, Clock(50)).metrics["exploration_noise"] == pytest.approx(0.2)
    obs = Batch(observation=torch.randn(3, *policy.spec.observation.shape))
    before = rng.get_state()
    policy.act(obs, torch.ones(3, dtype=torch.bool), policy.initial_state(3), Clock(), "greedy", rng)
    assert torch.equal(before, rng.get_state()), "greedy acting draws nothing"


CASES = {
    "choices": ["env=CartPole-v1", "algo.continuation=true"],
    "numbers": ["env=Pendulum-v1", "algo.model_lr=1e-3 to 0 over 500"],
}


@pytest.mark.parametrize("case", CASES)
def test_recorded_updates_make_the_weights_of_plain_ones(typed, case):
    wiring, one, sampler = start(typed, "dreamer", *CASES[case])
    other_wiring, _, _ = start(typed, "dreamer", *CASES[case])
    tapes = other_wiring.recorder = Tapes()
    other = other_wiring.algorithm()
    other.load_state(one.state())
    for number, batch in enumerate(batches(wiring, sampler, 9)):
        clock = Clock(60 * number, number)
        wanted, got = one.update(batch, clock), other.update(batch, clock)
        for name, value in wanted.metrics.items():
            torch.testing.assert_close(
                torch.as_tensor(got.metrics[name]).float(), torch.as_tensor(value).float(), atol=1e-3, rtol=1e-2, msg=name)  # fmt: skip
    for (name, a), b in zip(one.state_dict().items(), other.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-2, msg=name)
    assert tapes.recordings == 1 and tapes.replayed >= 4
    assert torch.equal(one.state()["rng"], other.state()["rng"])


def weights(folder):
    from rlrun.runtime.rundir import checkpoints_of

    return checkpoints_of(folder).load()[0]["algorithm"]


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
def test_a_run_resumes_to_the_same_bits_and_acts(env, tmp_path, capsys):
    words = [
        "train",
        *small("dreamer", "tiny"),
        "logger=[]",
        "resources=debug",
        f"env={env}",
        "checkpoint.every=60",
        "env.max_episode_steps=15",
    ]
    for name, steps in (("whole", 120), ("half", 60)):
        assert _dispatch([*words, f"run_dir={tmp_path / name}", f"env_steps={steps}"]) == 0
    assert _dispatch(["resume", str(tmp_path / "half"), "env_steps=120"]) == 0
    whole, half = weights(tmp_path / "whole"), weights(tmp_path / "half")
    assert all(torch.equal(whole["module"][name], value) for name, value in half["module"].items())
    assert len(whole["optimizers"]) == 3 and torch.equal(whole["rng"], half["rng"])
    last = [sorted((tmp_path / name / "checkpoints").glob("0*"))[-1] for name in ("whole", "half")]
    rows = [{file.name: file.read_bytes() for file in path.glob("replay*")} for path in last]
    assert rows[0] == rows[1] and rows[0]
    policy = load(tmp_path / "whole")
    obs = np.zeros(4 if env == "CartPole-v1" else 3, np.float32)
    assert np.isfinite(policy.act(obs)).all() and np.isfinite(policy.act(obs)).all()
    assert _dispatch(["evaluate", str(tmp_path / "whole"), "episodes=2"]) == 0
    assert "return" in capsys.readouterr().out
    assert _dispatch(["export", str(tmp_path / "whole"), "--formats", "pt2"]) == 0


@pytest.mark.parametrize("words, said", [
    (["env=Pendulum-v1", "replay.capacity=2500", "algo.batch_size=51"], "a batch of 51 sequences of 50 rows is longer than the replay"),
    (["env=Pendulum-v1", "algo.train_ratio=0"], "algo.train_ratio must be positive"),
    (["env=Pendulum-v1", "algo.imag_length=1"], "algo.imag_length"),
    (["env=Pendulum-v1", "algo.learning_starts=10"], "learning_starts 10 is below the 50 rows"),
    (["env=Pendulum-v1", "algo.continue_coef=2"], "algo.continuation"),
    (["env=Pendulum-v1", "model=world_model"], "model=gaussian_world_model"),
    (["env=CartPole-v1", "model.init_std=2"], "environments with continuous actions"),
    (["env=CartPole-v1", "algo.exploration.noise=2"], "must not be above 1"),
    (["env=rlrun/Masked-v0"], "masks its actions"),
    (["env=test_every_option:Pixels", "++env.kwargs.side=96"], "images of 96 x 96"),
    (["env=Pendulum-v1", "runner=on_policy"], "learns from a replay"),
    (["env=rlrun/EverySpace-v0"], "is for actions that are one choice (Discrete) or numbers (Box)"),
])  # fmt: skip
def test_bad_input_gets_a_sentence_before_anything_starts(words, said, tmp_path):
    folder = tmp_path / "run"
    with pytest.raises(UserError) as caught:  # exit code 2 (tests/commands/test_cli.py)
        _dispatch(["train", "algo=dreamer", f"run_dir={folder}", *words])
    assert said in str(caught.value) and "\n" not in str(caught.value)
    assert not folder.exists()


def test_a_world_model_learns_a_reward_and_the_policy_follows_it(typed):
    """A place moves by the action and pays for being near 0.5: reward, next observation, and where the policy goes."""
    words = [
        "env=Pendulum-v1", "algo.batch_size=16", "algo.batch_length=8", "algo.imag_length=5", "algo.model_lr=3e-3", "algo.actor_lr=2e-3",
        "algo.value_lr=3e-3", "algo.discount=0.8", "model.deter=32", "model.stoch=4", "model.hidden=32", "model.units=32", "model.policy_layers=1",
        "model.encoder_layers=1", "model.decoder_layers=1", "model.value_layers=1", "model.init_std=1.0",
    ]  # fmt: skip
    _, made, _ = start(typed, "dreamer", *words)
    rng = torch.Generator().manual_seed(0)

    def batch():
        place, action, places = torch.rand(16, generator=rng) * 2 - 1, torch.rand(8, 16, generator=rng) * 2 - 1, []
        for t in range(9):
            places.append(place)
            place = (place + 0.5 * action[t]).clamp(-1, 1) if t < 8 else place
        seen = torch.stack(places)
        first = torch.zeros(9, 16, dtype=torch.bool)
        first[0] = True
        return Batch(
            obs=Batch(observation=torch.stack((seen, -seen, seen.square()), -1)), is_first=first, action=action.unsqueeze(-1),
            reward=1 - 4 * (seen[1:] - 0.5).square(), terminated=torch.zeros(8, 16, dtype=torch.bool), valid=torch.ones(8, 16, dtype=torch.bool),
        )  # fmt: skip

    for number in range(500):
        made.update(batch(), Clock(number, number))
    held_out = batch()
    with torch.no_grad():
        states, _, _ = made.follow(held_out)
        rows = State(*(x.flatten(0, 1) for x in states))
        reward = made.reward(rows.features).view_as(held_out.reward)
        assert (reward - held_out.reward).abs().mean() < 0.3 < 0.5 * held_out.reward.std()
        # Open-loop from the third row on.
        dreamt, _ = made.policy.rssm.imagine(
            State(*(x[2] for x in states)), lambda state, t: held_out.action[3 + t], torch.zeros(5, 16, 4)
        )
        assert (made.reward(dreamt.features[1:]).squeeze(-1) - held_out.reward[3:]).abs().mean() < 0.5
        place, state, policy = torch.linspace(-1, 1, 9), made.policy.initial_state(9), made.policy
        for t in range(6):
            obs = Batch(observation=torch.stack((place, -place, place.square()), -1))
            action, state = policy.greedy(obs, torch.full((9,), t == 0), state)
            place = (place + 0.5 * action[:, 0]).clamp(-1, 1)
    assert (place - 0.5).abs().mean() < 0.2 and math.isfinite(float(place.sum()))


def test_open_loop_predictions_by_hand(typed):
    """Five rows by the posterior, one after another as the policy follows them, and then the prior's rollout."""
    made, (batch,) = begun(typed, "algo.batch_length=20", "algo.continuation=true", "env.max_episode_steps=12")
    policy, rssm = made.policy, made.policy.rssm
    said = made.open_loop(batch, 5, torch.Generator().manual_seed(3))
    noise = torch.randn(21, 4, rssm.size, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        memory = Batch(deter=batch.core.deter[0])
        for t in range(21):
            if t < 5:
                h, belief = policy.believed(batch.obs[t], batch.is_first[t], memory)
            else:
                h, belief = memory.deter, rssm.prior(memory.deter)
            state = State(h, belief.drawn(noise[t]))
            torch.testing.assert_close(said.said["observation"][t], made.decoder(state)["observation"], atol=1e-4, rtol=1e-4)
            error = 0.5 * (made.decoder(state)["observation"] - batch.obs.observation[t]).square().sum(-1)
            torch.testing.assert_close(said.rec[t], error, atol=1e-4, rtol=1e-4)
            if t:
                torch.testing.assert_close(said.reward[t - 1], made.reward(state.features)[:, 0], atol=1e-4, rtol=1e-4)
                go_on = (made.continues(state.features)[:, 0].sigmoid() / 0.99).clamp(max=1.0)
                torch.testing.assert_close(said.go_on[t - 1], go_on, atol=1e-4, rtol=1e-4)
            if t < 20:
                memory = Batch(deter=policy.after(state, batch.action[t]))
    torch.testing.assert_close(said.true["observation"], batch.obs.observation)
    assert torch.equal(said.came, batch.reward)
    made, (batch,) = begun(typed, "algo.batch_length=20", "algo.reward_clip=sign")
    assert torch.equal(made.open_loop(batch, 5, torch.Generator()).came, batch.reward.sign()), "as it is learnt"
