"""Checks RND: errors, normalisation and running returns by hand, what the predictor learns, and what is refused."""

import copy

import numpy as np
import pytest
import torch
from wired import Wired

from rlrun.algos.rnd import running_returns
from rlrun.core.batch import Batch
from rlrun.core.errors import UserError
from rlrun.core.schedule import Clock

WORDS = ["algo=rnd", "env=CartPole-v1", "resources=debug", "logger=[]", "model.hidden=[8]", "algo.inner.fragment_length=5", "algo.inner.batch_size=20",
         "algo.inner.minibatch_size=20", "algo.feature_size=6", "algo.feature_hidden=[7]", "algo.predictor_hidden=[9]"]  # fmt: skip


def wired(typed, *words):
    wiring = Wired(typed(*WORDS, *words))
    made, sampler = wiring.algorithm(), wiring.sampler(0)
    sampler.publish(made.policy, Clock())
    taken = []
    for _ in range(2):
        fragments = sampler.take(1)
        taken.append(fragments[0].batch.clone())
        sampler.free(fragments)
    return made, taken


def layers(net, x: np.ndarray) -> np.ndarray:
    """Goes through a net of linear layers and ReLUs by hand, in float64."""
    for layer in net.modules():
        if isinstance(layer, torch.nn.Linear):
            x = layer.weight.detach().double().numpy() @ x + layer.bias.detach().double().numpy()
        elif isinstance(layer, torch.nn.ReLU):
            x = np.maximum(x, 0)
    return x


def test_errors_deviations_and_rewards_by_hand(typed):
    """Two batches, so that moments are of all that was seen, and a dead row, which is in none of them."""
    made, batches = wired(typed, "algo.intrinsic_coef=[[0,1.0],[100,3.0]]", "algo.intrinsic_discount=0.8", "algo.observation_clip=1.5")
    given, inner = [], made.inner.update
    made.inner.update = lambda batch, clock: given.append(batch) or inner(batch, clock)
    seen, sums = [], []
    for batch in batches:
        valid = batch.valid.clone()
        valid[2, 1] = False
        batch = batch.replace(valid=valid, reward=torch.where(valid, batch.reward, torch.nan))
        before = copy.deepcopy(made.model)
        metrics = made.update(batch, Clock(50, 1)).metrics
        seen += [batch.obs.observation[t + 1, b].double().numpy() for t in range(5) for b in range(4) if valid[t, b]]
        mean, deviation = np.mean(seen, 0), np.sqrt(np.var(seen, 0) + 1e-8)
        error = np.zeros((5, 4))
        for b in range(4):
            total = 0.0
            for t in range(5):
                if not valid[t, b]:
                    continue
                x = np.clip((batch.obs.observation[t + 1, b].double().numpy() - mean) / deviation, -1.5, 1.5)
                error[t, b] = np.square(layers(before.predictor, x) - layers(before.target, x)).sum()
                total = 0.8 * total + error[t, b]
                sums.append(total)
        scale = np.sqrt(np.var(sums) + 1e-8)
        intrinsic = given[-1].reward - batch.reward
        np.testing.assert_allclose(intrinsic[valid], 2.0 * error[valid.numpy()] / scale, rtol=2e-3, atol=2e-4)
        assert float(metrics["intrinsic_reward"]) == pytest.approx(2.0 * error.sum() / int(valid.sum()) / scale, rel=1e-3)
        assert float(metrics["prediction_error"]) == pytest.approx(error.sum() / int(valid.sum()), rel=1e-3)
        assert float(metrics["intrinsic_deviation"]) == pytest.approx(scale, rel=1e-3)


def test_running_returns_of_hand_made_rows():
    reward = torch.tensor([[1.0, 2.0], [10.0, torch.nan], [100.0, 4.0]])
    valid = torch.tensor([[True, True], [True, False], [True, True]])
    expected = torch.tensor([[1.0, 2.0], [10.5, 2.0], [105.25, 5.0]])
    torch.testing.assert_close(running_returns(reward, valid, 0.5), expected)


def test_only_the_predictor_learns_and_from_a_share_of_the_rows(typed):
    made, (batch, _) = wired(typed, "algo.update_share=0.5", "algo.lr=0.01")
    whole = made.model(batch)
    target = [p.clone() for p in made.model.target.parameters()]
    losses = [float(made.loss(batch.replace(valid=batch.valid & made.drawn(batch.valid)))) for _ in range(300)]
    assert np.std(losses) > 0, "the rows are random"
    assert np.mean(losses) == pytest.approx(float(whole[batch.valid].mean()), rel=0.1)
    first = float(made.update(batch, Clock()).metrics["prediction_error"])
    for number in range(1, 60):
        last = float(made.update(batch, Clock(20 * number, number)).metrics["prediction_error"])
    assert last < 0.5 * first, "what is seen again is known"
    assert all(torch.equal(a, b) for a, b in zip(target, made.model.target.parameters(), strict=True))


def test_choices_are_not_normalised(typed):
    made, (batch, _) = wired(typed, "env=FrozenLake-v1")
    assert len(made.model.filters.filters) == 0
    state = int(batch.obs.observation[3, 1])
    x = np.eye(16)[state]
    error = np.square(layers(made.model.predictor, x) - layers(made.model.target, x)).sum()
    assert float(made.model(batch)[2, 1]) == pytest.approx(error, rel=1e-4)


