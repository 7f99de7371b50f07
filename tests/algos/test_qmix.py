"""QMIX, VDN and independent Q-learning: their identities, and losses worked out by hand."""

import itertools
import json

import numpy as np
import pytest
import torch
from conftest import same, small
from families import JOINT_VALUES
from wired import Wired

from rlrun.cli import _dispatch
from rlrun.core.batch import Batch
from rlrun.core.errors import UserError
from rlrun.core.schedule import Clock
from rlrun.models.mixers import MonotonicMixer, SumMixer

SINGLE = ["model/memory=none", "algo.sequence_length=1", "algo.sequence_stride=1", "algo.fragment_length=1"]
CART = ["env=MultiAgentCartPole-v0", "resources=debug", "logger=[]"]


def tiny(algo):
    """The small test's words but for the environment, which every test names itself."""
    return [word for word in small(algo, "tiny") if not word.startswith("env=")]


def plain(algo):
    """The same words for a network without memory."""
    gone = ("model.memory", "algo.sequence", "algo.fragment")
    return [word for word in tiny(algo) if not word.startswith(gone)] + SINGLE


def made(typed, algo, *words):
    wiring = Wired(typed(*(plain(algo) if SINGLE[0] in words else tiny(algo)), *CART, *words))
    return wiring, wiring.algorithm()


def batch(wiring, rows, columns, seed=0, dead=None):
    """Random rows [rows (+ 1), columns] as replay gives them. dead: (row, column, agent) that is not there."""
    rng = torch.Generator().manual_seed(seed)
    spec, needs = wiring.spec, wiring.needs
    agents, actions = len(spec.agents.names), spec.agent.action.n
    alive = torch.ones(rows + 1, columns, agents, dtype=torch.int64)
    for t, b, n in dead or ():
        alive[t:, b, n] = 0
    obs = {
        "observation": torch.randn(rows + 1, columns, *spec.observation.shape, generator=rng),
        "alive": alive,
        "state": torch.randn(rows + 1, columns, *spec.obs["state"].shape, generator=rng),
    }
    if "prev_action" in spec.obs:
        obs["prev_action"] = torch.randint(actions, (rows + 1, columns, agents), generator=rng)
    policy = wiring.policy_factory(acting=False)()
    core = policy.initial_state(columns).map(lambda x: torch.randn(x.shape, generator=rng).unsqueeze(0))
    return Batch(
        obs=Batch(obs),
        action=torch.randint(actions, (rows, columns, agents), generator=rng),
        reward=torch.randn(rows, columns, agents, generator=rng) * alive[:-1],
        terminated=torch.rand(rows, columns, generator=rng) < 0.2,
        truncated=torch.zeros(rows, columns, dtype=torch.bool),
        valid=torch.ones(rows, columns, dtype=torch.bool),
        is_first=torch.zeros(rows + 1, columns, dtype=torch.bool),
        weight=torch.rand(columns, generator=rng) + 0.5,
        **({"core": core} if needs.core_every and len(core) else {}),
    )


def test_the_sum_is_the_sum():
    q = torch.randn(3, 4, requires_grad=True)
    total = SumMixer()(q, torch.randn(3, 2))
    total.sum().backward()
    assert torch.equal(total, q.sum(-1)) and torch.equal(q.grad, torch.ones_like(q))


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("agents", [1, 2, 5])
def test_the_teams_value_rises_with_every_agents(agents, layers):
    torch.manual_seed(agents)
    mixer = MonotonicMixer(agents, 3, 8, layers, 16)
    q, state = torch.randn(200, agents, requires_grad=True), torch.randn(200, 3)
    mixer(q, state).sum().backward()
    assert (q.grad >= 0).all() and (q.grad > 0).any()
    if agents == 2:  # the best joint action is that of each agent's own best
        values = torch.randn(50, 2, 4)
        table = mixer(
            torch.stack([values[:, 0, :, None].expand(50, 4, 4), values[:, 1, None].expand(50, 4, 4)], -1),
            state[:50, None, None].expand(50, 4, 4, 3),
        )
        best = table.flatten(1).max(-1).values
        own = mixer(values.max(-1).values, state[:50])
        assert torch.allclose(best, own, atol=1e-6)


