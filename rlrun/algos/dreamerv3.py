"""DreamerV3: a policy learnt in the dreams of a world model (Hafner et al. 2025, Nature 640, arXiv:2301.04104v2).

Three algorithms carry this name. This is the one of 2024, as in the paper's second version and in the author's code
(danijar/dreamerv3 @ e3f0224): a GRU in blocks, RMSNorm, one LaProp optimiser, a loss of the value on replayed rows, and
REINFORCE for all actions. RLlib, SheepRL and NM512's port have that of 2023.

Rows: sequences of replay_context + batch_length - 1 rows and one observation, which begin at any row.
Recorded: nothing; the state-space model's h is stored at every row, and the h that an update makes of the rows that it
learns from is written back.
Refused: action masks, because the world model does not predict which actions will be legal; unbounded actions; options
of other networks.
Differs from the author's code: the policy's choices are mixed with 1% of a uniform distribution, as the paper says; z
of a sequence's context row is drawn anew from its h, and not stored; learning starts after learning_starts env steps,
and not after 1024 sequences; rows that follow a break of a column are in no mean; greedy play takes the likeliest z and
action, where the author's always samples both (eval.greedy=false does); replay.capacity is at most 1,000,000 rows, or
100,000 of images, unless it is set (5,000,000 in the paper).
Metrics: learn/loss and its parts (rec, rew, con, dyn, rep, policy, value, repval), unweighted means; kl: before free
nats; prior_entropy, posterior_entropy: means over rows, summed over z; entropy: of the dreamt actions; advantage_abs;
return_mean, value_mean and reward_mean of dreams; return_scale; continue_mean; grad_norm before clipping; lr;
open_loop_rec_<steps>, open_loop_reward_<steps>: errors so many steps behind 5 rows that were seen (imagine.every).
Checked: tests/algos/test_dreamerv3.py, tests/models/test_world_model.py, tests/ops/test_symlog.py, tuned/dreamerv3/.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor

from rlrun.core.algorithm import Algorithm, LearnerContext, Needs, Update, recorded
from rlrun.core.batch import Batch
from rlrun.core.conditions import EXPERIENCE, PACED, SLOW_VALUES, OnlyFor, OnlyWith
from rlrun.core.follower import Follower
from rlrun.core.open_loop import OpenLoop
from rlrun.core.optimizer import OptimizerConfig
from rlrun.core.ranges import Count, NotNegative, Positive, PositiveShare, Range, Share
from rlrun.core.schedule import Clock, Schedule
from rlrun.core.specs import Box, EnvSpec
from rlrun.families.dreaming import needs_of_sequences
from rlrun.models.model import Model
from rlrun.models.observations import WorldDecoder, rows_of
from rlrun.models.world_model import Head, State, side_by_side
from rlrun.ops.percentiles import ReturnRange
from rlrun.ops.returns import bootstrapped_returns
from rlrun.ops.symlog import expected, symexp_bins, two_hot_loss
from rlrun.policies import ActingConfig
from rlrun.policies.dreamer import DreamerPolicy


@dataclass(frozen=True, kw_only=True)
class LossScales:
    """Weights of the parts of the loss."""

    rec: Annotated[float, NotNegative]
    rew: Annotated[float, NotNegative]
    con: Annotated[float, NotNegative]
    dyn: Annotated[float, NotNegative]
    rep: Annotated[float, NotNegative]
    policy: Annotated[float, NotNegative]
    value: Annotated[float, NotNegative]
    repval: Annotated[float, NotNegative]


@dataclass(frozen=True, kw_only=True)
class ReturnNormalization:
    """How advantages are scaled by the spread of returns."""

    rate: Annotated[float, PositiveShare]
    limit: Annotated[float, Positive]
    low: Annotated[float, Range(0, 100)]
    high: Annotated[float, Range(0, 100)]

    def __post_init__(self):
        if self.low >= self.high:
            raise ValueError(f"low {self.low:g} must be below high {self.high:g}")


@dataclass(frozen=True, kw_only=True)
class Config(ActingConfig):
    name: str
    fragment_length: Annotated[int, Count, OnlyFor(EXPERIENCE)]
    num_envs: Annotated[int, Count, OnlyFor(EXPERIENCE)]
    batch_size: Annotated[int, Count]
    batch_length: Annotated[int, Range(2)]
    replay_context: Annotated[int, Count]
    train_ratio: Annotated[float, Positive, OnlyFor(PACED), OnlyFor(EXPERIENCE)]
    learning_starts: Annotated[int, OnlyFor(EXPERIENCE)]
    online_queue: Annotated[bool, OnlyFor(EXPERIENCE)]
    imag_length: Annotated[int, Count]
    imag_last: Annotated[int, NotNegative]
    horizon: Annotated[float, Range(1, above_lowest=True)]  # a dream's weight is divided by the discount
    contdisc: bool
    lambda_: Annotated[float, Share]
    entropy_coef: Annotated[Schedule, NotNegative]
    free_nats: Annotated[float, NotNegative]
    loss_scales: LossScales
    return_norm: ReturnNormalization
    slow_reg: Annotated[float, NotNegative]
    slow_target: bool
    slow_rate: Annotated[float, PositiveShare, OnlyFor(SLOW_VALUES)]
    slow_every: Annotated[int, Count, OnlyFor(SLOW_VALUES)]
    reward_grad: Annotated[bool, OnlyWith(".loss_scales.rew")]
    repval_grad: Annotated[bool, OnlyWith(".loss_scales.repval")]
    lr: Annotated[Schedule, NotNegative]
    optimizer: OptimizerConfig

    def __post_init__(self):
        if self.learning_starts < self.rows:
            raise ValueError(f"learning_starts {self.learning_starts} is below the {self.rows} rows of a sequence")
        if self.imag_last == 1 or self.imag_last > self.batch_length:
            raise ValueError(f"imag_last {self.imag_last} must be 0, or 2 to batch_length {self.batch_length}")

    @property
    def rows(self) -> int:
        """Rows of a sequence."""
        return self.replay_context + self.batch_length - 1

    @property
    def dreaming(self) -> int:
        """Rows of a sequence, its last ones, at which dreams begin."""
        return self.imag_last or self.batch_length

    @property
    def discount(self) -> float:
        return 1.0 - 1.0 / self.horizon


class DreamerV3(Algorithm):
    cfg: Config
    policy: DreamerPolicy
    has_world_model = True

    @classmethod
    def needs(cls, cfg: Config) -> Needs:
        actions = ("discrete", "multi_discrete", "multi_binary", "box")
        return needs_of_sequences(
            cfg, cfg.rows, cfg.batch_length, actions, new_first=cfg.online_queue, core_first=cfg.replay_context
        )

    @classmethod
    def make_policy(cls, spec: EnvSpec, model: Model, cfg: Config) -> DreamerPolicy:
        return DreamerPolicy(spec, model, cfg.explorer(spec))

    def __init__(self, policy: DreamerPolicy, spec: EnvSpec, cfg: Config, ctx: LearnerContext):
        super().__init__(policy, spec, cfg, ctx)
        net, rssm, low = policy.cfg, policy.rssm, policy.compute
        units, seen = net.widths.units, rssm.features
        self.decoder = WorldDecoder(policy.encoder.entries, net, rssm.deter, rssm.size, low)
        # Rewards and values are 0 at first.
        self.reward = Head(seen, net.bins, units, net.reward_layers, low, scale=0.0)
        self.continues = Head(seen, 1, units, net.continue_layers, low)
        self.value = Head(seen, net.bins, units, net.value_layers, low, scale=0.0)
        for part in (self.decoder, self.reward, self.continues, self.value):
            part.to(ctx.device)
        self.slow_value = copy.deepcopy(self.value).requires_grad_(False)
        self.following = Follower(self.slow_value, self.value)
        self.returns = ReturnRange(
            cfg.return_norm.low, cfg.return_norm.high, cfg.return_norm.rate, cfg.return_norm.limit
        ).to(ctx.device)
        self.bins = symexp_bins(net.bins).to(ctx.device)
        learnt = (policy, self.decoder, self.reward, self.continues, self.value)
        self.optimizer = ctx.optimizer(
            [parameter for part in learnt for parameter in part.parameters()], cfg.optimizer, cfg.lr, 0.0
        )

    def update(self, batch: Batch, clock: Clock) -> Update:
        update = self.learn(batch, clock)
        if (clock.updates + 1) % self.cfg.slow_every == 0:
            self.following.move(self.cfg.slow_rate)
        return update

    @recorded
    def learn(self, batch: Batch, clock: Clock) -> Update:
        """Makes one step of everything that learns, and returns metrics and the new h of the rows that it learnt from.

        batch has T rows and obs of T + 1; core.deter [1, B, deter] is h at row 0. The L = batch_length rows that are
        learnt from are the last observations, each with the reward and the end that came with it."""
        context, cfg = self.cfg.replay_context, self.cfg
        before = batch.map(lambda x: x[context - 1 :])  # rows whose consequences are learnt
        came = before.valid  # [L, B]: whether a row is the consequence of an action, or begins an episode
        first = batch.is_first[context:]
        real = came | first
        reward = before.reward.masked_fill(~came, 0.0)
        terminal = before.terminated & came
        last = torch.cat((~before.valid[1:], torch.zeros_like(terminal[:1])))

        # The world model (section "World model learning").
        states, posterior = self.follow(batch)
        rows = State(*(part.flatten(0, 1) for part in states))  # [L * B, ...]
        seen = rows_of(batch.obs.observation, context)
        prior = self.policy.rssm.prior(rows.h)
        losses, told = self.divergences(posterior.flatten(0, 1), prior)
        losses["rec"] = self.decoder.loss(rows, seen)
        features = rows.features  # [L * B, F]
        rewarding = features if cfg.reward_grad else features.detach()
        losses["rew"] = two_hot_loss(self.reward(rewarding), self.bins, (reward.flatten(), 1.0))
        alive = (~terminal).float().flatten() * (cfg.discount if cfg.contdisc else 1.0)
        losses["con"] = F.binary_cross_entropy_with_logits(
            self.continues(features).squeeze(-1), alive, reduction="none"
        )

        # Policy and value (section "Actor critic learning"), from the last rows of each sequence.
        latest = slice(-cfg.dreaming, None)
        start = State(*(part[latest].detach().flatten(0, 1) for part in states))  # [N, ...]
        dreamt, start_return, of_dreams = self.dream(start, real[latest].flatten(), batch, clock)
        reward = reward[latest]
        valued = features.unflatten(0, real.shape)[latest].flatten(0, 1)
        dreamt["repval"] = self.replayed_value_loss(
            valued if cfg.repval_grad else valued.detach(),
            reward,
            terminal[latest],
            last[latest],
            start_return.view_as(reward),
        )
        mean = self.mean_over(real)
        shares = {name: mean(x.view_as(real)) for name, x in (losses | told).items()}
        mean = mean if cfg.dreaming == len(real) else self.mean_over(real[latest])
        shares |= {name: mean(x.view_as(reward)) for name, x in (dreamt | of_dreams).items()}
        loss = torch.stack([scale * shares[name] for name, scale in asdict(cfg.loss_scales).items()]).sum()
        steps = self.optimizer.step(loss, clock)
        scale = {"return_scale": (self.returns.ends[1] - self.returns.ends[0]).clamp(min=cfg.return_norm.limit)}
        return Update(self.report({"loss": loss, **shares}, steps, scale), {"core": Batch(deter=states.h.detach())})

    def follow(self, batch: Batch) -> tuple[State, Tensor]:
        """Follows the rows of a batch. Returns the states [L, B, ...] and the posterior's logits [L, B, S] of the last
        L rows. The context rows before them only make the first state."""
        rssm, context = self.policy.rssm, self.cfg.replay_context
        shape = batch.is_first.shape  # T + 1, B
        uniform = self.ctx.rand((shape[1], shape[0], rssm.stoch)).transpose(0, 1)
        tokens, actions = self.encoded(batch)

        def rows(state: State, start: int, end: int) -> tuple[State, Tensor]:
            """Follows the rows from start to end - 1, from the state of the row before."""
            return rssm.observe(
                state, tokens[start:end], actions[start - 1 : end - 1], batch.is_first[start:end], uniform[start:end]
            )

        with torch.no_grad():
            state = self.first_state(batch, tokens[0], uniform[0])
            if context > 1:
                states, _ = rows(state, 1, context)
                state = State(states.h[-1], states.z[-1])
        return rows(state, context, shape[0])

    def encoded(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """What the encoder makes of the observations of a batch [T + 1, B, E], and its flat actions [T, B, A]."""
        actions = self.policy.actor.flat(batch.action.flatten(0, 1)).unflatten(0, batch.reward.shape)
        return self.policy.encoder(rows_of(batch.obs.observation)).unflatten(0, batch.is_first.shape), actions

    def first_state(self, batch: Batch, tokens: Tensor, uniform: Tensor) -> State:
        """The state [B, ...] at row 0 of a batch, from the h that is stored there; tokens [B, E] and uniform numbers
        [B, stoch] are those of this row."""
        rssm, stored = self.policy.rssm, self.policy.state_before(batch).deter
        h = torch.where(batch.is_first[0].unsqueeze(-1), rssm.first(), stored.float())
        return State(h, rssm.draw(rssm.probabilities(rssm.believed(h, tokens)), uniform))

    @torch.no_grad()
    def open_loop(self, batch: Batch, context: int, rng: torch.Generator) -> OpenLoop:
        """z is drawn from the posterior at the first `context` rows, and from the prior behind them."""
        rssm, shape = self.policy.rssm, batch.is_first.shape  # T + 1, B
        uniform = torch.rand(*shape, rssm.stoch, generator=rng, device=rng.device)
        tokens, actions = self.encoded(batch)
        state = self.first_state(batch, tokens[0], uniform[0])
        parts = [State(*(part.unsqueeze(0) for part in state))]
        if context > 1:
            seen, _ = rssm.observe(
                state, tokens[1:context], actions[: context - 1], batch.is_first[1:context], uniform[1:context]
            )
            parts.append(seen)
        last = State(*(part[-1] for part in parts[-1]))
        dreamt, _ = rssm.imagine(last, lambda _, step: actions[context - 1 + step], uniform[context:])
        parts.append(State.of(dreamt[1:].float(), rssm.deter))
        states = State(*(torch.cat(every) for every in zip(*parts, strict=True)))  # [T + 1, B, ...]
        flat, true = State(*(part.flatten(0, 1) for part in states)), rows_of(batch.obs.observation)
        go_on = in_pieces(self.continues, states.features[1:]).squeeze(-1).sigmoid()
        return OpenLoop(
            context=context,
            true={name: x.unflatten(0, shape) for name, x in self.decoder.truth(true).items()},
            said={name: x.unflatten(0, shape) for name, x in self.decoder.predicted(flat).items()},
            reward=self.predicted(self.reward, states.features[1:]),
            came=batch.reward,
            go_on=(go_on / self.cfg.discount).clamp(max=1.0) if self.cfg.contdisc else go_on,
            rec=self.decoder.loss(flat, true).unflatten(0, shape),
        )

    def divergences(self, posterior: Tensor, prior: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The losses dyn and rep [N] (eq. 3) of logits [N, S], and metrics [N]. Both losses have the same value, KL
        summed over z and clipped below at free_nats; dyn moves the prior and rep the posterior."""
        rssm = self.policy.rssm
        p, q = rssm.probabilities(posterior), rssm.probabilities(prior)
        log_p, log_q = p.log(), q.log()
        dyn = (p.detach() * (log_p.detach() - log_q)).flatten(1).sum(1)
        rep = (p * (log_p - log_q.detach())).flatten(1).sum(1)
        told = {
            "kl": dyn.detach(),
            "posterior_entropy": -(p.detach() * log_p.detach()).flatten(1).sum(1),
            "prior_entropy": -(q.detach() * log_q.detach()).flatten(1).sum(1),
        }
        free = self.cfg.free_nats
        return {"dyn": dyn.clamp(min=free), "rep": rep.clamp(min=free)}, told

    def dream(
        self, start: State, real: Tensor, batch: Batch, clock: Clock
    ) -> tuple[dict[str, Tensor], Tensor, dict[str, Tensor]]:
        """Imagines from N states. Returns the losses of policy and value [N], the returns of the first states
        [N], and metrics [N].

        real [N]: whether a state is that of an observation. The spread of returns leaves out dreams from others."""
        cfg, actor, rssm = self.cfg, self.policy.actor, self.policy.rssm
        steps, columns = cfg.imag_length, batch.reward.shape[1]
        # Columns come first, so that several learners draw the numbers of one.
        shape = (columns, len(start.h) // columns, steps)

        def by_step(noise: Tensor) -> Tensor:
            return noise.permute(2, 1, 0, 3).flatten(1, 2)  # [H, N, ...]

        draw = self.ctx.randn if isinstance(self.spec.action, Box) else self.ctx.rand
        noise, uniform = by_step(draw((*shape, actor.size))), by_step(self.ctx.rand((*shape, rssm.stoch)))
        # Features [H + 1, N, F] and actions [H, N, A].
        features, actions = rssm.imagine(start, lambda seen, t: actor.chosen(seen, noise[t]), uniform)
        logits = self.value(features[:-1])  # [H, N, bins]
        with torch.no_grad():
            # Each [H + 1, N]. With contdisc, go_on is the probability of going on times the discount.
            reward, go_on, slow = in_pieces(self.judged, features).unbind(-1)
            if not cfg.contdisc:
                go_on = go_on * cfg.discount
            value = torch.cat((in_pieces(self.mean_of, logits), self.predicted(self.value, features[-1:])))
            target_value = slow if cfg.slow_target else value
            # Rewards that come with the states 1 to H.
            returns = bootstrapped_returns(reward[1:], go_on[1:], target_value[1:], cfg.lambda_)
            # The weight of step t is the probability that the dream lasts until t, discounted. Its first factor is that
            # of the state where the dream begins, so a dream that begins at an episode's end weighs almost nothing.
            weight = go_on[:-1].cumprod(0) / (1.0 if cfg.contdisc else cfg.discount)
            counted = returns.masked_fill(~real, math.inf)
            scale = self.returns.follow(self.of_all(counted.flatten()))
            advantage = (returns - target_value[:-1]) / scale
        dist = actor(features[:-1])
        entropy = dist.entropy()
        objective = dist.log_prob(actor.rows(actions)) * advantage + cfg.entropy_coef(clock) * entropy
        value_loss = two_hot_loss(logits, self.bins, (returns, 1.0), (slow[:steps], cfg.slow_reg))
        told = {
            "entropy": entropy.detach(),
            "advantage_abs": advantage.abs(),
            "return_mean": returns,
            "value_mean": value,
            "reward_mean": reward[1:],
            "continue_mean": go_on,
        }
        losses = {"policy": -(weight * objective).mean(0), "value": (weight * value_loss).mean(0)}
        return losses, returns[0], {name: each.mean(0) for name, each in told.items()}

    def judged(self, features: Tensor) -> Tensor:
        """Reward, probability of going on and slow value [..., 3] for features [..., F]."""
        reward, go_on, slow = side_by_side((self.reward, self.continues, self.slow_value), features)
        return torch.stack((self.mean_of(reward), go_on.squeeze(-1).sigmoid(), self.mean_of(slow)), -1)

    def mean_of(self, logits: Tensor) -> Tensor:
        return expected(logits, self.bins)

    def predicted(self, head: Head, features: Tensor) -> Tensor:
        """What a head over bins predicts [S, ...] for features [S, ..., F]."""
        return in_pieces(lambda x: self.mean_of(head(x)), features)

    def replayed_value_loss(
        self, features: Tensor, reward: Tensor, terminal: Tensor, last: Tensor, start_return: Tensor
    ) -> Tensor:
        """The loss [N] of the value on replayed rows [L, B], which bootstraps from the returns of the dreams that begin
        there. An episode's last row has nothing to learn, and the last row of a sequence has no successor.

        With imag_last, L is the number of rows at which dreams begin."""
        cfg, rows = self.cfg, len(reward)
        logits = self.value(features).unflatten(0, reward.shape)[:-1]
        with torch.no_grad():
            slow = self.mean_of(self.slow_value(features)).view_as(reward)[:-1]
            returns = bootstrapped_returns(
                reward[1:],
                cfg.discount * (~terminal[1:]).float(),
                start_return[1:],
                cfg.lambda_ * (~last[1:]).float(),
            )
        loss = two_hot_loss(logits, self.bins, (returns, 1.0), (slow, cfg.slow_reg)).masked_fill(last[:-1], 0.0)
        # The mean is over L - 1 rows.
        return F.pad(loss * (rows / (rows - 1)), (0, 0, 0, 1)).flatten()


def in_pieces(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """function(x) for x [S, ...], on a CPU one piece of S after the other: what a piece needs stays in the cache."""
    return function(x) if x.device.type != "cpu" else torch.stack([function(one) for one in x])