REPLAYS = {"dqn": ["env=CartPole-v1", "algo.inner.n_step=3", "replay=prioritized"], "sac": ["env=Pendulum-v1"]}


@pytest.mark.parametrize("outer", ["rnd", "re3", "icm"])
@pytest.mark.parametrize("inner", REPLAYS)
def test_around_algorithms_with_a_replay(typed, outer, inner):
    """Every row drawn is paid, a row that is drawn again is paid anew, and a copy continues to the bit."""
    words = [f"algo={outer}", f"algo@algo.inner={inner}", *REPLAYS[inner], "env.max_episode_steps=9", "resources=debug", "logger=[]",
             "algo.inner.learning_starts=30", "algo.inner.batch_size=32", "model.hidden=[8]"]  # fmt: skip
    wiring = Wired(typed(*words))
    made, sampler, replay = wiring.algorithm(), wiring.sampler(0), wiring.replay(0)
    sampler.publish(made.policy, Clock())
    for _ in range(60):
        fragments = sampler.take(1)
        replay.add(fragments[0])
        sampler.free(fragments)
    batch = replay.sample(32, Clock())
    rows = 3 if inner == "dqn" else 1
    assert batch.reward.shape == (rows, 32) and len(batch.obs.observation) == len(batch.is_first) == rows + 1
    assert batch.valid[0].all() and batch.valid.all() == (inner == "sac"), "fragments are whole and begin with a live row"
    given, learn = [], made.inner.update
    made.inner.update = lambda batch, clock: given.append(batch.reward) or learn(batch, clock)
    for number in range(3):
        metrics = made.update(batch, Clock(100 * number, number)).metrics
        assert float(metrics["intrinsic_reward"]) > 0
    paid = [reward - batch.reward for reward in given]
    assert (paid[0][batch.valid] >= 0).all() and paid[0][batch.valid].max() > 0
    assert torch.equal(paid[0], paid[2]) == (outer == "re3"), "networks that learn are surprised less and less"
    again = Wired(typed(*words, "seed=7")).algorithm()
    again.load_state(copy.deepcopy(made.state()))
    for one in (made, again):
        one.update(batch, Clock(300, 3))
    assert all(torch.equal(a, b) for a, b in zip(made.state_dict().values(), again.state_dict().values(), strict=True))
    assert {"optimizer"} <= {name for name, _ in again.optimizers()} or outer == "re3"


@pytest.mark.parametrize("outer", ["rnd", "re3", "icm"])
def test_images_go_through_convolutions(typed, outer):
    from rlrun.models.encoders import ImageEncoder

    made = Wired(typed(f"algo={outer}", "env=rlrun/EverySpace-v0", "++env.kwargs.image=true", "resources=debug", "logger=[]", "algo.inner.fragment_length=5", "algo.inner.batch_size=20",
                       "algo.inner.minibatch_size=20")).algorithm()  # fmt: skip
    own = made.encoder if outer == "re3" else made.model
    assert any(isinstance(part, ImageEncoder) for part in own.modules())


REFUSED = [
    (["algo@algo.inner=es"], "es cannot be inside {}: it learns from returns alone"),
    (["algo@algo.inner=qmix", "env=TwoStepGame-v0"], "qmix cannot be inside {}: it learns all agents of an environment together"),
    (["algo@algo.inner=maml"], "maml cannot be inside {}: it adapts to tasks"),
    (["algo@algo.inner=mbmpo"], "mbmpo cannot be inside {}: it learns from imagined rows"),
    (["algo@algo.inner=bc"], "bc cannot be inside {}: its options have no reward_clip"),
    (["algo@algo.inner=a3c"], "a3c cannot be inside {}.*a2c is its synchronous form"),
    (["algo@algo.inner=dqn", "replay=prioritized", "algo.inner.input_priorities=true"], "samplers know no intrinsic reward"),
]  # fmt: skip


@pytest.mark.parametrize("outer", ["rnd", "re3", "icm"])
def test_algorithms_that_cannot_be_inside_are_refused(typed, outer):
    from rlrun.machine.machine import Machine
    from rlrun.runtime.plan import plan

    for words, sentence in REFUSED:
        with pytest.raises(UserError, match=sentence.format(outer)):
            typed(f"algo={outer}", "env=CartPole-v1", *words)
    with pytest.raises(UserError, match=f"{outer} rewards what is played, and cql learns from data alone"):
        plan(typed(f"algo={outer}", "env=Pendulum-v1", "algo@algo.inner=cql"), Machine(cores=2))
    plan(typed(f"algo={outer}", "env=Pendulum-v1", "algo@algo.inner=cql", "runner=replay", "resources=debug"), Machine(cores=2))


def test_sentences(typed):
    with pytest.raises(UserError, match="weight that with intrinsic_coef"):
        Wired(typed(*WORDS, "algo.inner.normalize_reward=true")).algorithm()
    with pytest.raises(UserError, match="more than the 4 columns"):
        Wired(typed(*WORDS, "algo.num_minibatches=5")).algorithm()
    with pytest.raises(UserError, match="update_share must be above 0 and at most 1"):
        typed(*WORDS, "algo.update_share=0")
    assert isinstance(wired(typed)[1][0], Batch)
