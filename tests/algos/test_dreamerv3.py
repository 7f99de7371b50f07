"""DreamerV3's losses by hand, which gradient reaches what, alignment of rows, and runs as a whole."""

import copy
import json

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
from rlrun.core.specs import Discrete, MultiBinary
from rlrun.models.world_model import State
from rlrun.ops.symlog import symlog
from rlrun.policies.dreamer import WorldActor


def begun(typed, *words, updates=1, env="CartPole-v1", seed=0):
    """An algorithm whose weights matter, and batches."""
    wiring, made, sampler = start(typed, "dreamerv3", f"env={env}", f"seed={seed}", *words)
    shake(made)
    return made, batches(wiring, sampler, updates)


def shake(made):
    """Makes all weights, those that begin at 0 included, large enough to matter."""
    rng = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for net in (made.policy, made.decoder, made.reward, made.continues, made.value, made.slow_value):
            for parameter in net.parameters():
                parameter.add_(torch.randn(parameter.shape, generator=rng), alpha=0.3)


def logits_of(chances):
    """Logits [N, 2 * 4] of 4 variables of 2 classes, of which the first has this probability."""
    return torch.tensor([[np.log(chance), np.log(1 - chance)] for chance in chances]).float().repeat_interleave(4, 1)


def test_the_kl_is_balanced_and_free_below_one_nat(typed):
    made, _ = begun(typed, "model.classes=2", "model.unimix=0")
    far, even, near = 0.9, 0.5, 0.55
    # KL((.9, .1) || (.5, .5)) = 0.368064; 4 variables are above 1 nat together, although each by itself is below.
    posterior, prior = (logits_of(x).requires_grad_() for x in ((far, near), (even, even)))
    losses, told = made.divergences(posterior, prior)
    wanted = 4 * 0.368064
    small = 4 * (near * np.log(near / even) + (1 - near) * np.log((1 - near) / even))
    assert losses["dyn"].tolist() == pytest.approx([wanted, 1.0], abs=1e-4) == losses["rep"].tolist()
    assert told["kl"].tolist() == pytest.approx([wanted, small], abs=1e-5)
    assert told["prior_entropy"].tolist() == pytest.approx([4 * np.log(2)] * 2, abs=1e-5)
    for name, moved, still in (("dyn", prior, posterior), ("rep", posterior, prior)):
        gradient, other = torch.autograd.grad(
            losses[name].sum(), (moved, still), retain_graph=True, allow_unused=True
        )
        assert other is None or other.abs().max() == 0
        assert gradient[0].abs().min() > 0 and gradient[1].abs().max() == 0, "no gradient below one nat"


@pytest.mark.parametrize("space", [Discrete(n=2), MultiBinary(shape=(2,))], ids=["discrete", "binary"])
def test_choices_that_are_certain_are_finite_without_unimix(typed, space):
    """A probability of 0 would be 0 * log 0 in entropies and divergences."""
    made, _ = begun(typed, "model.classes=2", "model.unimix=0")
    sure = torch.tensor([[500.0] * 4 + [-500.0] * 4]).requires_grad_()
    losses, told = made.divergences(sure, -sure)
    gradient = torch.autograd.grad(losses["dyn"] + losses["rep"], sure)[0]
    assert all(value.isfinite().all() for value in (*losses.values(), *told.values(), gradient))
    actor = WorldActor(space, 3, typed("algo=dreamerv3", "env=CartPole-v1", "model.unimix=0").run.model, torch.float32)
    with torch.no_grad():
        actor.last.bias.copy_(torch.tensor([400.0, -400.0]))
    dist = actor(torch.zeros(1, 3))
    assert dist.entropy().isfinite().all() and dist.log_prob(dist.mode()).tolist() == [0.0]


def every_gradient(made, batch, name):
    """Names of the parts that the loss `name` moves."""
    chosen = dict.fromkeys(vars(made.cfg.loss_scales), 0.0) | {name: 1.0}
    made.cfg = type(made.cfg)(**{**vars(made.cfg), "loss_scales": type(made.cfg.loss_scales)(**chosen)})
    made.optimizer.apply = lambda clock: {}
    made.learn(batch, Clock())
    parts = {"encoder": made.policy.encoder, "rssm": made.policy.rssm, "actor": made.policy.actor, "decoder": made.decoder,
             "reward": made.reward, "continues": made.continues, "value": made.value}  # fmt: skip
    assert all(parameter.grad is None for parameter in made.slow_value.parameters())
    return {part for part, net in parts.items() if any(p.grad is not None and p.grad.abs().max() > 0 for p in net.parameters())}