def test_the_loss_is_that_of_the_paper(typed):
    """Written slowly, one column and one agent at a time, with an agent that is not there."""
    wiring, algorithm = made(typed, "qmix", *SINGLE, "algo.double=false", "algo.discount=0.9")
    torch.manual_seed(1)
    for parameter in algorithm.target.parameters():
        parameter.add_(torch.randn(parameter.shape) * 0.1)
    rows = batch(wiring, 1, 6, dead=[(0, 2, 1), (1, 3, 0)])
    loss, priority, _ = algorithm.loss(rows)
    errors = []
    for b in range(6):
        one = rows.map(lambda x, b=b: x[:, b : b + 1] if x.ndim > 1 else x[b : b + 1])
        q = algorithm.policy(one.obs[:1], one.is_first[:1], Batch())[0][0, 0]
        following = algorithm.target(one.obs[1:], one.is_first[1:], Batch())[0][0, 0]
        there, later = one.obs["alive"][0, 0], one.obs["alive"][1, 0]
        taken = torch.stack([q[n, one.action[0, 0, n]] if there[n] else torch.zeros(()) for n in range(2)])
        value = torch.stack([following[n].max() if later[n] else torch.zeros(()) for n in range(2)])
        y = one.reward[0, 0].sum()
        if not one.terminated[0, 0]:
            y = y + 0.9 * algorithm.target_mixer(value, one.obs["state"][1, 0])
        errors.append(y - algorithm.mixer(taken, one.obs["state"][0, 0]))
    errors = torch.stack(errors)
    assert torch.allclose(priority, errors.abs(), atol=1e-5)
    assert torch.allclose(loss, (rows.weight * 0.5 * errors.square()).mean(), atol=1e-6)


@pytest.mark.parametrize("algo", JOINT_VALUES)
def test_an_absent_agent_changes_no_loss(typed, algo):
    wiring, algorithm = made(typed, algo, *SINGLE)
    gone = [(0, 1, 1), (0, 4, 0)]
    rows = batch(wiring, 1, 6, dead=gone)
    other = rows.map(torch.clone)
    for t, b, n in gone:
        other.obs["observation"][t:, b, n] = 9.0
        other.action[t:, b, n] = 1 - other.action[t:, b, n]
    mine, theirs = algorithm.loss(rows)[0], algorithm.loss(other)[0]
    assert torch.equal(mine, theirs)
    gradients = [
        torch.autograd.grad(loss, list(algorithm.policy.parameters()), allow_unused=True) for loss in (mine, theirs)
    ]
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


@pytest.mark.parametrize("algo", ["vdn", "iql"])
def test_a_team_of_one_is_dqn_to_the_bit(typed, algo):
    words = ["algo.agent_id=false", "algo.double=true", "algo.discount=0.97", "env.kwargs.num_agents=1"]
    wiring, algorithm = made(typed, algo, *SINGLE, *words[:3], "++" + words[3])
    dqn = Wired(
        typed(
            *[w for w in tiny("dqn") if "n_step" not in w],
            "env=CartPole-v1",
            "resources=debug",
            "logger=[]",
            "algo=dqn",
            "algo.head.dueling=false",
            "algo.huber_delta=null",
            "model.activation=relu",
            "model.init=default",
            *words[1:3],
        )
    ).algorithm()
    dqn.policy.load_state_dict(algorithm.policy.state_dict())
    dqn.target.load_state_dict(algorithm.target.state_dict())
    for net in (algorithm.target, dqn.target):
        torch.manual_seed(2)
        for parameter in net.parameters():
            parameter.add_(torch.randn(parameter.shape) * 0.1)
    rows = batch(wiring, 1, 8)
    single = rows.replace(
        obs=Batch(observation=rows.obs["observation"][:, :, 0]), action=rows.action[..., 0], reward=rows.reward[..., 0]
    )
    losses = [algorithm.loss(rows)[0], dqn.loss(single)[0]]
    assert torch.equal(*losses)
    gradients = [
        torch.autograd.grad(loss, list(one.policy.parameters()))
        for loss, one in zip(losses, (algorithm, dqn), strict=True)
    ]
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


