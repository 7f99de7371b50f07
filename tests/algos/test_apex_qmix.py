"""Ape-X around algorithms that learn several agents together: first priorities, epsilons, runs and what is refused."""

import json

import numpy as np
import pytest
import torch
from conftest import same
from families import JOINT_VALUES as JOINT
from wired import Wired

from rlrun.cli import _dispatch
from rlrun.core.batch import Batch
from rlrun.core.errors import UserError
from rlrun.core.schedule import Clock
from rlrun.models.mixers import SumMixer

GAME = ["env=MultiAgentCartPole-v0", "logger=[]", "model.hidden=[8]"]
SMALL = ["algo.inner.num_envs=2", "algo.inner.batch_size=16", "algo.inner.learning_starts=40", "replay.capacity=400"]
SINGLE = ["model/memory=none", "algo.inner.sequence_length=1", "algo.inner.sequence_stride=1", "algo.inner.fragment_length=5",
          "algo.inner.n_step=1"]  # fmt: skip
MEMORY = ["model.memory.size=4", "algo.inner.sequence_length=5", "algo.inner.sequence_stride=5",
          "algo.inner.fragment_length=10", "algo.inner.burn_in=2"]  # fmt: skip


def words(inner, rows):
    return ["algo=apex", f"algo@algo.inner={inner}", *GAME, *SMALL, *rows]


@pytest.mark.parametrize(("rows", "n_step"), [(SINGLE, 1), (MEMORY, 1), (MEMORY, 3)])
@pytest.mark.parametrize("inner", JOINT)
def test_first_priorities_are_those_that_a_learner_with_the_samplers_weights_gives(typed, inner, rows, n_step):
    """The learner unrolls the same rows again, so that this compares two ways to the same number. QMIX's samplers have
    no mixer, for which the sum stands. Agents leave at different times, and episodes end inside sequences."""
    wiring = Wired(typed(*words(inner, rows), "resources=debug", "runner=replay", "replay.alpha=1", "replay.priority_epsilon=0",
                         f"algo.inner.n_step={n_step}", "algo.inner.exploration.epsilon=0.5"))  # fmt: skip
    made, sampler, replay = wiring.algorithm(), wiring.sampler(0), wiring.replay(0)
    learner = made.inner
    for parameter in learner.policy.parameters():
        torch.nn.init.normal_(parameter, 0.0, 0.3, generator=torch.Generator().manual_seed(parameter.numel()))
    learner.target.load_state_dict(learner.policy.state_dict())
    if inner == "qmix":
        learner.mixer = learner.target_mixer = SumMixer()
    sampler.publish(made.policy, Clock())
    for _ in range(40):
        fragments = sampler.take(1)
        replay.add(fragments[0])
        sampler.free(fragments)
    batch = replay.sample(64, Clock())
    alive = batch["obs"]["alive"].bool()
    assert (alive.any(-1) & ~alive.all(-1)).any(), "an agent was gone before the other"
    if rows is MEMORY:
        assert (~batch.valid).any(), "an episode ended inside a sequence"
    with torch.no_grad():
        expected = learner.loss(batch)[1]
    columns = replay.layout.columns
    leaves = replay.draws.tree.leaves[replay.draws.leaf(batch.key.numpy() % columns, batch.key.numpy() // columns)]
    np.testing.assert_allclose(leaves, expected.numpy(), rtol=2e-4, atol=1e-4)
    assert leaves.std() > 0.01


@pytest.mark.parametrize("inner", JOINT)
def test_every_environment_has_an_epsilon_of_its_own_and_its_agents_share_it(typed, inner):
    policy = Wired(typed(*words(inner, MEMORY), "resources=debug", "runner=replay")).algorithm().policy
    envs = 8000
    place = torch.linspace(0, 1, 2).repeat_interleave(envs // 2)  # halves of the first and of the last environment
    state = policy.initial_state(envs, place)
    obs = {"observation": torch.full((envs, 2, 4), 0.5), "alive": torch.ones(envs, 2), "state": torch.zeros(envs, 8)}
    if "prev_action" in policy.spec.obs:
        obs["prev_action"] = torch.zeros(envs, 2, dtype=torch.int64)
    first, rng = torch.ones(envs, dtype=torch.bool), torch.Generator().manual_seed(0)
    with torch.no_grad():
        act = policy.act(Batch(obs), first, state, Clock(), "explore", rng)
        best, _ = policy.greedy(Batch(obs), first, state)
    share = 2 * (act.action != best).float().view(2, -1, 2).mean(1)  # half of the random actions are the best ones
    torch.testing.assert_close(share[0], torch.full((2,), 0.4), atol=0.04, rtol=0)
    assert share[1].max() < 0.01 and torch.equal(act.state["place"], place)


@pytest.mark.parametrize(("inner", "rows"), [("qmix", SINGLE), ("iql", MEMORY)], ids=["qmix", "iql"])
def test_samplers_shards_and_the_learner_train_and_resume(inner, rows, tmp_path):
    run = tmp_path / "run"
    apart = ["resources.num_samplers=2", "runner.num_shards=2", "checkpoint.every=150", "replay.checkpoint=true"]
    assert _dispatch(["train", *words(inner, rows), *apart, "env_steps=300", f"run_dir={run}"]) == 0
    assert _dispatch(["resume", str(run), "env_steps=500"]) == 0
    last = json.loads((run / "progress.jsonl").read_text().splitlines()[-1])
    assert last["env_steps"] >= 500 and last["updates"] > 0 and np.isfinite(last["learn/loss"])
    assert _dispatch(["evaluate", str(run), "episodes=1"]) == 0


def test_one_process_resumes_to_the_same_bits(tmp_path):
    common = ["train", *words("qmix", MEMORY), "resources=debug", "runner=replay", "checkpoint.every=60"]
    assert _dispatch([*common, "env_steps=120", f"run_dir={tmp_path / 'whole'}"]) == 0
    assert _dispatch([*common, "env_steps=60", f"run_dir={tmp_path / 'half'}"]) == 0
    assert _dispatch(["resume", str(tmp_path / "half"), "env_steps=120"]) == 0
    finals = [sorted((tmp_path / name / "checkpoints").glob("0*"))[-1] for name in ("whole", "half")]
    one, other = (torch.load(path / "algorithm.pt", weights_only=True) for path in finals)
    assert same(one, other) and "inner.mixer" in str(one["module"].keys())


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["resources=debug"], "runner=replay has one process"),
        (["env=CartPole-v1"], "CartPole-v1 has one agent, and qmix, vdn, iql and maddpg learn several"),
        (["env=MultiAgentPendulum-v0"], "chooses one of several actions for each agent"),
        (["model/memory=none", "algo.inner.burn_in=2"], "burn_in is for networks with memory"),
        (["algo.inner.input_priorities=false"], "input_priorities must be true"),
        (["algo@algo.inner=sac"], "or with several agents qmix, vdn or iql"),
    ],
)
def test_what_cannot_work_gets_one_sentence(more, said, tmp_path):
    given = {word.partition("=")[0]: word for word in ["algo=apex", "algo@algo.inner=qmix", *GAME[:2], *more]}
    with pytest.raises(UserError) as refused:
        _dispatch(["train", *given.values(), f"run_dir={tmp_path / 'run'}"])
    assert said in str(refused.value) and "\n" not in str(refused.value) and not (tmp_path / "run").exists()