@pytest.mark.parametrize("name, words, moved", [
    ("rec", [], {"encoder", "rssm", "decoder"}),
    ("rew", [], {"encoder", "rssm", "reward"}),
    ("rew", ["algo.reward_grad=false"], {"reward"}),
    ("con", [], {"encoder", "rssm", "continues"}),
    ("dyn", ["algo.free_nats=0"], {"encoder", "rssm"}),
    ("policy", [], {"actor"}),
    ("value", [], {"value"}),
    ("repval", [], {"encoder", "rssm", "value"}),
    ("repval", ["algo.repval_grad=false"], {"value"}),
])  # fmt: skip
def test_every_loss_moves_its_own_parts(typed, name, words, moved):
    made, (batch,) = begun(typed, *words)
    assert every_gradient(made, batch, name) == moved


def counted(typed, *words):
    """An algorithm and a batch of rows that say where they come from: the reward is the step in the episode, and
    episodes of 3 steps terminate and are truncated in turn."""
    wiring, made, sampler = start(
        typed, "dreamerv3", "env=rlrun/Counting-v0", "++env.kwargs.length=3", "algo.batch_length=12", *words
    )
    return made, batches(wiring, sampler, 1)[0]


@pytest.mark.parametrize("context", [1, 3])
def test_rewards_and_ends_belong_to_the_observations_that_they_came_with(typed, context):
    made, batch = counted(typed, f"algo.replay_context={context}")
    seen = {}
    step = made.replayed_value_loss
    made.replayed_value_loss = lambda *args: (seen.update(args=args), step(*args))[1]
    made.learn(batch, Clock())
    _, reward, terminal, last, _ = seen["args"]
    obs, first = batch.obs.observation[context:], batch.is_first[context:]
    assert reward.shape == (12, 4) and first.any() and terminal.any()
    torch.testing.assert_close(reward, torch.where(first, 0.0, obs[..., 1]))  # reward and observation count steps
    over = obs[..., 1] == 3
    assert torch.equal(last[:-1], over[:-1]) and not last[-1].any()
    assert torch.equal(terminal, over & (obs[..., 0] % 2 == 0)), "truncated episodes go on"


def test_what_stands_in_dead_rows_changes_nothing(typed):
    """Action and reward of an episode's last row mean nothing, and so does everything between two breaks."""
    made, batch = counted(typed, "algo.return_norm.limit=1e-6")
    assert (~batch.valid).any()
    shake(made)
    dirty = batch.replace(
        reward=torch.where(batch.valid, batch.reward, 1e6),
        action=torch.where(batch.valid, batch.action, 4 - batch.action),
        terminated=batch.terminated | ~batch.valid,
    )
    state, results = copy.deepcopy(made.state()), []
    for rows in (batch, dirty):
        made.load_state(copy.deepcopy(state))
        results.append({name: float(value) for name, value in made.learn(rows, Clock()).metrics.items()})
    assert results[0] == results[1]
    # A dead row that follows a dead row holds no observation: what an old fragment left there is in no mean.
    valid, first = batch.valid.clone(), batch.is_first.clone()
    valid[4:8, 0], first[5:8, 0], first[8, 0] = False, False, True
    broken = batch.replace(valid=valid, is_first=first)
    other = broken.obs.observation.clone()
    other[5:8, 0] = 1e3
    results = []
    for rows in (broken, broken.replace(obs=broken.obs.replace(observation=other))):
        made.load_state(copy.deepcopy(state))
        told = made.learn(rows, Clock()).metrics
        results.append([float(told[name]) for name in ("rec", "rew", "con", "dyn", "repval", "kl", "policy")])
    np.testing.assert_allclose(*results, rtol=1e-5)


