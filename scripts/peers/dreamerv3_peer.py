"""Times updates of DreamerV3 as a plain PyTorch program makes them, in the manner of NM512/r2dreamer @ 546e4fa without
torch.compile: float32, a Python loop over time, one batch of 16 x 64 rows, losses of everything, one LaProp.

    dreamerv3_peer.py cartpole "1 thread"

The algorithm is that of 2024, written from the paper (arXiv:2301.04104v2) and the author's code (danijar/dreamerv3 @
e3f0224) and from nothing of rlrun. What every program of this kind does is done here too: products that need no loop
are made outside of it, dreams have no graph, and the optimiser's steps are made for all parameters at once. It runs
where PyTorch is, without rlrun.
"""

import copy
import math

import common
import torch
import torch.nn.functional as F
from torch import nn

BATCH, LENGTH, DREAM, DISCOUNT, LAMBDA = 16, 64, 15, 1 - 1 / 333, 0.95
SCALES = {"rec": 1.0, "rew": 1.0, "con": 1.0, "dyn": 1.0, "rep": 0.1, "policy": 1.0, "value": 1.0, "repval": 0.3}


def fill(weight, inputs, scale=1.0):
    nn.init.trunc_normal_(weight, 0.0, 1.0, -2.0, 2.0)
    with torch.no_grad():
        weight.mul_(scale * 1.1368 / math.sqrt(inputs))


def linear(inputs, outputs, scale=1.0):
    layer = nn.Linear(inputs, outputs)
    fill(layer.weight, inputs, scale)
    nn.init.zeros_(layer.bias)
    return layer


def mlp(inputs, units, layers):
    made = []
    for number in range(layers):
        made += [linear(units if number else inputs, units), nn.RMSNorm(units, eps=1e-4), nn.SiLU()]
    return nn.Sequential(*made)


