"""PPO: proximal policy optimisation (Schulman et al. 2017, arXiv:1707.06347).

Rows: fragments [T, B] that the newest policy sampled. Every update makes num_epochs passes over all of them in
shuffled minibatches. Minibatches consist of single rows or, for models with memory, of sequences of sequence_length
rows that start from the recurrent state stored there.
Recorded: log_prob and value of the policy that acted; its whole distribution (dist) with kl_coef; the recurrent state
at every sequence's first row.
Differs from the paper: the value loss may be clipped (value_clip as in OpenAI's baselines, value_loss_clip as RLlib's
vf_clip_param). Advantages are normalised. Gradients are clipped. The value head may learn normalised returns
(normalize_value), and lr may follow the KL (lr_kl_target). Both objectives of the paper can be on at once, as in
RLlib: clipping (eq. 7) and the adaptive KL penalty (eq. 8). With use_critic=false nothing is learnt about values, and
advantages are the discounted rewards of the rows that follow, up to the end of the episode or of the fragment.
Metrics: learn/policy_loss, value_loss and entropy per row; approx_kl: mean of (ratio - 1) - log ratio, an estimate of
KL(old || new); clip_fraction: share of rows whose ratio was clipped; kl (of the whole update) and kl_coef when the
penalty is on; explained_variance of the values recorded while acting; grad_norm before clipping; lr; epochs: number of
passes made (stop_kl ends them early).
Checked: tests/ops/test_returns.py (GAE by its definition), tests/algos/test_ppo.py (losses by hand), tuned/ppo/.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from rlrun.core.algorithm import Algorithm, LearnerContext, Needs, Update, recorded
from rlrun.core.batch import Batch
from rlrun.core.conditions import OnlyWith
from rlrun.core.masked import with_dead_rows
from rlrun.core.metrics import Means
from rlrun.core.ranges import Count, NotNegative, Positive, Range, Share
from rlrun.core.schedule import Clock, Schedule
from rlrun.core.specs import EnvSpec
from rlrun.families.actor_critic import ActorCriticConfig, check_normalized
from rlrun.models.model import Model
from rlrun.models.normalizer import RewardScale, ValueScale
from rlrun.ops.distributions import Distribution
from rlrun.ops.policy_loss import adapt_kl_coef_, bounded
from rlrun.ops.returns import gae
from rlrun.ops.transforms import clip_reward
from rlrun.policies import DistributionPolicy


@dataclass(frozen=True, kw_only=True)
class Config(ActorCriticConfig):
    minibatch_size: Annotated[int, Count]
    num_epochs: Annotated[int, Count]
    sequence_length: Annotated[int, Count, OnlyWith("model.memory.kind", "lstm", "gru", "gtrxl")]
    use_critic: bool
    value_coef: Annotated[float, NotNegative, OnlyWith("use_critic")]
    lambda_: Annotated[float, Share, OnlyWith("use_critic")]
    clip: Annotated[Schedule, NotNegative]
    value_clip: Annotated[float, NotNegative]
    value_loss_clip: Annotated[float, NotNegative]
    kl_coef: Annotated[float, NotNegative]
    kl_target: Annotated[float, Positive, OnlyWith("kl_coef")]
    stop_kl: Annotated[Annotated[float, Positive] | None, OnlyWith("num_epochs", Range(2))]
    normalize_advantage: Literal["none", "batch", "minibatch"]
    normalize_reward: bool
    normalize_value: bool
    lr_kl_target: Annotated[float, Positive] | None
    lr_kl_bounds: Annotated[tuple[Annotated[float, Positive], Annotated[float, Positive]], OnlyWith("lr_kl_target")]

    def __post_init__(self):
        super().__post_init__()
        if self.batch_size % self.minibatch_size:
            raise ValueError(f"batch_size {self.batch_size} must be a multiple of minibatch_size {self.minibatch_size}")
        of_values = [name for name in ("value_clip", "value_loss_clip", "normalize_value") if getattr(self, name)]
        if of_values and not self.use_critic:
            raise ValueError(f"{of_values[0]} is about values, which are not learnt with use_critic=false")
        if self.lr_kl_bounds[0] >= self.lr_kl_bounds[1]:
            raise ValueError("lr_kl_bounds must be two positive numbers, the lower one first")
        if self.normalize_reward and self.reward_clip != "none":
            raise ValueError("normalize_reward scales raw rewards: set reward_clip=none with it")


class PPO(Algorithm):
    cfg: Config
    policy: DistributionPolicy
    filters_pixels = True
    kl_coef: Tensor

    @classmethod
    def needs(cls, cfg: Config) -> Needs:
        record = ("log_prob", *(["value"] if cfg.use_critic else []), *(["dist"] if cfg.kl_coef > 0 else []))
        sequences, rest = divmod(cfg.minibatch_size, cfg.sequence_length)
        return Needs(
            rows=cfg.fragment_length,
            columns=cfg.columns,
            record=record,
            core_every=cfg.sequence_length,
            return_discount=cfg.discount if cfg.normalize_reward else None,
            on_policy=True,
            # Whether the model has memory is not known here. What divides the sequences of a minibatch divides its rows
            # too; where rows do not fill sequences, they fit a model without memory alone.
            shared=(cfg.minibatch_size if rest else sequences,),
        )

    @classmethod
    def make_policy(cls, spec: EnvSpec, model: Model, cfg: Config) -> DistributionPolicy:
        return DistributionPolicy(spec, model, cfg.explorer(spec))

    def __init__(self, policy: DistributionPolicy, spec: EnvSpec, cfg: Config, ctx: LearnerContext):
        super().__init__(policy, spec, cfg, ctx)
        # Minibatches are drawn from sequences of this many rows.
        self.length = cfg.sequence_length if policy.core_spec() else 1
        if cfg.fragment_length % self.length:
            raise ValueError(
                f"fragment_length {cfg.fragment_length} must be a multiple of sequence_length {self.length}"
            )
        if cfg.minibatch_size % (self.length * ctx.learners):
            learners = f" times num_learners {ctx.learners}" if ctx.learners > 1 else ""
            raise ValueError(
                f"minibatch_size {cfg.minibatch_size} must be a multiple of sequence_length {self.length}{learners}"
            )
        # Rows of a minibatch on this learner: those of all agents at so many env steps.
        self.minibatch = self.share(cfg.minibatch_size) * spec.columns_per_env
        if cfg.normalize_advantage != "none":
            option = "minibatch_size" if cfg.normalize_advantage == "minibatch" else "batch_size"
            check_normalized(getattr(cfg, option) * spec.columns_per_env, option)
        self.optimizer = ctx.optimizer(policy.parameters(), cfg.optimizer, cfg.lr, cfg.max_grad_norm)
        if cfg.lr_kl_target is not None:
            self.optimizer.scale_on_device()
        if cfg.normalize_reward:
            self.reward_scale = RewardScale().to(ctx.device)
        # linear_value_head raises an error if the value's last layer cannot be rescaled
        self.value_scale = ValueScale().to(ctx.device) if cfg.normalize_value and policy.linear_value_head else None
        self.register_buffer("kl_coef", torch.tensor(cfg.kl_coef, device=ctx.device))

    def update(self, batch: Batch, clock: Clock) -> Update:
        """Computes advantages of a batch [T(+1), B] once, and then makes num_epochs passes over its minibatches."""
        cfg = self.cfg
        value = self.old_values(batch)  # [T+1, B]
        if self.value_scale is not None:
            value = self.value_scale.denormalize(value)
        reward = clip_reward(batch.reward, cfg.reward_clip)
        if self.reward_scale is not None:
            reward = self.reward_scale(reward)
        lambda_ = cfg.lambda_ if cfg.use_critic else 1.0
        advantage = gae(reward, batch.discount(cfg.discount), value[:-1], value[1:], batch.valid, lambda_)
        target = advantage + value[:-1]
        before = {}
        if cfg.use_critic:
            before["explained_variance"] = self.explained_variance(target, value[:-1], batch.valid)
        if cfg.normalize_advantage == "batch":
            advantage = self.normalize(advantage, batch.valid)
        if self.value_scale is not None:
            self.value_scale.follow(self.moments(target, batch.valid), self.policy.linear_value_head)
            value, target = self.value_scale.normalize(value), self.value_scale.normalize(target)
        rows = batch.replace(value=value[:-1], advantage=advantage, target=target).sequences(self.length)
        if self.ctx.sparse:
            rows = rows.alive()
        # Both average over minibatches: `shares` holds this learner's shares of the losses, and `steps` the optimiser's
        # metrics.
        shares, steps, passes = Means(), Means(), 0
        for epoch in range(cfg.num_epochs):
            kl = self._epoch(rows, clock, shares, steps)
            passes = epoch + 1
            if cfg.stop_kl is not None and float(self.total(kl)) > cfg.stop_kl:
                break
        metrics = self.report(shares.tensors(), steps.tensors(), before, {"epochs": float(passes)})
        if cfg.kl_coef > 0:
            metrics["kl_coef"] = self.kl_coef.clone()
            with torch.no_grad():  # d of section 4: how far the whole update moved the policy
                kl = self.total(self.mean(self._kl(rows, self.policy.unroll(rows)[0].given(rows.action)), rows.valid))
            metrics["kl"] = kl
            adapt_kl_coef_(self.kl_coef, kl, cfg.kl_target)
        return Update(metrics)

    def old_values(self, batch: Batch) -> Tensor:
        """Returns the values [T+1, B] of the policy that acted, or zeros without a critic."""
        if not self.cfg.use_critic:
            return torch.zeros(len(batch.reward) + 1, batch.reward.shape[1], device=batch.reward.device)
        return torch.cat([batch.value, self.policy.last_value(batch).unsqueeze(0)])

    def _epoch(self, rows: Batch, clock: Clock, shares: Means, steps: Means) -> Tensor:
        """Makes one pass over the shuffled rows.

        Returns this learner's share of the mean approx_kl [] of the minibatches."""
        seen = Means()
        for part in self.minibatches(rows, 1, self.minibatch // self.length):
            metrics, step = self.learn(part, clock)
            steps.add(step)
            shares.add(metrics)
            seen.add({"approx_kl": metrics["approx_kl"]})
            if self.cfg.lr_kl_target is not None:
                self.optimizer.follow_kl(
                    clock, float(self.total(metrics["approx_kl"])), self.cfg.lr_kl_target, self.cfg.lr_kl_bounds
                )
        return torch.as_tensor(seen.tensors()["approx_kl"])

    @recorded
    def learn(self, part: Batch, clock: Clock) -> tuple[dict[str, Tensor], dict[str, Tensor | float]]:
        """Makes a step on a minibatch. Returns this learner's shares of its metrics, and the optimiser's metrics."""
        loss, metrics = self.loss(part, self.cfg.clip(clock), self.cfg.entropy_coef(clock))
        return metrics, self.optimizer.step(loss, clock)

    def loss(self, rows: Batch, clip: float, entropy_coef: float) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns this learner's share of the minibatch's loss [] and of its metrics.

        rows are [L, N] with advantage, target and what was recorded while acting."""
        cfg, valid = self.cfg, rows.valid
        mean = self.mean_over(valid)
        dist, value = self.policy.unroll(rows)
        dist = dist.given(rows.action)
        advantage = self.normalize(rows.advantage, valid) if cfg.normalize_advantage == "minibatch" else rows.advantage
        log_ratio = bounded((dist.log_prob(rows.action) - rows.log_prob).masked_fill(~valid, 0.0))
        ratio = log_ratio.exp()
        policy_loss = -mean(torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage))  # eq. 7
        loss = policy_loss
        metrics = {}
        if cfg.use_critic:
            value_loss = 0.5 * mean(self.value_error(rows, value))
            loss = loss + cfg.value_coef * value_loss
            metrics["value_loss"] = value_loss
        entropy = mean(dist.entropy())
        loss = loss - entropy_coef * entropy
        with torch.no_grad():
            metrics |= {
                "policy_loss": policy_loss,
                "entropy": entropy,
                "approx_kl": mean(ratio - 1 - log_ratio),
                "clip_fraction": mean(((ratio - 1).abs() > clip).float()),
            }
        if cfg.kl_coef > 0:
            loss = loss + self.kl_coef * mean(self._kl(rows, dist))  # eq. 8
        return loss, metrics

    def value_error(self, rows: Batch, value: Tensor) -> Tensor:
        """Returns the squared errors of values [L, N], bounded as value_clip and value_loss_clip say."""
        cfg, error = self.cfg, (value - rows.target).square()
        if cfg.value_clip > 0:
            clipped_value = rows.value + (value - rows.value).clamp(-cfg.value_clip, cfg.value_clip)
            error = torch.maximum(error, (clipped_value - rows.target).square())
        return error.clamp(max=cfg.value_loss_clip) if cfg.value_loss_clip > 0 else error

    @staticmethod
    def _kl(rows: Batch, dist: Distribution) -> Tensor:
        """Returns KL(old || new) of every row.

        Rows on which nobody acted hold zeros, for which a KL may have no finite gradient. They get KL(new || new)."""
        old = with_dead_rows(rows.dist, dist.record().map(torch.detach), rows.valid)
        return dist.from_record(old).kl(dist)