@pytest.mark.parametrize("algo", JOINT_VALUES)
def test_dead_rows_at_the_end_change_nothing(typed, algo):
    wiring, algorithm = made(typed, algo)
    rows = batch(wiring, 5, 4)
    cut = rows.valid.clone()
    cut[3:] = False
    short = rows.replace(valid=cut)
    noise = short.map(torch.clone)
    noise.obs["observation"][4:] = 7.0
    noise.reward[3:] = 100.0
    noise.terminated[3:] = True
    parameters = list(algorithm.policy.parameters())
    found = []
    for one in (short, noise):
        loss = algorithm.loss(one)[0]
        found.append((loss, torch.autograd.grad(loss, parameters)))
    # The same without the dead rows that stand behind the one that ends the episode.
    cut = {
        name: value.map(lambda x: x[:5])
        if name == "obs"
        else value[:5]
        if name == "is_first"
        else value
        if name in ("weight", "core")
        else value[:4]
        for name, value in short.items()
    }
    loss = algorithm.loss(Batch(cut))[0]
    found.append((loss, torch.autograd.grad(loss, parameters)))
    for other, gradients in found[1:]:
        assert torch.allclose(found[0][0], other, rtol=1e-6)
        assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(found[0][1], gradients, strict=True))


def test_truncation_bootstraps_from_the_last_observation_and_termination_does_not(typed):
    wiring, algorithm = made(typed, "vdn", *SINGLE, "algo.discount=0.5")
    with torch.no_grad():
        for parameter in algorithm.target.parameters():
            parameter.zero_()
        list(algorithm.target.parameters())[-1].fill_(1e7)  # each agent's value from the target network
    rows = batch(wiring, 1, 2)
    rows = rows.replace(reward=torch.ones_like(rows.reward), terminated=torch.tensor([[True, False]]))
    *_, shares = algorithm.loss(rows)
    assert float(shares["target"]) == pytest.approx((2.0 + (2.0 + 0.5 * 2e7)) / 2)


def test_permuting_agents_permutes_their_values(typed):
    wiring, algorithm = made(typed, "vdn", *SINGLE, "algo.agent_id=false", "++env.kwargs.num_agents=3")
    rows = batch(wiring, 1, 4)
    order = torch.tensor([2, 0, 1])
    moved = rows.replace(
        obs=rows.obs.replace(observation=rows.obs["observation"][:, :, order]),
        action=rows.action[..., order],
        reward=rows.reward[..., order],
    )
    q, other = (algorithm.unroll(algorithm.policy, one) for one in (rows, moved))
    assert torch.allclose(q[:, :, order], other, atol=1e-6)
    assert torch.allclose(algorithm.loss(rows)[0], algorithm.loss(moved)[0], atol=1e-6)


def test_the_mixer_is_tied_to_the_order_of_agents():
    """Permuted agents have another value of the team, and the same one where the state and the mixer's weights are
    permuted with them."""
    torch.manual_seed(0)
    order, mixer = torch.tensor([2, 0, 1]), MonotonicMixer(3, 6, 8, 1, 16)
    q, seen = torch.randn(20, 3), torch.randn(20, 3, 2)  # the state is all observations side by side
    told = mixer(q, seen.flatten(1))
    assert not torch.allclose(told, mixer(q[:, order], seen.flatten(1)), atol=1e-3)
    moved, columns = MonotonicMixer(3, 6, 8, 1, 16), torch.arange(6).view(3, 2)[order].flatten()
    moved.load_state_dict(mixer.state_dict())
    with torch.no_grad():
        for layer in (moved.first, moved.second, moved.first_bias, moved.value[0]):
            layer.weight.copy_(layer.weight[:, columns])
        for part in (moved.first.weight, moved.first.bias):
            part.copy_(part.view(3, 8, *part.shape[1:])[order].flatten(0, 1))
    assert torch.allclose(told, moved(q[:, order], seen[:, order].flatten(1)), atol=1e-6)


