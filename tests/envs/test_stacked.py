"""Stacked observations of any environment: in samplers, replay, resumed runs, and for policies that are loaded."""

import dataclasses
import json

import gymnasium
import numpy as np
import pytest
import torch
from conftest import SMALL
from test_samplers import KINDS
from wired import Wired

import rlrun
from rlrun.cli import _dispatch
from rlrun.core.batch import Field
from rlrun.core.schedule import Clock
from rlrun.core.specs import Box, Discrete, EnvSpec
from rlrun.envs import registry
from rlrun.envs.gym import make_spec
from rlrun.envs.stacked import LastFrames, with_stack, without_stack
from rlrun.models.encoders import MLP, NatureCNN
from rlrun.models.model import encoder
from rlrun.replay.buffer import Replay
from rlrun.replay.storage import Frames, Plain, stores


@pytest.mark.parametrize("kind", KINDS)
def test_rows_hold_the_last_observations_of_their_episode(typed, kind):
    """Counting observes [episode, step, tag]: the frames of one row count up to its step, and are 0 before step 0."""
    wiring = Wired(typed("algo=impala", "env=rlrun/Counting-v0", "env.stack=3", "logger=[]", "algo.fragment_length=5", "algo.batch_size=20",
                         "resources.device=cpu", "resources.envs_per_sampler=2", *KINDS[kind]))  # fmt: skip
    algorithm, sampler = wiring.algorithm(), wiring.sampler(0)
    try:
        sampler.publish(algorithm.policy, Clock())
        begun = full = 0
        for _ in range(12):
            (fragment,) = sampler.take(1)
            seen, first = fragment.batch.obs.observation, fragment.batch.is_first  # [6, 2, 3, 3]
            newest = seen[..., -1, :]
            assert torch.equal(newest[first][:, 1], torch.zeros(int(first.sum())))
            for back in (1, 2):
                older, there = seen[..., -1 - back, :], newest[..., 1] >= back
                assert not older[~there].any()
                assert torch.equal(older[there], newest[there] - torch.tensor([0.0, back, 0.0]))
            begun, full = begun + int(first.sum()), full + int((newest[..., 1] >= 2).sum())
            sampler.free([fragment])
        assert begun > 4 and full > 20
    finally:
        sampler.close()


@pytest.mark.parametrize(
    ("shape", "dtype", "image"),
    [((48, 48), "uint8", True), ((5, 3), "float32", False), ((2, 2), "int64", False), ((48, 48, 3), "float32", True)],
)
def test_stacked_pictures_are_images_and_stacked_tables_are_numbers(shape, dtype, image):
    part = Box(shape=shape, dtype=dtype, low=(0.0,), high=(255.0,))
    one = EnvSpec(name="x", obs={"observation": part}, action=Discrete(n=2))
    assert one.image == (len(shape) == 3)
    spec = with_stack(one, 3)
    assert spec.image == image and without_stack(spec) == one
    assert isinstance(encoder(spec, "auto", (), "relu"), NatureCNN if image else MLP)


@pytest.mark.parametrize(
    "env", [["env=rlrun/IdentityImage-v0"], ["env=rlrun/EverySpace-v0", "++env.kwargs.image=true"], ["env=FrozenLake-v1"]]
)  # fmt: skip
def test_every_space_is_stacked_and_replayed_from_single_frames(typed, env):
    wiring = Wired(typed("algo=ppo", *env, "env.stack=3", *SMALL, "algo.minibatch_size=10"))
    one, spec = make_spec(wiring.config.env), wiring.spec
    assert without_stack(with_stack(one, 3)) == one and with_stack(one, 3) == spec and with_stack(one, 1) == one
    wiring.algorithm()  # its network fits
    replayed = Wired(typed("algo=dqn", "env=rlrun/Counting-v0", *SMALL, "algo.learning_starts=10", "algo.num_envs=2"))
    plan = replayed.plan.replay
    layout = dataclasses.replace(
        plan.layout, obs=spec.obs_rows, action=spec.action_row, stack=3, fragment_rows=5, block=4, blocks=1, rows=2, rows_from=2
    )  # fmt: skip
    replay = Replay(dataclasses.replace(plan.cfg, name="uniform"), layout, torch.Generator(), torch.device("cpu"))
    frames = [store for name, store in stores(replay.tree) if name.startswith("obs.observation")]
    assert frames and all(isinstance(store, Frames) for store in frames)
    unstacked = dataclasses.replace(layout, obs=one.obs_rows, stack=1)
    assert layout.bytes / layout.rows_per_column == unstacked.bytes / unstacked.rows_per_column
    sampler, seen, valid = wiring.sampler(0), [], []
    sampler.publish(wiring.algorithm().policy, Clock())
    for _ in range(20):
        (fragment,) = sampler.take(1)
        seen.append(fragment.batch.obs.map(lambda x: x[:-1].clone()))
        valid.append(fragment.batch.valid.clone())
        replay.add(fragment)
        last = fragment.batch.obs.map(lambda x: x[-1:].clone())
        sampler.free([fragment])
    rows = {name: torch.cat(parts) for name, parts in flat([*seen, last]).items()}
    assert not torch.cat(valid).all(), "episodes ended"
    batch = replay.sample(64, Clock())
    for i, key in enumerate(batch.key.tolist()):
        column, row = key % 4, key // 4
        for name, parts in flat([batch.obs]).items():
            assert torch.equal(parts[0][0, i], rows[name][row, column])


