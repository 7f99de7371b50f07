"""A plain loop in one process, in the manner of single-file implementations.

Policy gradient with one epoch is compared with IMPALA, PPO with 4 epochs with PPO, and DQN with DQN.
"""

import ale_py
import common
import gymnasium
import numpy as np
import torch
from torch import nn

gymnasium.register_envs(ale_py)
WAYS = {"1 thread": 1, "2 threads": 2}


def make():
    env = gymnasium.make("PongNoFrameskip-v4")
    env = gymnasium.wrappers.AtariPreprocessing(env, noop_max=30, frame_skip=4, screen_size=84, grayscale_obs=True)
    return gymnasium.wrappers.FrameStackObservation(env, 4)


def trunk():
    return nn.Sequential(
        nn.Conv2d(4, 32, 8, 4),
        nn.ReLU(),
        nn.Conv2d(32, 64, 4, 2),
        nn.ReLU(),
        nn.Conv2d(64, 64, 3, 1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(3136, 512),
        nn.ReLU(),
    )


class ActorCritic(nn.Module):
    def __init__(self, actions):
        super().__init__()
        self.trunk, self.actor, self.critic = trunk(), nn.Linear(512, actions), nn.Linear(512, 1)

    def forward(self, obs):
        hidden = self.trunk(obs.float() / 255.0)
        return torch.distributions.Categorical(logits=self.actor(hidden)), self.critic(hidden)[:, 0]


def on_policy(meter, count, rows, epochs, minibatches):
    env = gymnasium.vector.SyncVectorEnv([make] * count)
    net = ActorCritic(env.single_action_space.n)
    optimizer = torch.optim.Adam(net.parameters(), lr=2.5e-4, eps=1e-5)
    observations = torch.zeros(rows, count, 4, 84, 84, dtype=torch.uint8)
    actions = torch.zeros(rows, count, dtype=torch.int64)
    log_probs, rewards, ends, values = (torch.zeros(rows, count) for _ in range(4))
    obs, steps = env.reset(seed=1)[0], 0
    while True:
        for t in range(rows):
            observations[t] = torch.from_numpy(obs)
            with torch.no_grad():
                policy, value = net(observations[t])
                action = policy.sample()
            actions[t], log_probs[t], values[t] = action, policy.log_prob(action), value
            obs, reward, terminated, truncated, _ = env.step(action.numpy())
            rewards[t], ends[t] = (
                torch.from_numpy(np.sign(reward)).float(),
                torch.from_numpy(terminated | truncated).float(),
            )
        with torch.no_grad():
            following, advantages, total = net(torch.from_numpy(obs))[1], torch.zeros_like(rewards), torch.zeros(count)
            for t in reversed(range(rows)):
                delta = rewards[t] + 0.99 * following * (1 - ends[t]) - values[t]
                total = delta + 0.99 * 0.95 * (1 - ends[t]) * total
                advantages[t], following = total, values[t]
            targets = (advantages + values).reshape(-1)
        flat = observations.flatten(0, 1), actions.reshape(-1), log_probs.reshape(-1), advantages.reshape(-1)
        for _ in range(epochs):
            for rows_now in torch.randperm(rows * count).chunk(minibatches):
                seen, did, before, advantage = (x[rows_now] for x in flat)
                policy, value = net(seen)
                advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
                ratio = (policy.log_prob(did) - before).exp()
                loss = -torch.min(ratio * advantage, ratio.clamp(0.9, 1.1) * advantage).mean()
                loss = loss + 0.5 * (value - targets[rows_now]).square().mean() - 0.01 * policy.entropy().mean()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(net.parameters(), 0.5)
                optimizer.step()
        steps += rows * count
        if meter.over(steps):
            return


def dqn(meter):
    env = make()
    q, target = (nn.Sequential(trunk(), nn.Linear(512, env.action_space.n)) for _ in range(2))
    target.load_state_dict(q.state_dict())
    optimizer = torch.optim.Adam(q.parameters(), lr=1e-4)
    size, steps, rng = 30000, 0, np.random.default_rng(0)
    now, then = (np.zeros((size, 4, 84, 84), dtype=np.uint8) for _ in range(2))
    actions, rewards, ends = (
        np.zeros(size, dtype=np.int64),
        np.zeros(size, dtype=np.float32),
        np.zeros(size, dtype=np.float32),
    )
    obs = env.reset(seed=1)[0]
    while True:
        if rng.random() < 0.05:
            action = int(rng.integers(env.action_space.n))
        else:
            with torch.no_grad():
                action = int(q(torch.from_numpy(np.asarray(obs))[None].float() / 255.0).argmax())
        seen, reward, terminated, truncated, _ = env.step(action)
        place = steps % size
        now[place], then[place], actions[place], rewards[place], ends[place] = (
            obs,
            seen,
            action,
            np.sign(reward),
            terminated,
        )
        obs, steps = (env.reset()[0] if terminated or truncated else seen), steps + 1
        if steps < 1000 or steps % 4:
            continue
        drawn = rng.integers(min(steps, size), size=32)
        with torch.no_grad():
            aim = torch.from_numpy(rewards[drawn]) + 0.99 * (1 - torch.from_numpy(ends[drawn])) * target(
                torch.from_numpy(then[drawn]).float() / 255.0
            ).amax(1)
        value = q(torch.from_numpy(now[drawn]).float() / 255.0).gather(1, torch.from_numpy(actions[drawn])[:, None])[
            :, 0
        ]
        loss = nn.functional.smooth_l1_loss(value, aim)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if steps % 1000 == 0:
            target.load_state_dict(q.state_dict())
        if meter.over(steps):
            return


def main():
    said = common.words(dict.fromkeys(("impala", "ppo", "dqn"), WAYS))
    torch.set_num_threads(WAYS[said.variant])
    meter = common.Meter(said.seconds)
    if said.algo == "dqn":
        settings = {"train_every": 4, "batch_size": 32, "buffer": 30000}
        dqn(meter)
    else:
        settings = (
            {"envs": 10, "rows": 50, "epochs": 1}
            if said.algo == "impala"
            else {"envs": 8, "rows": 128, "epochs": 4, "minibatches": 4}
        )
        on_policy(meter, settings["envs"], settings["rows"], settings["epochs"], settings.get("minibatches", 1))
    common.result(meter.rate, {**settings, "variant": said.variant}, [])


if __name__ == "__main__":
    main()