def test_acting_follows_rows_as_learning_does(typed):
    """Over ends of episodes, and from the h that was stored anywhere."""
    made, (batch,) = begun(typed, "algo.batch_length=20", "algo.fragment_length=4")
    policy, uniform = made.policy, []
    assert batch.is_first[1:].any()
    made.ctx = made.ctx._replace(rng=torch.Generator().manual_seed(3))
    draw = made.ctx.rand
    made.ctx = type("Ctx", (), {"rand": lambda self, shape: uniform.append(draw(shape)) or uniform[-1]})()
    with torch.no_grad():
        states, _ = made.follow(batch)
        state = Batch(deter=batch.core.deter[0])
        for t in range(20):
            now, chances = policy.believed(batch.obs[t], batch.is_first[t], state)
            z = policy.rssm.draw(chances, uniform[0][:, t])
            if t:
                torch.testing.assert_close(now, states.h[t - 1], atol=1e-4, rtol=1e-4)
                assert torch.equal(z, states.z[t - 1])
            state = Batch(deter=policy.after(State(now, z), batch.action[t]))


def test_dreams_by_hand(typed):
    """Returns, weights and both losses of dreams whose heads are known, written slowly."""
    made, (batch,) = begun(typed, "algo.horizon=10", "algo.entropy_coef=0.1", "algo.return_norm.limit=2")
    # New weights imagine rewards of millions. From some states their sums nearly cancel, and floats cannot say the rest
    # to four digits, so the states must not depend on the tests that ran before.
    rng = torch.Generator().manual_seed(0)
    start_rows = State(torch.rand(20, 16, generator=rng) - 0.5, torch.rand(20, 12, generator=rng))
    cfg, told = made.cfg, {}
    imagine = made.policy.rssm.imagine
    made.policy.rssm.imagine = lambda *args: told.setdefault("dream", imagine(*args))
    real = torch.arange(20) % 3 > 0  # the other states are not those of observations
    losses, first, _ = made.dream(start_rows, real, batch, Clock())
    (features, actions), steps = told["dream"], cfg.imag_length
    with torch.no_grad():
        reward, value, slow = (made.mean_of(net(features)).numpy() for net in (made.reward, made.value, made.slow_value))
        go_on = made.continues(features).squeeze(-1).sigmoid().numpy()
        log_p = made.policy.actor(features[:-1]).log_probs.numpy()
        critic = made.value(features[:-1]).log_softmax(-1).numpy()
    bins = made.bins.numpy()

    def cross_entropy(log_p, target):
        above = int(np.searchsorted(bins, target, side="right"))
        share = (target - bins[above - 1]) / (bins[above] - bins[above - 1])
        return -(1 - share) * log_p[above - 1] - share * log_p[above]

    wanted = {"policy": np.zeros(20), "value": np.zeros(20)}
    returns = np.zeros((steps + 1, 20))
    returns[steps] = value[steps]
    for t in range(steps - 1, -1, -1):
        returns[t] = reward[t + 1] + go_on[t + 1] * (0.05 * value[t + 1] + 0.95 * returns[t + 1])
    low, high = np.percentile(returns[:steps, real.numpy()], [5, 95])
    scale = max(2.0, 0.01 * (high - low))
    for n in range(20):
        weight = 1.0
        for t in range(steps):
            weight *= go_on[t, n]  # that of the root is the first
            p = np.exp(log_p[t, n])
            advantage = (returns[t, n] - value[t, n]) / scale
            gain = log_p[t, n][actions[t, n].argmax()] * advantage + 0.1 * -(p * log_p[t, n]).sum()
            wanted["policy"][n] -= weight * gain / steps
            both = cross_entropy(critic[t, n], returns[t, n]) + cross_entropy(critic[t, n], slow[t, n])
            wanted["value"][n] += weight * both / steps
    np.testing.assert_allclose(first.numpy(), returns[0], rtol=1e-4, atol=1e-4)
    for name, values in wanted.items():
        np.testing.assert_allclose(losses[name].detach().numpy(), values, rtol=2e-3, atol=1e-4, err_msg=name)