@pytest.mark.parametrize("dtype", [torch.bool, torch.int8, torch.uint16, torch.uint32, torch.uint64, torch.float16])
def test_frames_of_an_earlier_episode_are_zeros_in_every_type(dtype):
    """A column of 6 rows holds 1 to 6; an episode begins at row 3."""
    field = Field((), dtype)
    single = Plain(1, 6, field, lambda shape, kind: torch.zeros(shape, dtype=kind))
    frames = Frames(single, 3, torch.tensor([True, False, False, True, False, False]), 6)
    rows = torch.arange(1, 7).to(dtype)
    frames.one.write(slice(0, 1), 0, rows.unsqueeze(1))
    told = [[0, 0, 1], [1, 2, 3], [0, 0, 4], [0, 4, 5], [4, 5, 6]]
    picked = frames.read(torch.tensor([0, 2, 3, 4, 5]))
    assert picked.dtype == dtype and picked.tolist() == torch.tensor(told).to(dtype).tolist()


def flat(batches, prefix=""):
    """The leaves of batches by dotted name, each in a list."""
    made = {}
    for name in batches[0]:
        values = [batch[name] for batch in batches]
        made |= {f"{prefix}{name}": values} if torch.is_tensor(values[0]) else flat(values, f"{prefix}{name}.")
    return made


def test_the_last_frames_of_columns_begin_at_different_times():
    last = LastFrames(2)
    assert last.columns is None
    first = last.push({"a": np.array([[1], [5]])}, np.array([True, True]))
    second = last.push({"a": np.array([[2], [6]])}, np.array([False, True]))
    assert first["a"].tolist() == [[[0], [1]], [[0], [5]]] and second["a"].tolist() == [[[1], [2]], [[0], [6]]]
    last.reset()
    assert last.push({"a": np.array([[3]])}, np.array([False]))["a"].tolist() == [[[0], [3]]] and last.columns == 1


WORDS = ["env=CartPole-v1", "env.stack=3", "resources=debug", "logger=[]", "model.hidden=[8]"]


def test_a_run_resumes_to_the_same_bits_and_is_played_in_every_way(tmp_path, capsys):
    """dqn's replay holds single frames; a break by a checkpoint begins new stacks."""
    tiny = ["algo=dqn", "algo.learning_starts=40", "algo.batch_size=8", "replay.capacity=500", "checkpoint.every=150"]
    whole, half = tmp_path / "whole", tmp_path / "half"
    assert _dispatch(["train", *tiny, *WORDS, "env_steps=300", f"run_dir={whole}"]) == 0
    assert _dispatch(["train", *tiny, *WORDS, "env_steps=150", f"run_dir={half}"]) == 0
    assert _dispatch(["resume", str(half), "env_steps=300"]) == 0
    trained, other = rlrun.load(whole), rlrun.load(half)
    for mine, theirs in zip(trained.policy.parameters(), other.policy.parameters(), strict=True):
        assert torch.equal(mine, theirs)

    # One observation, a batch of them and rlrun's own rows get the same actions.
    env = registry.Factory(
        cfg=trained.config.env, spec=trained.spec, seeds=rlrun_seeds(), stream="user", learning=False
    )(0, 2)
    rows, is_first = env.reset(0), np.ones(2, dtype=bool)
    alone = rlrun.load(whole)
    trained.reset()
    for _ in range(60):
        assert rows["observation"].shape == (2, 3, 4)
        newest = rows["observation"][:, -1]
        if is_first[0]:
            alone.reset()
        trained.reset(is_first)
        other.reset(is_first)
        action = trained.act(newest)
        assert (action == other.policy_action(rows)).all() and alone.act(newest[0]) == action[0]
        step = env.step(action)
        rows, is_first = step.obs, step.is_first
    with pytest.raises(ValueError, match="remembers 2 episodes and is given 3"):
        trained.act(np.zeros((3, 4), dtype=np.float32))

    capsys.readouterr()
    assert _dispatch(["evaluate", str(whole), "episodes=2", "--json"]) == 0
    played = json.loads(capsys.readouterr().out)
    alone.reset()
    assert played["episodes"] == 2 and isinstance(alone.make_env(), gymnasium.Env)
    assert _dispatch(["export", str(whole), "--formats", "pt2"]) == 0
    assert "acts as the run's own policy" in capsys.readouterr().out


def rlrun_seeds():
    from rlrun.core.seeding import Seeds

    return Seeds(3)


def test_a_run_is_drawn(tmp_path):
    pytest.importorskip("pygame")
    from rlrun.commands.watch import DEFAULTS, WatchOptions, record

    run = tmp_path / "run"
    assert _dispatch(["train", "algo=a2c", *WORDS, "env_steps=40", f"run_dir={run}"]) == 0
    frames: list = []
    options = WatchOptions(**DEFAULTS, episodes=1, max_steps=200, gif=False, imagine=False, window=False)
    returns = record(rlrun.load(run), options, lambda frame, rate: frames.append(frame) is None)
    assert len(frames) == returns[0] + 1 and frames[0].ndim == 3


def test_memory_of_two_steps_is_seen_in_the_stack(tmp_path):
    """RepeatAfterMe pays for the bit before the newest one, which a policy without memory only knows from a stack."""
    run = tmp_path / "run"
    options = [
        "algo.fragment_length=20",
        "algo.batch_size=160",
        "algo.minibatch_size=40",
        "algo.num_epochs=4",
        "algo.lr=0.01",
    ]
    words = [*options, "algo.entropy_coef=0", "env_steps=12000", "stop.return_mean=60", "++env.kwargs.length=80"]
    debug = ["resources=debug", "logger=[]", "model.hidden=[16]", "env=rlrun/RepeatAfterMe-v0", "env.stack=2"]
    assert _dispatch(["train", "algo=ppo", "algo.discount=0", *debug, *words, f"run_dir={run}"]) == 0
    assert json.loads((run / "summary.json").read_text())["status"] == "STOPPED"
