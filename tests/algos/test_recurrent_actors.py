"""SAC, TQC, DDPG and TD3 with memory: sequences from replay against what acted, losses by hand, learning and resuming."""

import dataclasses
import json

import pytest
import torch
from conftest import small
from test_all import start

import rlrun
from rlrun.cli import _dispatch
from rlrun.core.batch import Batch
from rlrun.core.errors import UserError
from rlrun.core.schedule import Clock
from rlrun.families.off_policy import transitions, weight_decay

MEMORY = ["model/memory=gru", "model.memory.size=6", "algo.n_step=1", "algo.learning_starts=40", "replay.capacity=600"]
SEQUENCES = [*MEMORY, "algo.num_envs=2", "algo.fragment_length=10", "algo.sequence_length=8", "algo.sequence_stride=5"]


def filled(typed, algo, *words, fragments=40):
    """The algorithm, with networks whose past matters, and a batch of sequences that it acted in."""
    wiring, made, sampler = start(typed, algo, *SEQUENCES, *words)
    for net in (made.policy, made.critic):
        for parameter in net.parameters():
            torch.nn.init.normal_(parameter, 0.0, 0.4, generator=torch.Generator().manual_seed(parameter.numel()))
    sampler.publish(made.policy, Clock())
    replay = wiring.replay(0)
    for _ in range(fragments):
        (fragment,) = sampler.take(1)
        replay.add(fragment)
        sampler.free([fragment])
    return made, replay.sample(16, Clock())


@pytest.mark.parametrize("burn_in", [0, 7])
def test_sequences_from_stored_state_are_what_acted(typed, burn_in):
    words = [
        "env=rlrun/IdentityBox-v0",
        "++env.kwargs.length=13",
        "algo.exploration.scale=0.0",
        f"algo.burn_in={burn_in}",
    ]
    made, batch = filled(typed, "ddpg", *words, "algo.exploration.kind=gaussian", "model.memory.prev_action=true")
    rows = transitions(made, batch)
    assert (~batch.valid).any() and batch.is_first[1:].any() and rows.valid.shape == rows.reward.shape == (8 * 16,)
    with torch.no_grad():
        action, following = made.policy.net.of(rows.now), made.policy.net.of(rows.then)
        fresh = made.policy.net.of(rows.now.from_zeros())
    torch.testing.assert_close(action[rows.valid], rows.action[rows.valid], atol=1e-5, rtol=1e-4)
    going = rows.valid.view(8, 16)[1:]
    torch.testing.assert_close(following.view(8, 16, 1)[:-1][going], action.view(8, 16, 1)[1:][going])
    assert not torch.allclose(fresh[rows.valid], action[rows.valid], atol=1e-4), "the stored state matters"
    with torch.no_grad():  # the critic's memory begins with zeros at the first row of burn-in
        state = made.critic.trunk.memory.spec()
        zeros = Batch({name: torch.zeros(16, *field.shape) for name, field in state.items()})
        whole = made.critic.trunk(batch.obs, batch.is_first, zeros)[0][burn_in:-1].flatten(0, 1)
        torch.testing.assert_close(made.critic.features(rows.now), whole, atol=1e-5, rtol=1e-4)
        made.cfg = dataclasses.replace(made.cfg, zero_init_state=True)
        assert torch.equal(made.policy.net.of(transitions(made, batch).now), fresh), "or it may begin with zeros"


@pytest.mark.parametrize("memory", [torch.nn.GRU, torch.nn.LSTM])
def test_l2_has_the_weights_of_a_memory_and_no_biases(memory):
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), memory(4, 5, num_layers=2))
    weight_decay(net, 0.3).backward()
    for name, parameter in net.named_parameters():
        if "weight" in name:
            torch.testing.assert_close(parameter.grad, 0.3 * parameter.detach())
        else:
            assert parameter.grad is None, name


def test_losses_are_means_over_live_rows(typed):
    """DDPG by hand from the networks' outputs; what dead rows hold changes nothing."""
    words = ["env=rlrun/IdentityBox-v0", "++env.kwargs.length=6", "algo.burn_in=3", "algo.discount=0.5"]
    made, batch = filled(typed, "ddpg", *words, "algo.reward_clip=0.3")
    batch = batch.replace(weight=torch.linspace(0.3, 1.0, 16))
    rows, live = transitions(made, batch), batch.valid[3:]
    assert (~live).any() and live.any(0).all() and (batch.reward[3:][live].abs() > 0.3).any()
    with torch.no_grad():
        following = made.target_critic(rows.then, made.target_actor.of(rows.then))[0, :, 0].view(8, 16)
        q = made.critic(rows.now, rows.action)[0, :, 0].view(8, 16)
        target = batch.reward[3:].clamp(-0.3, 0.3) + 0.5 * ~batch.terminated[3:] * following
        error = (target - q).abs().masked_fill(~live, 0.0)
        own = made.critic.of(made.critic.features(rows.now), made.policy.net.of(rows.now))[0, :, 0].view(8, 16)
    loss = (batch.weight * 0.5 * error**2).sum() / live.sum()
    dirty = batch.replace(reward=torch.where(batch.valid, batch.reward, 1e6), action=torch.where(batch.valid.unsqueeze(-1), batch.action, 0.77),
                          terminated=batch.terminated | ~batch.valid)  # fmt: skip
    saved = {name: value.clone() for name, value in made.state_dict().items()}
    for one in (batch, dirty):
        made.load_state_dict(saved)
        update = made.learn(one, Clock())
        assert float(update.metrics["critic_loss"]) == pytest.approx(float(loss), rel=1e-4)
        assert float(update.metrics["q"]) == pytest.approx(float(q[live].mean()), rel=1e-4, abs=1e-6)
        priority = 0.9 * error.max(0).values + 0.1 * error.sum(0) / live.sum(0)
        torch.testing.assert_close(update.writes["priority"], priority, atol=1e-5, rtol=1e-4)
    made.load_state_dict(saved)
    assert made.actor_loss(rows).item() == pytest.approx(-float(own[live].mean()), rel=1e-4, abs=1e-6)