def test_rows_keep_their_place_among_columns_and_agents(typed):
    """Every observation encodes its own row, column and agent."""
    wiring, algorithm = made(typed, "iql", *SINGLE, "algo.discount=0.5", "++env.kwargs.num_agents=3")
    rows = batch(wiring, 1, 4)
    number = 100.0 * torch.arange(2).view(2, 1, 1) + 10.0 * torch.arange(4).view(1, 4, 1) + torch.arange(3)
    obs = rows.obs.replace(observation=number.unsqueeze(-1).expand_as(rows.obs["observation"]))
    inputs = algorithm.policy.inputs(obs.replace(is_first=rows.is_first))  # [T + 1, B * N, D]
    for t, b, n in itertools.product(range(2), range(4), range(3)):
        assert inputs[t, 3 * b + n, 0] == number[t, b, n]
        assert inputs[t, 3 * b + n, -3:].tolist() == [agent == n for agent in range(3)]
    ended = torch.tensor([[False, True, False, False]])
    target = algorithm.target_of(
        rows.replace(reward=number[:1], terminated=ended), 1000 + number[:1], torch.ones(1, 4, 3, dtype=torch.bool)
    )
    wanted = number[0] + 0.5 * (1000 + number[0])
    wanted[1] = number[0, 1]
    assert torch.equal(target[0], wanted)


def test_the_targets_memory_begins_at_the_first_row(typed):
    """The target network is unrolled over all rows, as the online one is, and not from the second one on."""
    wiring, algorithm = made(typed, "qmix")
    with torch.no_grad():
        for parameter in algorithm.target.parameters():
            parameter.add_(0.1)
    rows = batch(wiring, 5, 3)
    following, _ = algorithm.values(rows)
    state = rows.core[0]
    for t in range(6):
        one, state = algorithm.target(rows.obs[t : t + 1], rows.is_first[t : t + 1], state)
        assert t == 0 or torch.allclose(one[0], following[t - 1], atol=1e-6)


def test_memory_is_unrolled_as_it_acted(typed):
    """Unrolling all rows at once equals acting row by row, with the memory and the last action reset at is_first."""
    wiring, algorithm = made(typed, "qmix")
    rows = batch(wiring, 5, 3)
    first = rows.is_first.clone()
    first[2, 1] = True
    rows = rows.replace(is_first=first)
    q = algorithm.unroll(algorithm.policy, rows)
    state = rows.core[0]
    for t in range(6):
        one, state = algorithm.policy(rows.obs[t : t + 1], first[t : t + 1], state)
        assert torch.allclose(one[0], q[t], atol=1e-6)
    fresh = rows.obs.map(lambda x: x[2:3, 1:2])
    fresh = fresh.replace(prev_action=1 - fresh["prev_action"])
    zero = algorithm.policy.initial_state(1)
    alone = algorithm.policy(fresh, torch.ones(1, 1, dtype=torch.bool), zero)[0]
    assert torch.allclose(alone[0, 0], q[2, 1], atol=1e-6)


