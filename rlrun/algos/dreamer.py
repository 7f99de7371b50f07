"""Dreamer: a policy learnt in the dreams of a world model (Hafner et al. 2020, arXiv:1912.01603).

The world model predicts observations and rewards. Dreams begin at the states of replayed rows. The returns of dreams
are differentiated through predicted values, rewards and the model's dynamics, and this gradient moves the policy alone.

Rows: sequences of batch_length rows and one observation, which begin at any row; the memory begins with zeros.
Recorded: nothing; the model's h is stored at every row, for open-loop predictions alone.
Refused: action masks, because the world model does not predict which actions will be legal; unbounded actions; images
that are not 64 x 64; options of other networks.
Differs from the author's code (danijar/dreamer @ 56d4d44): vectors and choices can be observed. A sequence may go on in
the next episode, where the memory begins anew; rows are drawn with equal probability, not episodes. Dreams do not begin
at the end of an episode, where the code leaves out the last row of every sequence. Half precision is bf16 here and
float16 in the code. Greedy acting takes the means of z and of the action's normal variable, where the code draws z and
takes the most probable of 100 actions.
Metrics: learn/model_loss, actor_loss and value_loss; rec, rew and con: parts of the model's loss, without weights and
constants; terminated_share: with continuation=false, the share of rows at which an episode terminated; kl: before free
nats; prior_entropy, posterior_entropy: means over rows, summed over z; entropy: of the policy on replayed rows;
return_mean, value_mean and reward_mean of dreams; continue_mean, discount included; exploration_noise: what
exploration.noise is now; model_grad_norm, actor_grad_norm and value_grad_norm before clipping; model_lr, actor_lr,
value_lr; open_loop_rec_<steps>, open_loop_reward_<steps>: errors so many steps behind 5 rows that were seen
(imagine.every).
Checked: tests/algos/test_dreamer.py, tuned/dreamer/.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from rlrun.core.algorithm import Algorithm, LearnerContext, Needs, Update, recorded
from rlrun.core.batch import Batch
from rlrun.core.conditions import EXPERIENCE, PACED, OnlyFor, OnlyWith
from rlrun.core.open_loop import OpenLoop
from rlrun.core.optimizer import OptimizerConfig
from rlrun.core.ranges import Count, NotNegative, Positive, Range, Share
from rlrun.core.schedule import Clock, Schedule
from rlrun.core.specs import Box, EnvSpec
from rlrun.families.dreaming import needs_of_sequences
from rlrun.families.off_policy import step_metrics
from rlrun.models.gaussian_world_model import Belief, GaussianDecoder, dense
from rlrun.models.model import Model
from rlrun.models.observations import rows_of
from rlrun.models.world_model import State
from rlrun.ops.returns import bootstrapped_returns
from rlrun.ops.transforms import clip_reward
from rlrun.policies import ActingConfig
from rlrun.policies.dreamer import DisturbedConfig, GaussianDreamerPolicy


@dataclass(frozen=True, kw_only=True)
class Config(ActingConfig):
    name: str
    fragment_length: Annotated[int, Count, OnlyFor(EXPERIENCE)]
    num_envs: Annotated[int, Count, OnlyFor(EXPERIENCE)]
    batch_size: Annotated[int, Count]
    batch_length: Annotated[int, Range(2)]
    train_ratio: Annotated[float, Positive, OnlyFor(PACED), OnlyFor(EXPERIENCE)]
    learning_starts: Annotated[int, OnlyFor(EXPERIENCE)]
    imag_length: Annotated[int, Range(2)]
    discount: Annotated[float, Share]
    lambda_: Annotated[float, Share]
    free_nats: Annotated[float, NotNegative, OnlyWith("kl_coef")]
    kl_coef: Annotated[float, NotNegative]
    continuation: bool
    continue_coef: Annotated[float, NotNegative, OnlyWith("continuation")]
    model_lr: Annotated[Schedule, NotNegative]
    actor_lr: Annotated[Schedule, NotNegative]
    value_lr: Annotated[Schedule, NotNegative]
    max_grad_norm: Annotated[float, NotNegative]
    reward_clip: Literal["none", "sign"] | Annotated[float, Positive]
    exploration: DisturbedConfig
    optimizer: OptimizerConfig

    def __post_init__(self):
        if self.learning_starts < self.batch_length:
            raise ValueError(
                f"learning_starts {self.learning_starts} is below the {self.batch_length} rows of a sequence"
            )


class Dreamer(Algorithm):
    cfg: Config
    policy: GaussianDreamerPolicy
    has_world_model = True

    @classmethod
    def needs(cls, cfg: Config) -> Needs:
        return needs_of_sequences(cfg, cfg.batch_length, cfg.batch_length, ("discrete", "box"))

    @classmethod
    def make_policy(cls, spec: EnvSpec, model: Model, cfg: Config) -> GaussianDreamerPolicy:
        return GaussianDreamerPolicy(spec, model, cfg.explorer(spec))

    def __init__(self, policy: GaussianDreamerPolicy, spec: EnvSpec, cfg: Config, ctx: LearnerContext):
        super().__init__(policy, spec, cfg, ctx)
        net, seen, low = policy.cfg, policy.rssm.features, policy.compute

        def head(layers: int) -> torch.nn.Sequential:
            return dense(seen, net.units, layers, 1, net.activation, low).to(ctx.device)

        self.decoder = GaussianDecoder(policy.encoder.entries, net, low).to(ctx.device)
        self.reward, self.value = head(net.reward_layers), head(net.value_layers)
        self.continues = head(net.continue_layers) if cfg.continuation else None
        model = [policy.encoder, policy.rssm, self.decoder, self.reward]
        model += [] if self.continues is None else [self.continues]
        self.model_optimizer = ctx.optimizer(
            [parameter for part in model for parameter in part.parameters()],
            cfg.optimizer,
            cfg.model_lr,
            cfg.max_grad_norm,
        )
        self.actor_optimizer = ctx.optimizer(policy.actor.parameters(), cfg.optimizer, cfg.actor_lr, cfg.max_grad_norm)
        self.value_optimizer = ctx.optimizer(self.value.parameters(), cfg.optimizer, cfg.value_lr, cfg.max_grad_norm)

    def update(self, batch: Batch, clock: Clock) -> Update:
        update = self.learn(batch, clock)
        return update._replace(metrics=update.metrics | self.policy.explored(clock))

    @recorded
    def learn(self, batch: Batch, clock: Clock) -> Update:
        """Makes one step of the world model, the policy and the value. All gradients use the parameters before it.

        batch has T rows and obs of T + 1. What is learnt are the last T observations, each with the action, the reward
        and the end that came with it."""
        came = batch.valid  # [T, B]: whether an observation is the consequence of an action
        real = came | batch.is_first[1:]  # [T, B]: whether it is that, or begins an episode
        loss, start, told = self.world_model_loss(batch, came, real)
        self.model_optimizer.differentiate(loss)
        # Nothing follows an end.
        begins = real & ~(batch.terminated & came)
        actor_loss, value_loss, of_dreams = self.dream(State(*(part.detach() for part in start)), begins)
        self.actor_optimizer.differentiate(actor_loss)
        self.value_optimizer.differentiate(value_loss)
        steps = step_metrics(
            model=self.model_optimizer.apply(clock),
            actor=self.actor_optimizer.apply(clock),
            value=self.value_optimizer.apply(clock),
        )
        losses = {"model_loss": loss, "actor_loss": actor_loss, "value_loss": value_loss}
        return Update(self.report({**losses, **told, **of_dreams}, steps))

    # -- the world model: section 4 ------------------------------------------------------------------------------------

    def world_model_loss(self, batch: Batch, came: Tensor, real: Tensor) -> tuple[Tensor, State, dict[str, Tensor]]:
        """The loss [] of the world model (eq. 10, in the form of appendix A), the states [T * B, ...] of the rows, and
        shares of metrics. came, real: [T, B]."""
        cfg, policy, mean = self.cfg, self.policy, self.mean_over(real)
        states, posterior, prior = self.follow(batch)
        rows = State(*(part.flatten(0, 1) for part in states))  # [T * B, ...]
        seen, features = rows_of(batch.obs.observation, 1), rows.features
        reward = clip_reward(batch.reward, cfg.reward_clip).masked_fill(~came, 0.0)  # an episode begins with 0
        told = {
            "rec": mean(self.decoder.loss(rows, seen).view_as(reward)),
            "rew": mean(0.5 * (self.reward(features).view_as(reward) - reward).square()),
            "kl": mean(posterior.divergence(prior)),
        }
        loss = told["rec"] + told["rew"] + cfg.kl_coef * self.beyond_free_nats(told["kl"])
        if self.continues is not None:
            alive = cfg.discount * (~(batch.terminated & came)).float()
            continue_logits = self.continues(features).view_as(alive)
            told["con"] = mean(F.binary_cross_entropy_with_logits(continue_logits, alive, reduction="none"))
            loss = loss + cfg.continue_coef * told["con"]
        else:  # a sign for core/health.py: no dream ends, although episodes do
            told["terminated_share"] = mean((batch.terminated & came).float())
        with torch.no_grad():
            told |= {
                "posterior_entropy": mean(posterior.entropy()),
                "prior_entropy": mean(prior.entropy()),
                "entropy": mean(policy.actor(features).entropy().view_as(reward)),
            }
        return loss, rows, told

    def follow(self, batch: Batch) -> tuple[State, Belief, Belief]:
        """Follows the last T observations of a batch. Returns states, posterior and prior [T, B, ...]."""
        policy, rssm, rows = self.policy, self.policy.rssm, batch.reward.shape
        tokens = policy.encoder(rows_of(batch.obs.observation, 1)).unflatten(0, rows)
        noise = self.ctx.randn((rows[1], rows[0], rssm.size)).transpose(0, 1)
        return rssm.observe(rssm.zeros(rows[1])[0], tokens, self.actions(batch), batch.is_first[1:], noise)

    def actions(self, batch: Batch) -> Tensor:
        """Flat actions [T, B, A]."""
        return self.policy.actor.flat(batch.action.flatten(0, 1)).unflatten(0, batch.reward.shape)

    @torch.no_grad()
    def open_loop(self, batch: Batch, context: int, rng: torch.Generator) -> OpenLoop:
        """z is drawn from the posterior at the first `context` rows, and from the prior behind them. The memory begins
        as acting left it, and not with zeros as in learning."""
        policy, rssm, shape = self.policy, self.policy.rssm, batch.is_first.shape  # T + 1, B
        noise = torch.randn(*shape, rssm.size, generator=rng, device=rng.device)
        true, actions = rows_of(batch.obs.observation), self.actions(batch)
        tokens = policy.encoder(true).unflatten(0, shape)
        stored: Tensor = policy.state_before(batch)["deter"]  # type: ignore[assignment]
        h = torch.where(batch.is_first[0].unsqueeze(-1), rssm.first(), stored.float())
        state = State(h, rssm.posterior(h, tokens[0]).drawn(noise[0]))
        parts = [State(*(part.unsqueeze(0) for part in state))]
        if context > 1:
            rows = slice(1, context)
            seen, _, _ = rssm.observe(state, tokens[rows], actions[: context - 1], batch.is_first[rows], noise[rows])
            parts.append(seen)
        last = State(*(part[-1] for part in parts[-1]))
        dreamt, _ = rssm.imagine(last, lambda _, step: actions[context - 1 + step], noise[context:])
        parts.append(State(*(part[1:] for part in dreamt)))
        states = State(*(torch.cat(every) for every in zip(*parts, strict=True)))  # [T + 1, B, ...]
        flat, features = State(*(part.flatten(0, 1) for part in states)), states.features[1:]
        reward = self.reward(features).squeeze(-1)
        go_on = torch.ones_like(reward)
        if self.continues is not None:
            go_on = (self.continues(features).squeeze(-1).sigmoid() / self.cfg.discount).clamp(max=1.0)
        return OpenLoop(
            context=context,
            true={name: x.unflatten(0, shape) for name, x in self.decoder.truth(true).items()},
            said={name: x.unflatten(0, shape) for name, x in self.decoder.predicted(flat).items()},
            reward=reward,
            came=clip_reward(batch.reward, self.cfg.reward_clip),
            go_on=go_on,
            rec=self.decoder.loss(flat, true).unflatten(0, shape),
        )

    def beyond_free_nats(self, kl: Tensor) -> Tensor:
        """This learner's share of max(free_nats, KL), from its share of the mean KL []."""
        free = self.cfg.free_nats
        return torch.where(self.total(kl.detach()) > free, kl, self.part(free))

    # -- policy and value: section 3 -----------------------------------------------------------------------------------

    def dream(self, start: State, begins: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Imagines from N = T * B states. Returns the losses [] of policy (eq. 7) and value (eq. 8), and shares of
        metrics. begins [T, B]: the states from which dreams count."""
        cfg, actor, rssm = self.cfg, self.policy.actor, self.policy.rssm
        mean, steps, (rows, columns) = self.mean_over(begins), cfg.imag_length, begins.shape

        def by_step(noise: Tensor) -> Tensor:
            # Columns are drawn first, so that several learners draw the numbers of one.
            return noise.permute(2, 1, 0, 3).flatten(1, 2)  # [H, N, ...]

        draw = self.ctx.randn if isinstance(self.spec.action, Box) else self.ctx.rand
        chosen = by_step(draw((columns, rows, steps, actor.size)))
        noise = by_step(self.ctx.randn((columns, rows, steps, rssm.size)))
        # The policy does not see how it changes what it sees: its gradient goes through the action alone.
        states, _ = rssm.imagine(start, lambda state, t: actor.chosen(state.features.detach(), chosen[t]), noise)
        features = states.features[1:]  # [H, N, F]
        reward, value = self.reward(features).squeeze(-1), self.value(features).squeeze(-1)  # [H, N]
        if self.continues is None:
            discount = torch.full_like(reward, cfg.discount)
        else:
            discount = self.continues(features).squeeze(-1).sigmoid()
        returns = bootstrapped_returns(reward[:-1], discount[:-1], value[1:], cfg.lambda_)  # [H - 1, N], eq. 6
        with torch.no_grad():
            weight = torch.cat((torch.ones_like(discount[:1]), discount[:-2])).cumprod(0)

        def over_dreams(x: Tensor) -> Tensor:
            """This learner's share of the mean of x [H or H - 1, N]."""
            return mean(x.mean(0).view_as(begins))

        actor_loss = -over_dreams(weight * returns)
        predicted = self.value(features[:-1].detach()).squeeze(-1)
        value_loss = over_dreams(0.5 * weight * (predicted - returns.detach()).square())
        told = {"return_mean": returns, "value_mean": value, "reward_mean": reward, "continue_mean": discount}
        return actor_loss, value_loss, {name: over_dreams(x.detach()) for name, x in told.items()}