def test_values_of_replayed_rows_by_hand(typed):
    made, _ = begun(typed, "algo.horizon=10", "algo.slow_reg=0.5")
    rng = torch.Generator().manual_seed(0)
    features = torch.randn(10, made.policy.rssm.features, generator=rng)
    reward, boot = torch.randn(5, 2, generator=rng), torch.randn(5, 2, generator=rng)
    terminal, last = torch.zeros(2, 5, 2, dtype=torch.bool)
    last[1, 0] = last[2, 1] = terminal[2, 1] = True
    made.mean_of = lambda logits: torch.arange(10.0) * 0.1
    loss = made.replayed_value_loss(features, reward, terminal, last, boot).view(5, 2)
    log_p = made.value(features).detach().log_softmax(-1).view(5, 2, -1)
    returns = [None] * 4 + [boot[4]]
    for t in range(3, -1, -1):
        k = 0.95 * (~last[t + 1]).float()
        follows = 0.9 * (~terminal[t + 1]).float()
        returns[t] = reward[t + 1] + follows * ((1 - k) * boot[t + 1] + k * returns[t + 1])
    bins = made.bins
    for t in range(5):
        for b in range(2):
            wanted = 0.0
            for target, weight in ((float(returns[t][b]), 1.0), (float(2 * t + b) * 0.1, 0.5)):
                above = int((bins <= target).sum())
                share = (target - bins[above - 1]) / (bins[above] - bins[above - 1])
                wanted -= weight * ((1 - share) * log_p[t, b, above - 1] + share * log_p[t, b, above])
            none = t == 4 or last[t, b]  # nothing follows
            assert float(loss.detach()[t, b]) == pytest.approx(0.0 if none else 5 / 4 * float(wanted), rel=1e-4)


CASES = {
    "choices": ["env=CartPole-v1", "algo.lr=1e-2 to 0 over 500", "algo.entropy_coef=0.1 to 0 over 400"],
    "numbers": ["env=Pendulum-v1", "algo.optimizer.warmup_updates=5"],
}
@pytest.mark.parametrize("case", CASES)
def test_recorded_updates_make_the_weights_of_plain_ones(typed, case):
    wiring, one, sampler = start(typed, "dreamerv3", *CASES[case])
    other_wiring, _, _ = start(typed, "dreamerv3", *CASES[case])
    tapes = other_wiring.recorder = Tapes()
    other = other_wiring.algorithm()
    other.load_state(one.state())
    for number, batch in enumerate(batches(wiring, sampler, 9)):
        clock = Clock(60 * number, number)
        wanted, got = one.update(batch, clock), other.update(batch, clock)
        for name, value in wanted.metrics.items():
            torch.testing.assert_close(
                torch.as_tensor(got.metrics[name]).float(), torch.as_tensor(value).float(), atol=1e-3, rtol=1e-2, msg=name)  # fmt: skip
        torch.testing.assert_close(got.writes["core"].deter, wanted.writes["core"].deter, atol=1e-3, rtol=1e-2)
    for (name, a), b in zip(one.state_dict().items(), other.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-2, msg=name)
    assert tapes.recordings == 1 and tapes.replayed >= 4
    assert torch.equal(one.state()["rng"], other.state()["rng"])


def test_latents_go_back_to_the_rows_that_they_came_from(typed):
    wiring, made, sampler = start(typed, "dreamerv3", "env=CartPole-v1")
    sampler.publish(made.policy, Clock())
    replay = wiring.replay(0)
    for _ in range(20):
        (fragment,) = sampler.take(1)
        replay.add(fragment)
        sampler.free([fragment])
    batch, before = replay.sample(4, Clock()), replay.core["deter"].values.clone()
    update = made.update(batch, Clock())
    (h,) = update.writes["core"].leaves()
    assert h.shape == (5, 4, 16)  # of rows 1 to 5, behind the one of context
    replay.write(batch.key, **update.writes)
    stored = replay.core["deter"].values  # [columns, rows, deter]
    column, row = batch.key % replay.layout.columns, batch.key // replay.layout.columns
    later = {(int(c), int(r) + 1 + t): (t, b) for b, (c, r) in enumerate(zip(column, row, strict=True)) for t in range(5)}
    for (c, r), (t, b) in later.items():
        assert torch.equal(stored[c, r % replay.length], h[t, b].half())
    for c, r in {(int(c), int(r)) for c, r in zip(column, row, strict=True)} - set(later):
        assert torch.equal(stored[c, r % replay.length], before[c, r % replay.length]), "context is only read"


