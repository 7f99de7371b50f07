"""CQL in a plain loop, with the steps of CORL's single file (algorithms/offline/cql.py): an actor and two critics that are
modules of their own, each with PyTorch's Adam; the observations of the sampled actions are repeated, for the actor too;
every critic rates the random, the current and the next actions in separate calls; the actor's loss leaves gradients in
the critics, which are set to zero before theirs. CORL also computes 25 means for its log at every update, which are left
out here."""

import math

import offline_common as common
import torch
from torch import nn
from torch.nn import functional

WAYS = ("1 thread",)
DISCOUNT, TAU, WEIGHT = 0.99, 0.005, 5.0


def layers(inputs, hidden, outputs):
    made, size = [], inputs
    for width in hidden:
        made += [nn.Linear(size, width), nn.ReLU()]
        size = width
    return nn.Sequential(*made, nn.Linear(size, outputs))


def repeated(obs, count):
    """[N, D] -> [N, K, D]."""
    return obs.unsqueeze(1).repeat(1, count, 1)


class Actor(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.net = layers(common.OBSERVATIONS, hidden, 2 * common.ACTIONS)

    def forward(self, obs, count=None):
        """Draws one action for each row, or `count`, with their log densities."""
        mean, log_std = self.net(obs if count is None else repeated(obs, count)).chunk(2, -1)
        inner = torch.distributions.Normal(mean, (log_std - 1.0).clamp(-20.0, 2.0).exp())
        squashed = torch.distributions.TransformedDistribution(
            inner, torch.distributions.transforms.TanhTransform(cache_size=1)
        )
        action = squashed.rsample()
        return action, squashed.log_prob(action).sum(-1)


class Critic(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.net = layers(common.OBSERVATIONS + common.ACTIONS, hidden, 1)

    def forward(self, obs, action):
        """obs [N, D]; action [N, A] or [N, K, A] -> [N] or [N, K]."""
        if action.ndim == 3:
            obs = repeated(obs, action.shape[1])
        return self.net(torch.cat([obs, action], -1)).squeeze(-1)


def main():
    said = common.words(WAYS)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    hidden = common.NETS[said.algo]
    seen, did, rewards = (torch.from_numpy(x) for x in common.episodes())
    now, then = seen[:, :-1].flatten(0, 1), seen[:, 1:].flatten(0, 1)
    did, rewards = did[:, :-1].flatten(0, 1), rewards[:, :-1].flatten()
    ends = torch.zeros_like(rewards)
    actor, critics, targets = Actor(hidden), [Critic(hidden), Critic(hidden)], [Critic(hidden), Critic(hidden)]
    for target, critic in zip(targets, critics, strict=True):
        target.load_state_dict(critic.state_dict())
    log_alpha = nn.Parameter(torch.zeros(()))
    actor_adam = torch.optim.Adam(actor.parameters(), lr=3e-5)
    critic_adams = [torch.optim.Adam(critic.parameters(), lr=3e-4) for critic in critics]
    alpha_adam = torch.optim.Adam([log_alpha], lr=3e-5)
    meter = common.Meter(said.seconds)
    while True:
        drawn = torch.randint(len(now), (common.BATCH,))
        obs, after, action, reward, end = (x[drawn] for x in (now, then, did, rewards, ends))
        own, log_prob = actor(obs)
        alpha_loss = -(log_alpha * (log_prob - common.ACTIONS).detach()).mean()
        alpha = log_alpha.exp()
        actor_loss = (alpha * log_prob - torch.min(*(critic(obs, own) for critic in critics))).mean()

        taken = [critic(obs, action) for critic in critics]
        following = actor(after)[0]
        best = torch.min(*(target(after, following) for target in targets))
        goal = (reward + DISCOUNT * (1 - end) * best).detach()
        uniform = torch.empty(common.BATCH, common.SAMPLED, common.ACTIONS).uniform_(-1.0, 1.0)
        current, next_ = actor(obs, common.SAMPLED), actor(after, common.SAMPLED)
        sets = [
            (uniform, math.log(0.5) * common.ACTIONS),
            *((actions.detach(), density.detach()) for actions, density in (next_, current)),
        ]
        loss = 0.0
        for critic, q in zip(critics, taken, strict=True):
            rated = torch.cat([critic(obs, actions) - density for actions, density in sets], 1)
            penalty = (rated.logsumexp(1) - q).mean()
            loss = loss + functional.mse_loss(q, goal) + WEIGHT * penalty

        alpha_adam.zero_grad()
        alpha_loss.backward()
        alpha_adam.step()
        actor_adam.zero_grad()
        actor_loss.backward()
        actor_adam.step()
        for adam in critic_adams:
            adam.zero_grad()
        loss.backward()
        for adam in critic_adams:
            adam.step()
        for target, critic in zip(targets, critics, strict=True):
            for slow, fast in zip(target.parameters(), critic.parameters(), strict=True):
                slow.data.copy_((1 - TAU) * slow.data + TAU * fast.data)
        if meter.over():
            break
    meter.show({"threads": 1}, [])


if __name__ == "__main__":
    main()
