"""MADDPG: its losses by hand, and what must be equal."""

import json

import numpy as np
import pytest
import torch
from conftest import same, small
from wired import Wired

from rlrun.cli import _dispatch
from rlrun.core.batch import Batch
from rlrun.core.errors import UserError
from rlrun.core.schedule import Clock
from rlrun.ops.gumbel import gumbel, straight_through

CHOICES, NUMBERS = "MultiAgentCartPole-v0", "MultiAgentPendulum-v0"
PLAIN = ["resources=debug", "logger=[]"]


def tiny(*words):
    return [word for word in small("maddpg", "tiny") if not word.startswith("env=")] + PLAIN + list(words)


def shaken(*nets):
    """Makes targets differ from the networks that they follow."""
    torch.manual_seed(7)
    with torch.no_grad():
        for net in nets:
            for parameter in net.parameters():
                parameter.add_(0.3 * torch.randn(parameter.shape))


def made(typed, *words, env=CHOICES, agents=2):
    more = [f"++env.kwargs.num_agents={agents}"] if env in (CHOICES, NUMBERS) else []
    wiring = Wired(typed(*tiny(f"env={env}", *more, *words)))
    algorithm = wiring.algorithm()
    shaken(algorithm.target_actors, algorithm.target_critics)
    return wiring, algorithm


def batch(wiring, columns=8, rows=1, seed=0, dead=()):
    """Random rows as replay gives them. dead: (row, column, agent) that is not there any more."""
    rng = torch.Generator().manual_seed(seed)
    spec = wiring.spec
    agents = len(spec.agents.names)
    alive = torch.ones(rows + 1, columns, agents, dtype=torch.int64)
    for t, b, n in dead:
        alive[t:, b, n] = 0
    if spec.action.kind == "box":
        action = 2 * torch.rand(rows, columns, *spec.action.shape, generator=rng) - 1
    else:
        action = torch.randint(spec.agent.action.n, (rows, columns, agents), generator=rng)
    return Batch(
        obs=Batch(
            observation=torch.randn(rows + 1, columns, *spec.observation.shape, generator=rng),
            alive=alive,
            state=torch.zeros(rows + 1, columns, *spec.obs["state"].shape),
        ),
        action=action,
        reward=torch.randn(rows, columns, agents, generator=rng) * alive[:-1],
        terminated=torch.rand(rows, columns, generator=rng) < 0.3,
        truncated=torch.zeros(rows, columns, dtype=torch.bool),
        valid=torch.ones(rows, columns, dtype=torch.bool),
        is_first=torch.zeros(rows + 1, columns, dtype=torch.bool),
        weight=torch.rand(columns, generator=rng) + 0.5,
    )


def losses(algorithm, rows):
    """The losses of every network from the same random numbers, and their gradients."""
    algorithm.ctx.rng.manual_seed(3)
    found = []
    for optimizer in (*algorithm.critic_optimizers, *algorithm.actor_optimizers):
        optimizer.apply = lambda clock: {"grad_norm": 0.0, "lr": 0.0}  # the weights stay
    metrics, writes = algorithm.learn(rows, Clock())
    for optimizer in (*algorithm.critic_optimizers, *algorithm.actor_optimizers):
        found.append(optimizer.whole.grad.clone())
    return metrics, writes["priority"], found


def mlp(net, x):
    """A critic of one net [inputs, outputs], layer by layer."""
    layers = [part for part in net.net if hasattr(part, "weight")]
    for layer in layers[:-1]:
        x = torch.relu(x @ layer.weight[0] + layer.bias[0, 0])
    return (x @ layers[-1].weight[0] + layers[-1].bias[0, 0])[0]


def actor(net, x):
    for layer in net.hidden:
        x = layer(x)
    return net.head.linear(x)


