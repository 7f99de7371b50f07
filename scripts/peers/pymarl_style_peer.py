"""QMIX in a plain loop in one process, in the manner of PyMARL and EPyMARL: one environment plays an episode, which goes
into a replay of 5,000 episodes, and then the learner updates once from 32 episodes. Its networks unroll the episodes step
by step, with all agents and episodes in one batch, as in PyMARL's q_learner.

The networks are those of EPyMARL's qmix.yaml: two hidden layers of 64 without memory, which see the agent's number, and a
mixer of 32 with hypernetworks of 64; Adam with 5e-4, gradients bounded to 10, targets copied every 200 updates.
"""

import importlib.metadata
import json

import common
import numpy as np
import torch
from torch import nn

WAYS = {"1 thread": 1, "2 threads": 2}
REPLAY, BATCH, DISCOUNT, TARGET_EVERY = 5000, 32, 0.99, 200


class TwoStep:
    """The two-step game. Observations and state are the state, one-hot."""

    agents, actions, obs_size, state_size, limit = 2, 2, 3, 3, 2

    def reset(self):
        self.place = 0
        return self.seen()

    def seen(self):
        one = np.eye(3, dtype=np.float32)[self.place]
        return np.stack([one, one]), one

    def step(self, actions):
        if self.place == 0:
            self.place = 1 + int(actions[0])
            return (*self.seen(), 0.0, False)
        return (*self.seen(), 7.0 if self.place == 1 else [[0, 1], [1, 8]][actions[0]][actions[1]], True)


class Spread:
    """simple_spread_v3 of mpe2, with the sum of the agents' rewards."""

    agents, actions, obs_size, state_size, limit = 3, 5, 18, 54, 25

    def __init__(self):
        from mpe2 import simple_spread_v3

        self.env = simple_spread_v3.parallel_env()

    def seen(self, obs):
        observations = np.stack(list(obs.values()))
        return observations, observations.reshape(-1)

    def reset(self):
        return self.seen(self.env.reset()[0])

    def step(self, actions):
        obs, rewards, terminated, _, _ = self.env.step(dict(zip(self.env.agents, map(int, actions), strict=True)))
        return (*self.seen(obs), sum(rewards.values()), all(terminated.values()))


GAMES = {"two_step": TwoStep, "simple_spread": Spread}


def agent(game):
    size = game.obs_size + game.agents
    return nn.Sequential(nn.Linear(size, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, game.actions))


class Mixer(nn.Module):
    def __init__(self, game):
        super().__init__()
        self.agents, size = game.agents, game.state_size
        self.first = nn.Sequential(nn.Linear(size, 64), nn.ReLU(), nn.Linear(64, 32 * game.agents))
        self.last = nn.Sequential(nn.Linear(size, 64), nn.ReLU(), nn.Linear(64, 32))
        self.bias = nn.Linear(size, 32)
        self.value = nn.Sequential(nn.Linear(size, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, q, state):
        """q [B, T, N], state [B, T, S] -> [B, T]."""
        rows, times = q.shape[:2]
        q, state = q.reshape(-1, 1, self.agents), state.reshape(rows * times, -1)
        hidden = torch.bmm(q, self.first(state).abs().view(-1, self.agents, 32)) + self.bias(state).unsqueeze(1)
        mixed = torch.bmm(nn.functional.elu(hidden), self.last(state).abs().unsqueeze(2)).squeeze()
        return (mixed + self.value(state).squeeze(1)).view(rows, times)


def loop(meter, game):
    env, count, limit = game(), game.agents, game.limit
    nets, mixers = [agent(game), agent(game)], [Mixer(game), Mixer(game)]
    for pair in (nets, mixers):
        pair[1].load_state_dict(pair[0].state_dict())
    parameters = [*nets[0].parameters(), *mixers[0].parameters()]
    optimizer = torch.optim.Adam(parameters, lr=5e-4)
    number = torch.eye(count)
    obs_kept = torch.zeros(REPLAY, limit + 1, count, game.obs_size)
    state_kept = torch.zeros(REPLAY, limit + 1, game.state_size)
    action_kept = torch.zeros(REPLAY, limit, count, dtype=torch.int64)
    reward_kept, ended_kept, filled_kept = (torch.zeros(REPLAY, limit) for _ in range(3))
    rng, steps, episodes, updates = np.random.default_rng(1), 0, 0, 0
    while True:
        place = episodes % REPLAY
        filled_kept[place] = 0
        (obs, state), t, ended = env.reset(), 0, False
        epsilon = max(0.05, 1.0 - 0.95 * steps / 50_000)
        while t < limit and not ended:
            with torch.no_grad():
                greedy = nets[0](torch.cat([torch.from_numpy(obs), number], -1)).argmax(-1).numpy()
            random = rng.random(count) < epsilon
            actions = np.where(random, rng.integers(game.actions, size=count), greedy)
            obs_kept[place, t], state_kept[place, t] = torch.from_numpy(obs), torch.from_numpy(state)
            obs, state, reward, ended = env.step(actions)
            action_kept[place, t], reward_kept[place, t] = torch.from_numpy(actions), float(reward)
            ended_kept[place, t], filled_kept[place, t], t = float(ended), 1.0, t + 1
        obs_kept[place, t], state_kept[place, t] = torch.from_numpy(obs), torch.from_numpy(state)
        steps, episodes = steps + t, episodes + 1
        if episodes < BATCH:
            continue
        drawn = torch.from_numpy(rng.choice(min(episodes, REPLAY), BATCH, replace=False))
        seen, states, did = obs_kept[drawn], state_kept[drawn], action_kept[drawn]
        numbers = number.expand(BATCH, count, count)
        values = []  # of the online and the target networks [B, T + 1, N, A]
        for net in nets:
            with torch.set_grad_enabled(net is nets[0]):
                outputs = [net(torch.cat([seen[:, t], numbers], -1)) for t in range(limit + 1)]
                values.append(torch.stack(outputs, 1))
        chosen = values[0][:, :-1].gather(-1, did.unsqueeze(-1)).squeeze(-1)
        with torch.no_grad():
            best = values[0][:, 1:].argmax(-1, keepdim=True)
            following = mixers[1](values[1][:, 1:].gather(-1, best).squeeze(-1), states[:, 1:])
            aim = reward_kept[drawn] + DISCOUNT * (1 - ended_kept[drawn]) * following
        error = (mixers[0](chosen, states[:, :-1]) - aim) * filled_kept[drawn]
        loss = error.square().sum() / filled_kept[drawn].sum()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 10.0)
        optimizer.step()
        updates += 1
        if updates % TARGET_EVERY == 0:
            for pair in (nets, mixers):
                pair[1].load_state_dict(pair[0].state_dict())
        if meter.over(steps):
            return


def main():
    said = common.words(dict.fromkeys(GAMES, WAYS))
    torch.set_num_threads(WAYS[said.variant])
    meter = common.Meter(said.seconds)
    loop(meter, GAMES[said.algo])
    settings = {"envs": 1, "batch_episodes": BATCH, "update_every_episodes": 1, "variant": said.variant}
    print(
        json.dumps(
            {
                "env_steps_per_sec": meter.rate,
                "settings": settings,
                "versions": {"torch": importlib.metadata.version("torch")},
            }
        ),
        flush=True,
    )


if __name__ == "__main__":
    main()