class BlockLinear(nn.Module):
    def __init__(self, inputs, outputs, blocks):
        super().__init__()
        self.blocks = blocks
        self.weight = nn.Parameter(torch.empty(blocks, inputs // blocks, outputs // blocks))
        self.bias = nn.Parameter(torch.zeros(outputs))
        fill(self.weight, inputs)

    def forward(self, x):
        x = x.unflatten(-1, (self.blocks, -1))
        return torch.einsum("...gi,gio->...go", x, self.weight).flatten(-2) + self.bias


class RSSM(nn.Module):
    def __init__(self, actions, tokens, deter, hidden, stoch, classes, blocks):
        super().__init__()
        self.deter, self.stoch, self.classes, self.blocks = deter, stoch, classes, blocks
        self.of_deter, self.of_stoch = mlp(deter, hidden, 1), mlp(stoch * classes, hidden, 1)
        self.of_action = mlp(actions, hidden, 1)
        self.mixed = BlockLinear(deter + blocks * 3 * hidden, deter, blocks)
        self.norm = nn.RMSNorm(deter, eps=1e-4)
        self.gates = BlockLinear(deter, 3 * deter, blocks)
        self.prior = nn.Sequential(mlp(deter, hidden, 2), linear(hidden, stoch * classes))
        self.posterior = nn.Sequential(mlp(deter + tokens, hidden, 1), linear(hidden, stoch * classes))

    def probs(self, logits):
        """[..., stoch * classes] -> [..., stoch, classes]"""
        return 0.99 * logits.unflatten(-1, (self.stoch, self.classes)).softmax(-1) + 0.01 / self.classes

    def core(self, deter, stoch, action):
        action = action / action.abs().clamp(min=1.0).detach()
        x = torch.cat([self.of_deter(deter), self.of_stoch(stoch.flatten(-2)), self.of_action(action)], -1)
        x = x.unsqueeze(-2).expand(-1, self.blocks, -1)
        x = torch.cat([deter.unflatten(-1, (self.blocks, -1)), x], -1).flatten(-2)
        x = self.gates(F.silu(self.norm(self.mixed(x)))).unflatten(-1, (self.blocks, -1))
        reset, cand, update = (part.flatten(-2) for part in x.chunk(3, -1))
        update = torch.sigmoid(update - 1)
        return update * torch.tanh(torch.sigmoid(reset) * cand) + (1 - update) * deter


def drawn(probs):
    """One-hot draws [..., K] from probabilities [..., K]."""
    index = torch.multinomial(probs.flatten(0, -2), 1).view(probs.shape[:-1])
    return F.one_hot(index, probs.shape[-1]).to(probs.dtype)


def features(deter, stoch):
    return torch.cat([stoch.flatten(-2), deter], -1)


def symlog(x):
    return torch.sign(x) * torch.log1p(torch.abs(x))


def lambda_return(reward, live, cont, boot):
    """reward, live, cont, boot [N, T]: those of rows 0 to T - 1. Returns [N, T - 1]."""
    made = [boot[:, -1]]
    step = reward[:, 1:] + (1 - cont[:, 1:]) * live[:, 1:] * boot[:, 1:]
    for t in reversed(range(step.shape[1])):
        made.append(step[:, t] + live[:, t + 1] * cont[:, t + 1] * made[-1])
    return torch.stack(made[:0:-1], 1)


class Agent(nn.Module):
    """pick: how classes and actions are drawn; noise: how normal numbers are drawn."""

    def __init__(self, obs, actions, discrete, deter=512, hidden=64, stoch=32, classes=4, blocks=8, bins=255,
                 pick=drawn, noise=torch.randn_like, unimix=0.01):  # fmt: skip
        super().__init__()
        units, feat = hidden, deter + stoch * classes
        self.discrete, self.actions, self.pick, self.noise, self.unimix = discrete, actions, pick, noise, unimix
        self.encoder = mlp(obs, units, 3)
        self.rssm = RSSM(actions, units, deter, hidden, stoch, classes, blocks)
        self.decoder = nn.Sequential(mlp(feat, units, 3), linear(units, obs))
        self.reward = nn.Sequential(mlp(feat, units, 1), linear(units, bins, 0.0))
        self.cont = nn.Sequential(mlp(feat, units, 1), linear(units, 1))
        self.policy = mlp(feat, units, 3)
        self.mean = linear(units, actions, 0.01)
        self.std = None if discrete else linear(units, actions, 0.01)
        self.value = nn.Sequential(mlp(feat, units, 3), linear(units, bins, 0.0))
        self.slow = copy.deepcopy(self.value).requires_grad_(False)
        half = torch.linspace(-20, 0, (bins + 1) // 2)
        half = torch.sign(half) * torch.expm1(torch.abs(half))
        self.register_buffer("bins", torch.cat([half, -half[:-1].flip(0)]))
        self.register_buffer("range", torch.zeros(2))

    def act(self, feat):
        hidden = self.policy(feat)
        made = self.mean(hidden)
        if self.discrete:
            return (1 - self.unimix) * made.softmax(-1) + self.unimix / self.actions
        return made.tanh(), 0.9 * torch.sigmoid(self.std(hidden) + 2) + 0.1

    def pred(self, logits):
        probs, middle = logits.softmax(-1), len(self.bins) // 2
        both = (probs[..., :middle] * self.bins[:middle]).flip(-1) + probs[..., middle + 1 :] * self.bins[middle + 1 :]
        return both.sum(-1)

    def twohot_loss(self, logits, target):
        above = torch.searchsorted(self.bins, target.contiguous(), right=True).clamp(1, len(self.bins) - 1)
        low, high = self.bins[above - 1], self.bins[above]
        weight = ((target - low) / (high - low)).clamp(0, 1)
        log = logits.log_softmax(-1)
        under = log.gather(-1, (above - 1).unsqueeze(-1)).squeeze(-1)
        over = log.gather(-1, above.unsqueeze(-1)).squeeze(-1)
        return -(1 - weight) * under - weight * over

    def losses(self, batch):
        """Losses [B, T] (repval: [B, T - 1]) and the states [B, T, ...]. batch: obs [B, T, O], reward, is_first,
        is_last, is_terminal [B, T], prevact [B, T, A], and deter, stoch [B, ...] of the row before."""
        rssm, losses = self.rssm, {}
        tokens = self.encoder(symlog(batch["obs"]))
        deter, stoch = batch["deter"], batch["stoch"]
        deters, stochs, logits = [], [], []
        for t in range(tokens.shape[1]):
            keep = 1.0 - batch["is_first"][:, t].float().unsqueeze(-1)
            deter = rssm.core(deter * keep, stoch * keep.unsqueeze(-1), batch["prevact"][:, t] * keep)
            logit = rssm.posterior(torch.cat([deter, tokens[:, t]], -1))
            probs = rssm.probs(logit)
            stoch = self.pick(probs.detach()) + probs - probs.detach()
            deters.append(deter)
            stochs.append(stoch)
            logits.append(logit)
        deter, stoch, logit = (torch.stack(parts, 1) for parts in (deters, stochs, logits))
        post, prior = rssm.probs(logit), rssm.probs(rssm.prior(deter))

        def kl(p, q):
            return (p * (p.log() - q.log())).sum((-2, -1)).clamp(min=1.0)

        losses["dyn"], losses["rep"] = kl(post.detach(), prior), kl(post, prior.detach())
        feat = features(deter, stoch)
        losses["rec"] = (self.decoder(feat) - symlog(batch["obs"])).square().sum(-1)
        losses["rew"] = self.twohot_loss(self.reward(feat), batch["reward"])
        target = (1.0 - batch["is_terminal"].float()) * DISCOUNT
        losses["con"] = F.binary_cross_entropy_with_logits(self.cont(feat).squeeze(-1), target, reduction="none")

        # Dreams.
        with torch.no_grad():
            h, z = deter.flatten(0, 1), stoch.flatten(0, 1)
            seen, taken = [], []
            for step in range(DREAM + 1):
                seen.append(features(h, z))
                if step == DREAM:
                    break
                made = self.act(seen[-1])
                taken.append(self.pick(made) if self.discrete else made[0] + made[1] * self.noise(made[0]))
                h = rssm.core(h, z, taken[-1])
                z = self.pick(rssm.probs(rssm.prior(h)))
            dream, action = torch.stack(seen, 1), torch.stack(taken, 1)
            reward, cont = self.pred(self.reward(dream)), self.cont(dream).squeeze(-1).sigmoid()
            value, slow = self.pred(self.value(dream)), self.pred(self.slow(dream))
            returns = lambda_return(reward, cont, torch.full_like(cont, LAMBDA), value)
            weight = cont.cumprod(1)[:, :-1]
            ends = torch.quantile(returns.flatten(), torch.tensor([0.05, 0.95], dtype=returns.dtype))
            self.range.lerp_(ends, 0.01)
            advantage = (returns - value[:, :-1]) / (self.range[1] - self.range[0]).clamp(min=1.0)
        made = self.act(dream[:, :-1])
        if self.discrete:
            log = made.log()
            logp, entropy = (log * action).sum(-1), -(made * log).sum(-1)
        else:
            dist = torch.distributions.Normal(*made, validate_args=False)
            logp, entropy = dist.log_prob(action).sum(-1), dist.entropy().sum(-1)
        losses["policy"] = (weight * -(logp * advantage + 3e-4 * entropy)).mean(1).view(deter.shape[:2])
        logits = self.value(dream[:, :-1])
        value_loss = self.twohot_loss(logits, returns) + self.twohot_loss(logits, slow[:, :-1])
        losses["value"] = (weight * value_loss).mean(1).view(deter.shape[:2])

        # Values of replayed rows.
        logits = self.value(feat)
        with torch.no_grad():
            live = (1.0 - batch["is_terminal"].float()) * DISCOUNT
            goes_on = (1.0 - batch["is_last"].float()) * LAMBDA
            returns = lambda_return(batch["reward"], live, goes_on, returns[:, 0].view(deter.shape[:2]))
            slow = self.pred(self.slow(feat))
        loss = self.twohot_loss(logits[:, :-1], returns) + self.twohot_loss(logits[:, :-1], slow[:, :-1])
        losses["repval"] = loss * (1.0 - batch["is_last"][:, :-1].float())
        return losses, (deter.detach(), stoch.detach())


class LaProp:
    """AGC and LaProp for all parameters at once."""

    def __init__(self, parameters, lr=4e-5, warmup=1000):
        self.parameters, self.lr, self.warmup, self.count = list(parameters), lr, warmup, 0
        self.square, self.mean = ([torch.zeros_like(p) for p in self.parameters] for _ in range(2))

    @torch.no_grad()
    def step(self):
        grads = [p.grad for p in self.parameters]
        norms, sizes = torch._foreach_norm(grads), torch._foreach_norm(self.parameters)
        for grad, norm, size in zip(grads, norms, sizes, strict=True):
            grad.mul_(1.0 / (norm / (0.3 * size.clamp(min=1e-3))).clamp(min=1.0))
        self.count += 1
        torch._foreach_mul_(self.square, 0.999)
        torch._foreach_addcmul_(self.square, grads, grads, 0.001)
        roots = torch._foreach_div(self.square, 1 - 0.999**self.count)
        torch._foreach_sqrt_(roots)
        torch._foreach_add_(roots, 1e-20)
        torch._foreach_lerp_(self.mean, torch._foreach_div(grads, roots), 0.1)
        rate = self.lr * min(1.0, (self.count - 1) / self.warmup) / (1 - 0.9**self.count)
        torch._foreach_add_(self.parameters, self.mean, alpha=-rate)


def weighted(losses):
    return sum(scale * losses[name].mean() for name, scale in SCALES.items())


def main():
    said = common.game_and_threads()
    obs, actions, discrete = common.SPACES[said.game]
    torch.manual_seed(1)
    agent = Agent(obs, actions, discrete)
    optimizer = LaProp(p for p in agent.parameters() if p.requires_grad)
    batch = common.rows_of_dreamer(torch, obs, actions, discrete, BATCH, LENGTH)
    batch |= {"deter": torch.zeros(BATCH, 512), "stoch": torch.zeros(BATCH, 32, 4)}

    def update():
        losses, states = agent.losses(batch)
        for parameter in optimizer.parameters:
            parameter.grad = None
        weighted(losses).backward()
        optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_(list(agent.slow.parameters()), list(agent.value.parameters()), 0.02)
        return states

    parameters = sum(p.numel() for p in optimizer.parameters)
    common.serve(update, {"threads": said.threads, "parameters": parameters, "precision": "fp32"}, ("torch",))


if __name__ == "__main__":
    main()