@pytest.mark.parametrize("critic_sees", ["all", "own"])
@pytest.mark.parametrize("share", ["true", "false"])
def test_the_losses_are_those_of_the_paper(typed, share, critic_sees):
    """Equations 5 and 6 with OpenAI's regularisation, one row and one agent at a time; one agent leaves in one row and
    is missing in another. Continuous actions, so that nothing is drawn."""
    wiring, one = made(
        typed, f"algo.share={share}", f"algo.critic_sees={critic_sees}", "algo.actor_reg=0.1", "algo.discount=0.9",
        env=NUMBERS, agents=3,
    )  # fmt: skip
    rows = batch(wiring, columns=6, dead=[(0, 2, 1), (1, 3, 0)])
    metrics, priority, _ = losses(one, rows)
    obs, alive = rows.obs["observation"], rows.obs["alive"].float()

    def told(x, n):
        return torch.cat([x, torch.eye(3)[n]]) if share == "true" else x

    def q(critics, n, seen, action):
        seen, action = (seen[n], action[n]) if critic_sees == "own" else (seen.flatten(), action.flatten())
        return mlp(critics[0 if share == "true" else n], torch.cat([told(seen, n), action]))

    def mu(actors, n, seen):
        return actor(actors[0 if share == "true" else n], told(seen[n], n))

    policy, critic_error, actor_error, size = one.policy.actors, torch.zeros(3), torch.zeros(3), torch.zeros(6, 3)
    for b in range(6):
        seen, then = (obs[t, b] * alive[t, b].unsqueeze(-1) for t in range(2))
        done = rows.action[0, b] * alive[0, b].unsqueeze(-1)
        next_action = torch.stack([torch.tanh(mu(one.target_actors, n, then)) * alive[1, b, n] for n in range(3)])
        for n in range(3):
            if not alive[0, b, n]:
                continue
            y = rows.reward[0, b, n]
            if alive[1, b, n] and not rows.terminated[0, b]:
                y = y + 0.9 * q(one.target_critics, n, then, next_action)
            error = y - q(one.critics, n, seen, done)
            size[b, n] = error.abs()
            critic_error[n] += 0.5 * rows.weight[b] * error.square()
            number = mu(policy, n, seen)
            action = done.clone()
            action[n] = torch.tanh(number)
            actor_error[n] += 0.1 * number.square().mean() - q(one.critics, n, seen, action)
    there = alive[0].sum(0)
    mean = (lambda x: x.sum() / there.sum()) if share == "true" else (lambda x: (x / there).mean())
    assert float(metrics["critic_loss"]) == pytest.approx(mean(critic_error).item(), rel=1e-4)
    assert float(metrics["actor_loss"]) == pytest.approx(mean(actor_error).item(), rel=1e-4)
    assert torch.allclose(priority, size.sum(1) / alive[0].sum(1), atol=1e-5)


def test_choices_of_one_agent_are_drawn_and_the_others_are_those_of_the_replay(typed):
    wiring, one = made(typed, "algo.actor_reg=0", "algo.share=false")
    rows = one.transitions(batch(wiring, columns=5))
    noise = gumbel(torch.rand(1, 5, 1, 2, generator=torch.Generator().manual_seed(4)))[0]
    one.ctx.rng.manual_seed(4)
    found = one.actor_loss(1, rows, range(1, 2))[:, 0]
    drawn = (one.policy.outputs(one.policy.actors, rows.seen)[:, 1] + noise[:, 0]).argmax(-1)
    for b in range(5):
        action = torch.stack([rows.action[b, 0], torch.eye(2)[drawn[b]]])
        value = mlp(one.critics[1], torch.cat([rows.seen[b].flatten(), action.flatten()]))
        assert found[b].item() == pytest.approx(-value.item(), rel=1e-4)