def test_an_agent_that_joins_later_begins_anew(typed):
    """Its memory is empty and its last action is number 0, whatever went on while it was not there."""
    wiring, algorithm = made(typed, "qmix")
    policy, rows = algorithm.policy, batch(wiring, 5, 3)
    rows.obs["alive"][:3, 0, 1] = 0
    q, state, going = algorithm.unroll(policy, rows), rows.core[0], torch.zeros(6, 1, dtype=torch.bool)
    for t in range(6):
        one, state = policy(rows.obs[t : t + 1], rows.is_first[t : t + 1], state)
        there = rows.obs["alive"][t].bool()
        assert torch.allclose(one[0][there], q[t][there], atol=1e-6), "as it acted"
    since = policy(rows.obs.map(lambda x: x[3:, :1]), going[3:], policy.initial_state(1))[0]
    assert torch.allclose(since[:, 0, 1], q[3:, 0, 1], atol=1e-6)
    before = policy(rows.obs.map(lambda x: x[:, :1]), going, rows.core[0][:1])[0]
    assert torch.allclose(before[:, 0, 0], q[:, 0, 0], atol=1e-6), "the memory of an agent that was there goes on"
    away = rows.obs[0].map(lambda x: x[:1].repeat_interleave(50, 0))
    first, none, rng = torch.ones(50, dtype=torch.bool), policy.initial_state(50), torch.Generator().manual_seed(0)
    for told in (policy.act(away, first, none, Clock(), "explore", rng).action, policy.greedy(away, first, none)[0]):
        assert not told[:, 1].any()


def test_actions_outside_a_mask_are_never_chosen(typed):
    wiring = Wired(typed(*plain("qmix"), "env=zoo:TupleEnv", "resources=debug", "logger=[]", *SINGLE))
    policy, rng = wiring.policy_factory(acting=True)(), torch.Generator().manual_seed(0)
    env = wiring.plan.make_env()(0, 2)
    obs = env.reset(0)
    rows = Batch({name: torch.from_numpy(np.repeat(part, 200, 0)) for name, part in obs.items()})
    chosen = policy.act(
        rows, torch.ones(400, dtype=torch.bool), policy.initial_state(400), Clock(), "explore", rng
    ).action
    assert set(chosen[:, 0].tolist()) == {0, 1} and set(chosen[:, 1].tolist()) == {0, 1, 2, 3}


def test_a_joint_row_holds_all_agents(typed):
    wiring = Wired(typed(*plain("qmix"), "env=zoo:CountingAgents", "resources=debug", "logger=[]", *SINGLE))
    assert wiring.spec.notes and "side by side" in wiring.spec.notes[0] and wiring.spec.obs["state"].shape == (9,)
    env = wiring.plan.make_env()(0, 2)
    before = {name: np.array(part) for name, part in env.reset(0).items()}
    lines = []
    for _ in range(7):
        step = env.step(np.zeros((2, 3), dtype=np.int64))
        lines.append(
            (
                before["alive"][0].tolist(),
                step.reward[0].tolist(),
                bool(step.valid[0]),
                bool(step.terminated[0]),
                bool(step.truncated[0]),
                bool(step.is_first[0]),
            )
        )
        before = {name: np.array(part) for name, part in step.obs.items()}
    now = [1 + t for t in range(6)]
    assert [line[0] for line in lines] == [[1, 1, 0]] * 2 + [[1, 1, 1]] + [[0, 1, 1]] * 4, (
        "alive also at the last observation"
    )
    assert [line[1] for line in lines[:6]] == [[t if t <= 3 else 0, 100 + t, 200 + t if t >= 3 else 0] for t in now]
    assert [line[2] for line in lines] == [True] * 6 + [False]
    assert [line[3] for line in lines] == [False] * 7 and [line[4] for line in lines] == [False] * 5 + [True, False]
    assert [line[5] for line in lines] == [False] * 6 + [True]