@pytest.mark.parametrize(
    "words, said",
    [
        (["algo=sac", "model/memory=lstm"], "sac with memory learns from sequences: set algo.sequence_length"),
        (["algo=td3", "algo.sequence_length=5"], "algo.sequence_length is for a model with memory"),
        (["algo=sac", "algo.burn_in=5"], "burn_in is for sequences"),
        (["algo=sac", "model/memory=lstm", "algo.sequence_length=5", "algo.n_step=2"], "n_step must be 1"),
        (["algo=sac", "model/memory=lstm", "algo.sequence_length=200"], "learning_starts 100 is below the 200 rows"),
        (["algo=ddpg", "model/memory=lstm", "algo.sequence_length=5", "algo.input_priorities=true", "replay=prioritized"], "input_priorities are for single rows"),
        (["algo=ddpg", "model/memory=lstm", "algo.sequence_length=5", "algo.exploration.kind=parameter_noise"], "perturbs networks without memory"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(typed, words, said):
    from wired import Wired

    with pytest.raises(UserError, match=said):
        Wired(typed("env=Pendulum-v1", *words)).algorithm()


@pytest.mark.parametrize(
    "algo, words",
    [
        ("sac", ["env=rlrun/IdentityBox-v0", "model/memory=lstm", "model.memory.prev_reward=true"]),
        (
            "tqc",
            ["env=rlrun/IdentityBox-v0", "model/memory=gtrxl", "model.memory.heads=2", "algo.num_critics=2", "algo.zero_init_state=true"],
        ),
        ("td3", ["env=rlrun/IdentityBox-v0", "replay=prioritized"]),
        ("sac", ["env=rlrun/Masked-v0", "model/memory=lstm"]),
    ],
)
def test_a_run_resumes_to_the_same_bits_and_is_loaded(tmp_path, algo, words, capsys):
    whole, half = tmp_path / "whole", tmp_path / "half"
    tiny = [*small(algo, "tiny"), *SEQUENCES, "algo.burn_in=3", "resources=debug", "logger=[]", "checkpoint.every=100"]
    assert _dispatch(["train", *tiny, *words, "env_steps=200", f"run_dir={whole}"]) == 0
    assert _dispatch(["train", *tiny, *words, "env_steps=100", f"run_dir={half}"]) == 0
    assert _dispatch(["resume", str(half), "env_steps=200"]) == 0
    trained, other = rlrun.load(whole), rlrun.load(half)
    for mine, theirs in zip(trained.policy.parameters(), other.policy.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    assert trained.clock.updates > 2 and trained.policy.core_spec()
    capsys.readouterr()
    assert _dispatch(["export", str(whole), "--formats", "pt2"]) == 0
    assert "acts as the run's own policy" in capsys.readouterr().out


def test_sac_learns_what_only_a_memory_can_know(tmp_path):
    """RepeatAfterMe pays for the bit before the newest one; without memory the best return is 0 of 80."""
    run = tmp_path / "run"
    words = ["env=rlrun/RepeatAfterMe-v0", "++env.kwargs.length=80", "resources=debug", "logger=[]", "algo.discount=0"]
    words += [
        "model/memory=gru",
        "model.memory.size=16",
        "algo.actor.hidden=[]",
        "algo.critic.hidden=[]",
        "algo.target_entropy=0.05",
    ]
    words += [
        "algo.sequence_length=10",
        "algo.burn_in=2",
        "algo.fragment_length=10",
        "algo.num_envs=4",
        "algo.sequence_stride=5",
    ]
    words += [
        "algo.batch_size=32",
        "algo.replay_ratio=8",
        "algo.actor_lr=0.01",
        "algo.critic_lr=0.01",
        "algo.alpha_lr=0.01",
    ]
    assert _dispatch(["train", "algo=sac", *words, "env_steps=12000", "stop.return_mean=40", f"run_dir={run}"]) == 0
    assert json.loads((run / "summary.json").read_text())["status"] == "STOPPED"