def test_one_agent_is_ddpg_to_the_bit(typed):
    """The same losses and gradients, also over three rows."""
    words = ["algo.actor_reg=0", "algo.discount=0.97", "algo.n_step=3", "algo.learning_starts=30"]
    for share in ("true", "false"):
        wiring, one = made(typed, *words, f"algo.share={share}", "algo.agent_id=false", env=NUMBERS, agents=1)
        ddpg = Wired(typed("algo=ddpg", "env=Pendulum-v1", *PLAIN, "model.hidden=[]", "algo.actor.hidden=[8]",
                           "algo.critic.hidden=[8]", *words[1:])).algorithm()  # fmt: skip
        pairs = [(ddpg.policy.net, one.policy.actors[0]), (ddpg.critic, one.critics[0])]
        pairs += [(ddpg.target_actor, one.target_actors[0]), (ddpg.target_critic, one.target_critics[0])]
        for mine, theirs in pairs:
            mine.load_state_dict(theirs.state_dict())
        rows = batch(wiring, rows=3)
        valid = rows.valid.clone()
        valid[1, 0] = valid[2, 3] = False
        rows = rows.replace(valid=valid)
        single = rows.replace(
            obs=Batch(observation=rows.obs["observation"][:, :, 0]),
            action=rows.action[:, :, 0],
            reward=rows.reward[..., 0],
        )
        metrics, priority, gradients = losses(one, rows)
        for optimizer in (ddpg.critic_optimizer, ddpg.actor_optimizer):
            optimizer.apply = lambda clock: {"grad_norm": 0.0, "lr": 0.0}
        wanted, writes = ddpg.learn(single, Clock())
        for name in ("critic_loss", "actor_loss", "td_error", "q", "target"):
            assert torch.equal(metrics[name], wanted[name].detach()), name
        assert torch.equal(priority, writes["priority"])
        theirs = [ddpg.critic_optimizer.whole.grad, ddpg.actor_optimizer.whole.grad]
        for a, b in zip(gradients, theirs, strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize("env", [CHOICES, NUMBERS])
@pytest.mark.parametrize("share", ["true", "false"])
def test_an_absent_agent_changes_no_loss(typed, share, env):
    wiring, one = made(typed, f"algo.share={share}", env=env)
    gone = [(0, 1, 1), (0, 4, 0), (1, 5, 0)]
    rows = batch(wiring, dead=gone)
    other = rows.map(torch.clone)
    for t, b, n in gone:
        other.obs["observation"][t:, b, n] = 9.0
        if t == 0:
            other.action[0, b, n] = 1 - other.action[0, b, n]
            other.reward[0, b, n] = 100.0
    first, second = losses(one, rows), losses(one, other)
    assert all(torch.equal(torch.as_tensor(first[0][name]), torch.as_tensor(second[0][name])) for name in first[0])
    assert torch.equal(first[1], second[1])
    assert all(torch.equal(a, b) for a, b in zip(first[2], second[2], strict=True))


def test_an_agent_that_leaves_or_an_end_is_not_bootstrapped(typed):
    wiring, one = made(typed, "algo.discount=0.5", "algo.reward_of=team", env=NUMBERS)
    with torch.no_grad():
        for parameter in one.target_critics.parameters():
            parameter.zero_()
        for critic in one.target_critics:
            list(critic.parameters())[-1].fill_(1e7)
    rows = batch(wiring, columns=2, dead=[(1, 1, 0)])
    rows = rows.replace(reward=torch.ones_like(rows.reward), terminated=torch.tensor([[True, False]]))
    assert one.targets(one.transitions(rows)).tolist() == [[2.0, 2.0], [2.0, 2.0 + 0.5e7]]


def test_what_a_team_earns_after_an_agent_has_left_is_not_that_agents(typed):
    words = ["algo.discount=0.5", "algo.reward_of=team", "algo.n_step=3"]
    wiring, one = made(typed, *words, env=NUMBERS)
    assert one.needs(one.cfg).replay.obs == "all"
    with torch.no_grad():
        for critic in one.target_critics:
            for parameter in critic.parameters():
                parameter.zero_()
            list(critic.parameters())[-1].fill_(100.0)
    rows = batch(wiring, columns=3, rows=3, dead=[(1, 1, 0), (2, 2, 0)])
    rows = rows.replace(reward=torch.ones_like(rows.reward), terminated=torch.zeros_like(rows.terminated))
    team, after = 2 * (1 + 0.5 + 0.25), 0.125 * 100.0
    wanted = [[team + after, team + after], [2.0, team + after], [3.0, team + after]]
    assert one.targets(one.transitions(rows)).tolist() == wanted


def test_permuting_agents_permutes_what_a_shared_network_says(typed):
    words = ["algo.share=true", "algo.agent_id=false", "algo.critic_sees=own"]
    wiring, one = made(typed, *words, env=NUMBERS, agents=3)
    rows, order = batch(wiring), torch.tensor([2, 0, 1])
    moved = rows.replace(
        obs=rows.obs.replace(observation=rows.obs["observation"][:, :, order]),
        action=rows.action[:, :, order],
        reward=rows.reward[..., order],
    )
    a, b = one.transitions(rows), one.transitions(moved)
    q = [one.values(one.critics[0], x.seen, x.action, range(3)) for x in (a, b)]
    said = [one.policy.outputs(one.policy.actors, x.seen) for x in (a, b)]
    for first, second in (q, said, [one.targets(a), one.targets(b)]):
        torch.testing.assert_close(first[:, order], second)


def test_transitions_keep_their_column_and_agent(typed):
    """Every number encodes its own column and agent, and one column alone has ended."""
    wiring, one = made(typed, "algo.n_step=2", "algo.discount=0.5", "algo.learning_starts=30", env=NUMBERS, agents=3)
    rows = batch(wiring, columns=4, rows=2)
    number = 10.0 * torch.arange(4).unsqueeze(1) + torch.arange(3)  # [B, N]
    ended = torch.tensor([[False, True, False, False], [False, False, False, False]])
    rows = rows.replace(
        obs=rows.obs.replace(observation=number.view(1, 4, 3, 1).expand_as(rows.obs["observation"])),
        reward=torch.stack([number, 1000 + number]),
        terminated=ended,
    )
    found = one.transitions(rows)
    both = number + 0.5 * (1000 + number)
    both[1] = number[1]
    assert torch.equal(found.reward, both) and torch.equal(found.seen, number.unsqueeze(-1).expand(4, 3, 3))
    assert found.discount.tolist() == [[0.25] * 3, [0.0] * 3, [0.25] * 3, [0.25] * 3]


def test_the_gradient_goes_straight_through():
    rng = torch.Generator().manual_seed(0)
    logits = torch.randn(1000, 4, generator=rng, requires_grad=True)
    noise, wanted = gumbel(torch.rand(1000, 4, generator=rng)), torch.randn(1000, 4, generator=rng)
    choice = straight_through(logits, noise, 0.5)
    assert torch.equal(choice.sum(-1), torch.ones(1000)) and torch.equal(choice.argmax(-1), (logits + noise).argmax(-1))
    (got,) = torch.autograd.grad((choice * wanted).sum(), logits)
    soft = torch.softmax((logits + noise) / 0.5, -1)
    torch.testing.assert_close(got, torch.autograd.grad((soft * wanted).sum(), logits)[0])
    one = torch.tensor([1.0, 0.0, -1.0, -1e9]).expand(40000, 4)
    drawn = straight_through(one, gumbel(torch.rand(one.shape, generator=rng)), 3.0).mean(0)
    assert torch.allclose(drawn, torch.softmax(one[0], -1), atol=0.01) and drawn[3] == 0
    assert gumbel(torch.tensor([0.0, 1 - 2**-24])).isfinite().all()


def test_actions_outside_a_mask_are_never_chosen(typed):
    """In acting, with epsilon or random, and in what critics see of actors; padded numbers are zeros."""
    for words in ([], ["algo.exploration.epsilon=1"], ["algo.random_steps=100"]):
        wiring, one = made(typed, *words, env="zoo:TupleEnv")
        env = wiring.plan.make_env()(0, 2)
        obs = Batch({name: torch.from_numpy(np.repeat(part, 200, 0)) for name, part in env.reset(0).items()})
        policy, rng = one.policy, torch.Generator().manual_seed(0)
        first = torch.ones(400, dtype=torch.bool)
        action = policy.act(obs, first, policy.initial_state(400), Clock(), "explore", rng).action
        assert set(action[:, 0].tolist()) == {0, 1} and set(action[:, 1].tolist()) == {0, 1, 2, 3}
        outputs = torch.zeros(400, 2, 4)
        outputs[..., 3] = 50.0
        chosen = one.chosen(outputs, policy.legal(obs), obs["alive"].bool())
        assert (chosen[:, 0, 2:] == 0).all() and (chosen[:, 1, 3] == 1).all()
        greedy = policy.greedy(obs, first, Batch())[0]
        assert int(greedy[:, 0].max()) <= 1


def test_local_agents_have_critics_of_their_own(typed):
    wiring, one = made(typed, "algo.local_agents=['*_1']", env=NUMBERS)
    seen, action = 3, 1  # of Pendulum
    inputs = [next(iter(critic.net)).weight.shape[1] for critic in one.critics]
    assert one.local == [False, True] and inputs == [2 * (seen + action), seen + action]
    rows = batch(wiring)
    other = rows.map(torch.clone)
    other.obs["observation"][:, :, 0] += 1.0
    other.action[:, :, 0] *= 0.5
    first, second = (losses(one, part)[2] for part in (rows, other))
    equal = [torch.equal(a, b) for a, b in zip(first, second, strict=True)]
    assert equal == [False, True, False, True], "the critic and the actor of agent_1 do not see the other agent"


@pytest.mark.parametrize(
    "env, words", [(CHOICES, ["algo.share=true"]), (NUMBERS, ["algo.share=false", "replay=prioritized"])]
)
def test_a_run_resumes_to_the_same_bits_and_acts(env, words, tmp_path, capsys):
    import rlrun

    words = ["train", *tiny(f"env={env}", *words), "checkpoint.every=60", "seed=2"]
    assert _dispatch([*words, "env_steps=120", f"run_dir={tmp_path / 'whole'}"]) == 0
    assert _dispatch([*words, "env_steps=60", f"run_dir={tmp_path / 'half'}"]) == 0
    assert _dispatch(["resume", str(tmp_path / "half"), "env_steps=120"]) == 0
    finals = [
        sorted(p for p in (tmp_path / name / "checkpoints").iterdir() if p.is_dir())[-1] for name in ("whole", "half")
    ]
    one, other = (torch.load(path / "algorithm.pt", weights_only=True) for path in finals)
    assert one["module"] and same(one, other), "weights, targets, optimisers and random numbers are the same to the bit"
    row = json.loads((tmp_path / "whole" / "progress.jsonl").read_text().splitlines()[-1])
    assert row["updates"] > 0 and np.isfinite(row["learn/critic_loss"])
    trained = rlrun.load(tmp_path / "whole")
    game = trained.make_env()
    obs, _ = game.reset(seed=0)
    for _ in range(5):
        actions = trained.act(obs)
        assert all(game.action_space(agent).contains(action) for agent, action in actions.items())
        obs = {agent: seen for agent, seen in game.step(actions)[0].items() if agent in game.agents}
        if not game.agents:
            break
    capsys.readouterr()
    assert _dispatch(["evaluate", str(tmp_path / "whole"), "episodes=1", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert set(told["agents"]) == {"agent_0", "agent_1"}
    assert sum(told["agents"].values()) == pytest.approx(told["return_mean"])
    assert _dispatch(["export", str(tmp_path / "whole")]) == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["env=CartPole-v1"], "CartPole-v1 has one agent, and qmix, vdn, iql and maddpg learn several"),
        ([f"env={CHOICES}", "algo.local_agents=[prey_*]"], r"prey_\* fits no agent of .*, which has agent_0, agent_1"),
        ([f"env={CHOICES}", "algo.share=true", "algo.local_agents=[agent_0]"], "set share=false with them"),
        ([f"env={CHOICES}", "model/memory=gru"], "several actors with critics have no memory"),
        ([f"env={CHOICES}", "model.observation_filter=mean_std"], "observation_filter is for algorithms that learn each agent"),
        ([f"env={CHOICES}", "algo.exploration.kind=ou"], "kind must be sampled, random"),
        ([f"env={CHOICES}", "algo.input_priorities=true", "replay=prioritized"], "samplers do not have the critics"),
        ([f"env={CHOICES}", "algo.critic_sees=state"], "critic_sees"),
        (["env=zoo:ImageAgents"], "ImageAgents shows images, and this policy takes vectors"),
    ],
)
def test_what_does_not_fit_is_said_before_anything_starts(typed, words, said):
    with pytest.raises((UserError, ValueError), match=said):
        Wired(typed("algo=maddpg", *words, *PLAIN)).algorithm()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_two_step_game_is_learnt(seed, tmp_path, capsys):
    run = str(tmp_path / "run")
    assert _dispatch(["train", "tuned=maddpg/two_step", f"seed={seed}", "logger=[]", f"run_dir={run}"]) == 0
    assert _dispatch(["evaluate", run, "episodes=20"]) == 0
    assert "return 8.00" in capsys.readouterr().out