def test_a_run_resumes_to_the_same_bits_and_acts(tmp_path):
    import rlrun

    words = ["train", *tiny("qmix"), *CART, "checkpoint.every=60", "seed=2"]
    assert _dispatch([*words, "env_steps=120", f"run_dir={tmp_path / 'whole'}"]) == 0
    assert _dispatch([*words, "env_steps=60", f"run_dir={tmp_path / 'half'}"]) == 0
    assert _dispatch(["resume", str(tmp_path / "half"), "env_steps=120"]) == 0
    finals = [
        sorted(p for p in (tmp_path / name / "checkpoints").iterdir() if p.is_dir())[-1] for name in ("whole", "half")
    ]
    one, other = (torch.load(path / "algorithm.pt", weights_only=True) for path in finals)
    assert same(one, other)
    row = json.loads((tmp_path / "whole" / "progress.jsonl").read_text().splitlines()[-1])
    assert row["updates"] > 0 and np.isfinite(row["learn/loss"])
    trained = rlrun.load(tmp_path / "whole")
    env = trained.make_env()
    obs, _ = env.reset(seed=0)
    while env.agents:
        actions = trained.act(obs)
        obs = {agent: seen for agent, seen in env.step(actions)[0].items() if agent in env.agents}
        assert set(actions) >= set(obs)
    assert _dispatch(["evaluate", str(tmp_path / "whole"), "episodes=2"]) == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["algo=qmix", "env=CartPole-v1"], "CartPole-v1 has one agent, and qmix, vdn, iql and maddpg learn several"),
        (["algo=vdn", "env=TwoStepGame-v0", "algo.sequence_length=1", "algo.n_step=4"], "n_step 4 is longer than the sequences"),
        (["algo=iql", "env=TwoStepGame-v0", "algo.sequence_length=1", "algo.lambda_=0.9"], "sequence_length is 1: set it to 0"),
        (["algo=qmix", "env=MultiAgentPendulum-v0"], "chooses one of several actions for each agent"),
        (
            ["algo=vdn", "env=TwoStepGame-v0", "model/memory=none", "algo.burn_in=2"],
            "burn_in is for networks with memory",
        ),
        (["algo=qmix", "env=TwoStepGame-v0", "algo.exploration.kind=soft_q"], "several explore by epsilon_greedy"),
        (["algo=qmix", "env=zoo:ImageAgents"], "ImageAgents shows images, and this policy takes vectors"),
    ],
)
def test_what_does_not_fit_is_said_before_anything_starts(typed, words, said):
    with pytest.raises(UserError, match=said):
        Wired(typed(*words, "resources=debug", "logger=[]")).algorithm()


# The learnt tables of the two-step game with uniformly random actions: Rashid et al. 2018, appendix B; VDN's are the
# least-squares solution.
TABLES = {
    "qmix": (8.0, [[[6.93, 6.93], [7.92, 7.92]], [[7, 7], [7, 7]], [[0, 1], [1, 8]]]),
    "vdn": (7.0, [[[6.93, 6.93], [6.435, 6.435]], [[7, 7], [7, 7]], [[-1.5, 2.5], [2.5, 6.5]]]),
}


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("algo", TABLES)
def test_the_tables_of_the_two_step_game_are_learnt(algo, seed, tmp_path):
    assert (
        _dispatch(
            ["train", f"tuned={algo}/two_step_uniform", f"seed={seed}", "logger=[]", f"run_dir={tmp_path / 'run'}"]
        )
        == 0
    )
    from rlrun.core.algorithm import LearnerContext
    from rlrun.runtime.rundir import checkpoints_of
    from rlrun.runtime.trained import load

    trained = load(tmp_path / "run")
    config = trained.config
    learnt = config.algorithm(
        trained.policy, trained.spec, config.algo, LearnerContext(torch.device("cpu"), torch.Generator())
    )
    learnt.load_state(checkpoints_of(tmp_path / "run").load("last", parts=("algorithm",))[0]["algorithm"])
    greedy, tables = TABLES[algo]
    best = []
    for place, table in enumerate(tables):
        seen = torch.eye(3)[place]
        obs = Batch(observation=seen.expand(1, 1, 2, 3), alive=torch.ones(1, 1, 2, dtype=torch.int64))
        with torch.no_grad():
            q = learnt.policy(obs, torch.zeros(1, 1, dtype=torch.bool), Batch())[0][0, 0]
            found = torch.stack(
                [torch.stack([learnt.mixer(torch.stack([q[0, a], q[1, b]]), seen) for b in range(2)]) for a in range(2)]
            )
        assert torch.allclose(found, torch.tensor(table, dtype=torch.float32), atol=0.2), found
        best.append(q.argmax(-1).tolist())
    from rlrun.envs.games import TwoStep

    assert TwoStep.PAYS[best[0][0]][best[1 + best[0][0]][0]][best[1 + best[0][0]][1]] == greedy