def trained(folder, *words):
    assert _dispatch(["train", *small("dreamerv3", "tiny"), "logger=[]", f"run_dir={folder}", *words]) == 0


def weights(folder):
    from rlrun.runtime.rundir import checkpoints_of

    return checkpoints_of(folder).load()[0]["algorithm"]


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
def test_a_run_resumes_to_the_same_bits_and_acts(env, tmp_path, capsys):
    words = ["resources=debug", f"env={env}", "checkpoint.every=60", "env.max_episode_steps=15"]
    words += ["model.encoder_layers=1", "model.decoder_layers=1", "model.value_layers=1", "model.policy_layers=1"]
    trained(tmp_path / "whole", *words, "env_steps=120")
    trained(tmp_path / "half", *words, "env_steps=60")
    assert _dispatch(["resume", str(tmp_path / "half"), "env_steps=120"]) == 0
    whole, half = weights(tmp_path / "whole"), weights(tmp_path / "half")
    assert all(torch.equal(whole["module"][name], value) for name, value in half["module"].items())
    assert torch.equal(whole["rng"], half["rng"])
    last = [sorted((tmp_path / name / "checkpoints").glob("0*"))[-1] for name in ("whole", "half")]
    rows = [{file.name: file.read_bytes() for file in path.glob("replay*")} for path in last]
    assert rows[0] == rows[1] and len(rows[0]) == 2, "rows and latents too"
    policy = load(tmp_path / "whole")
    obs = np.zeros(4 if env == "CartPole-v1" else 3, np.float32)
    first, again = policy.act(obs), policy.act(obs)
    assert np.isfinite(first).all() and np.isfinite(again).all()
    assert _dispatch(["evaluate", str(tmp_path / "whole"), "episodes=2"]) == 0
    assert "return" in capsys.readouterr().out
    assert _dispatch(["export", str(tmp_path / "whole"), "--formats", "pt2"]) == 0


def test_samplers_in_processes_feed_the_replay(tmp_path):
    trained(
        tmp_path / "run", "env=CartPole-v1", "env_steps=200", "resources.inference=local", "resources.num_samplers=1",
        "algo.num_envs=2", "resources.learner_threads=1", "log_every_sec=null", "log_every_steps=50",
    )  # fmt: skip
    rows = [json.loads(line) for line in (tmp_path / "run" / "progress.jsonl").read_text().splitlines()]
    assert rows[-1]["updates"] > 10 and np.isfinite(rows[-1]["learn/loss"])


@pytest.mark.parametrize("words, said", [
    (["env=CartPole-v1", "replay.capacity=1000"], "a batch of 16 sequences of 64 rows is longer than the replay"),
    (["env=CartPole-v1", "algo.train_ratio=0"], "algo.train_ratio must be positive"),
    (["env=CartPole-v1", "model.size=size3m"], "model.size must be one of size1m"),
    (["env=CartPole-v1", "model.deter=100"], "deter 100 must be a multiple of blocks 8"),
    (["env=Pong", "model.depth=3"], "= 12 channels in model.blocks=8 parts"),
    (["env=Pong", "model.encoder_layers=5"], "model.encoder_layers=5 does nothing in this run"),
    (["env=Pong", "resources.compile=true"], "resources.compile=true does nothing in this run"),
    (["env=CartPole-v1", "algo.learning_starts=10"], "learning_starts 10 is below the 64 rows"),
    (["env=CartPole-v1", "algo.imag_last=65"], "imag_last 65 must be 0, or 2 to batch_length 64"),
    (["env=CartPole-v1", "algo.horizon=1"], "algo.horizon must be above 1"),
    (["env=CartPole-v1", "algo.imag_last=1"], "imag_last 1 must be 0, or 2 to"),
    (["env=CartPole-v1", "model.hidden_sizes=[8]"], "model.hidden_sizes"),
    (["env=CartPole-v1", "model=mlp"], "model=world_model"),
    (["env=rlrun/Masked-v0"], "masks its actions"),
    (["env=CartPole-v1", "runner=on_policy"], "learns from a replay"),
    (["env=rlrun/EverySpace-v0"], "is for actions that are one choice (Discrete) or several choices"),
])  # fmt: skip
def test_bad_input_gets_a_sentence_before_anything_starts(words, said, tmp_path):
    folder = tmp_path / "run"
    with pytest.raises(UserError) as caught:  # exit code 2 (tests/commands/test_cli.py)
        _dispatch(["train", "algo=dreamerv3", f"run_dir={folder}", *words])
    assert said in str(caught.value) and "\n" not in str(caught.value)
    assert not folder.exists()