@pytest.mark.slow
@pytest.mark.parametrize(("algo", "reached"), [("qmix", {5.0, 6.0}), ("vdn", {5.0})])
def test_climbing_ends_where_a_monotonic_value_must(algo, reached, tmp_path, capsys):
    """Neither can represent the optimum of 11 with uniformly random actions: a run that finds it has a fault."""
    words = [
        f"algo={algo}",
        "env=MatrixGame-v0",
        "++env.kwargs={payoff: climbing, rounds: 1}",
        *SINGLE,
        "model.hidden=[64]",
        "algo.batch_size=64",
        "algo.replay_ratio=16",
        "algo.learning_starts=100",
        "algo.exploration.epsilon=1.0",
        "replay.capacity=2000",
        "resources.inference=serial",
        "env_steps=10000",
        "seed=1",
        "logger=[]",
    ]
    assert _dispatch(["train", *words, f"run_dir={tmp_path / 'run'}"]) == 0
    capsys.readouterr()
    assert _dispatch(["evaluate", str(tmp_path / "run"), "episodes=1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["return_mean"] in reached


@pytest.mark.parametrize("algo", ["qmix", "vdn", "iql"])
def test_a_sequence_without_memory_is_its_single_rows(typed, algo):
    """The same loss and gradients, although the sequence computes the values of inner rows once."""
    wiring, single = made(typed, algo, *SINGLE)
    _, several = made(
        typed, algo, *SINGLE[:1], "algo.sequence_length=4", "algo.sequence_stride=4", "algo.fragment_length=4"
    )
    several.load_state_dict(single.state_dict())
    rows = batch(wiring, 4, 3, dead=[(2, 1, 0)])
    apart = Batch(
        {
            name: torch.cat([value[t : t + 2] for t in range(4)], 1)
            if name == "is_first"
            else value.map(lambda x: torch.cat([x[t : t + 2] for t in range(4)], 1))
            if name == "obs"
            else value.repeat(4)
            if name == "weight"
            else value.map(lambda x: x.repeat(1, 4, *[1] * (x.dim() - 2)))
            if name == "core"
            else value.flatten(0, 1).unsqueeze(0)
            for name, value in rows.items()
        }
    )
    for algorithm, seen in ((several, rows), (single, apart)):
        algorithm.loss(seen)[0].backward()
    for one, other in zip(single.parameters(), several.parameters(), strict=True):
        assert (one.grad is None) == (other.grad is None)
        if one.grad is not None:
            torch.testing.assert_close(one.grad, other.grad, atol=1e-6, rtol=1e-5)
    assert any(one.grad is not None and one.grad.any() for one in single.parameters())


@pytest.mark.parametrize("algo", ["qmix", "vdn"])
def test_only_the_sum_of_the_rewards_counts(typed, algo):
    """A team that is paid together learns what one learns whose agents are paid parts of the same sum."""
    wiring, algorithm = made(typed, algo)
    rows, losses = batch(wiring, wiring.needs.rows, 3), []
    total = rows.reward.sum(-1)
    for share in (0.5, 1.0, -2.0):
        parts = torch.stack([share * total, (1 - share) * total], -1)
        losses.append(float(algorithm.loss(rows.replace(reward=parts))[0].detach()))
    assert losses == pytest.approx([losses[0]] * 3, rel=1e-5) and losses[0] > 0