def chain(count=200):
    """Rows [T, B] of a chain of 5 states, 1.0 for the last of which an episode pays and ends, with any action."""
    step = torch.arange(count * 6).view(-1, 1).repeat(1, 8) + torch.arange(8)
    return step % 6  # 0 to 4 are states, 5 is the end


def test_a_world_model_of_a_chain_learns_it(typed):
    """Reward, continuation and next observation of a deterministic world, and the values of its states."""
    words = [
        "env=rlrun/Identity-v0", "++env.kwargs.n=6", "algo.batch_size=8", "algo.batch_length=16", "algo.lr=4e-3 to 4e-4 over 400", "algo.horizon=10",
        "algo.imag_length=5", "model.deter=32", "model.hidden=16", "model.units=32", "model.blocks=2", "model.bins=63",
        "replay.capacity=1000", "model.classes=8",
    ]  # fmt: skip
    _, made, _ = start(typed, "dreamerv3", *words)
    rows, rng = chain(), torch.Generator().manual_seed(0)
    for number in range(400):
        begin = int(torch.randint(100, (), generator=rng))
        place = rows[begin : begin + 17]
        batch = Batch(
            obs=Batch(observation=torch.nn.functional.one_hot(place, 6).float()),
            is_first=place == 0,
            action=torch.randint(6, (16, 8), generator=rng),
            reward=(place[:-1] == 4).float(),
            terminated=place[:-1] == 4,
            valid=place[:-1] != 5,
            core=Batch(deter=torch.zeros(1, 8, 32)),
        )
        made.update(batch, Clock(number, number))
    place = rows[6:17]  # whole episodes in some columns
    batch = batch.replace(
        obs=Batch(observation=torch.nn.functional.one_hot(rows[:17], 6).float()), is_first=rows[:17] == 0,
        reward=(rows[:16] == 4).float(), terminated=rows[:16] == 4, valid=rows[:16] != 5,
    )  # fmt: skip
    with torch.no_grad():
        states, _ = made.follow(batch)
        known = rows[1:17] != 99
        known[: 6] = False  # the first rows do not know where they are yet
        flat = State(*(x.flatten(0, 1) for x in states))
        reward = made.mean_of(made.reward(flat.features)).view_as(known)
        go_on = made.continues(flat.features).sigmoid().view_as(known)
        value = made.mean_of(made.value(flat.features)).view_as(known)
        seen = made.decoder(flat)["observation"].view(*known.shape, 6)
        place = rows[1:17]
        end = place == 5
        assert (reward - end.float())[known].abs().mean() < 0.01 and (reward - end.float())[known].abs().max() < 0.05
        assert (go_on - torch.where(end, 0.0, 0.9))[known].abs().mean() < 0.01
        assert (go_on - torch.where(end, 0.0, 0.9))[known].abs().max() < 0.05
        wanted = symlog(torch.nn.functional.one_hot(place, 6).float())
        assert (seen - wanted)[known].abs().mean() < 0.05 and (seen - wanted)[known].abs().max() < 0.15
        true = torch.where(end, 0.0, 0.9 ** (4.0 - place.float()))
        inside = known & ~end
        assert (value - true)[inside].abs().mean() < 0.1
        # A step of the prior from state 2 is state 3, except where the share of uniform draws leads elsewhere.
        at = (place == 2) & known
        states = State(*(x[at].repeat(20, *[1] * (x[at].ndim - 1)) for x in states))
        dreamt, _ = made.policy.rssm.imagine(
            states, lambda seen, t: torch.eye(6)[torch.zeros(len(seen), dtype=torch.long)],
            torch.rand(1, len(states.h), made.policy.rssm.stoch, generator=rng))  # fmt: skip
        after = made.decoder(State.of(dreamt[1], 32))["observation"]
        assert (after.argmax(-1) == 3).float().mean() > 0.95
