"""MAML: model-agnostic meta-learning of policies (Finn et al. 2017, arXiv:1703.03400, algorithm 3).

The outer steps are those of PPO, as in ProMP (Rothfuss et al. 2019, arXiv:1810.06784, algorithm 1) and RLlib.

Rows: in every update, each of num_tasks tasks is played in inner_steps + 1 rounds of whole episodes. Round 0 uses the
policy's parameters theta. Round k uses the task's own theta_k = theta_{k-1} - inner_lr grad L(theta_{k-1}, round k -
1). L is the policy gradient's surrogate, the mean of -ratio * advantage, plus the loss of the value. Then theta makes
outer_steps steps on PPO's clipped loss of theta_K on the last round. Each of these steps computes theta_K anew from
theta and differentiates through it (algorithm 3, line 10). A penalty keeps the policies of earlier rounds close to
those that played them (ProMP's eq. 14).
Recorded: log_prob, dist and, with baseline=value, value of the policy that played the round.
Options: first_order leaves out the derivative of inner gradients (section 5.2). baseline=linear takes advantages from a
linear regression for each task and round (Duan et al. 2016), as the paper does, and learns no value. sample_tasks=false
is for environments without tasks.
Differs from the paper: the outer step is PPO's in place of TRPO's. Advantages are normalised over each task. The inner
surrogate is ratio * advantage (ProMP's likelihood ratio) and not log-probability * advantage, so that its second
derivative is right after the first outer step too. Advantages are divided by their deviation, which depends on theta as
well: a policy with less noise has smaller advantages before this division, and therefore makes larger inner steps. The
outer gradient goes through this deviation. (RLlib takes it for a constant. Its policies then lose their noise, until
their inner steps are too large.)
Metrics: adapt_0 ... adapt_N: mean return of the episodes of each round, raw; adaptation_delta = adapt_N - adapt_0;
policy_loss, value_loss, entropy and clip_fraction of the outer loss; kl of the adapted policy; inner_kl_1 ... and
kl_coef_1 ...: the divergence of each earlier round's policy, and its weight; grad_norm; lr.
sample/return_mean is that of episodes after the last adaptation. (RLlib's episode_reward_mean is adapt_0.)
Checked: tests/algos/test_maml.py (closed forms, finite differences, PPO without adaptation), tuned/maml/.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from rlrun.core.algorithm import Algorithm, LearnerContext, Needs, Update
from rlrun.core.batch import Batch, nested
from rlrun.core.masked import with_dead_rows
from rlrun.core.metrics import Means
from rlrun.core.schedule import Clock
from rlrun.core.specs import EnvSpec
from rlrun.core.tasks import FromTasks
from rlrun.families.meta import MetaConfig
from rlrun.models.encoders import flatten
from rlrun.models.model import Model
from rlrun.models.per_column import plain, with_vector
from rlrun.ops.inner_steps import gradient_descent
from rlrun.ops.linear_baseline import features, fitted, rows_since_start
from rlrun.ops.policy_loss import bound_coef_, bounded
from rlrun.ops.returns import gae
from rlrun.ops.transforms import clip_reward
from rlrun.policies import AdaptedPolicy
from rlrun.policies.adapted import by_task, side_by_side

RIDGE = 1e-5  # of the linear baseline
TINY = 1e-8


@dataclass(frozen=True, kw_only=True)
class Config(MetaConfig):
    sample_tasks: bool


class MAML(Algorithm):
    cfg: MetaConfig
    policy: AdaptedPolicy
    kl_coef: Tensor

    @classmethod
    def needs(cls, cfg: Config) -> Needs:
        tasks = FromTasks(
            count=cfg.num_tasks,
            envs_per_task=cfg.envs_per_task,
            rounds=cfg.inner_steps + 1,
            sampled=cfg.sample_tasks,
        )
        return Needs(
            rows=cfg.fragment_length,
            columns=cfg.num_tasks * cfg.envs_per_task * tasks.rounds,
            record=("log_prob", "dist", *(["value"] if cfg.baseline == "value" else [])),
            on_policy=True,
            shared=(cfg.num_tasks,),
            tasks=tasks,
        )

    @classmethod
    def make_policy(cls, spec: EnvSpec, model: Model, cfg: Config) -> AdaptedPolicy:
        return AdaptedPolicy(spec, model, cfg.explorer(spec), cfg.num_tasks, cfg.envs_per_task)

    def __init__(self, policy: AdaptedPolicy, spec: EnvSpec, cfg: MetaConfig, ctx: LearnerContext):
        super().__init__(policy, spec, cfg, ctx)
        self.width = cfg.envs_per_task * spec.columns_per_env  # columns of a task
        self.optimizer = ctx.optimizer(policy.parameters(), cfg.optimizer, cfg.lr, cfg.max_grad_norm)
        # The weight of each inner step's divergence [inner_steps].
        self.register_buffer("kl_coef", torch.full((cfg.inner_steps,), cfg.kl_coef, device=ctx.device))

    # -- inner steps ---------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def adapt(self, batch: Batch | None) -> None:
        """Makes an inner step of every task on the round that was just played. None: each task begins with theta."""
        adapted = self.policy.adapted[self.own(self.cfg.num_tasks)]  # of this learner's tasks [G, P]
        if batch is None:
            self.policy.adapted.copy_(self.policy.vector())
        else:
            adapted.copy_(self.after_step(adapted, self.rows(batch, adapted)))

    @torch.no_grad()
    def after_step(self, vectors: Tensor, rows: dict[str, Any]) -> Tensor:
        """Returns the parameters of all tasks [G, P] after one inner step on a round, without gradient.

        vectors [G, P] are those before the step. rows is a dict of tensors [G, T, C, ...]."""
        return vmap(lambda vector, rows: self.adapted(vector, [rows])[0])(vectors, rows)

    def adapted(self, vector: Tensor, rounds: Sequence[dict[str, Any]]) -> tuple[Tensor, list[Tensor]]:
        """Makes one inner step for each of the rounds: vector <- vector - inner_lr * grad of the inner loss.

        Returns the parameters [P] of one task after these steps, and for each step the KL [] between the policy that
        played the round and the policy that the step starts from. Both can be differentiated by vector [P]."""

        def loss_and_kl(vector: Tensor, rows: dict[str, Any]) -> tuple[Tensor, Tensor]:
            made = self.losses(vector, rows)
            return made["loss"], made["kl"]

        rescale = None if self.cfg.first_order else self.rescaled
        return gradient_descent(loss_and_kl, vector, rounds, self.cfg.inner_lr, self.cfg.first_order, rescale)

    def rescaled(self, vector: Tensor, rows: dict[str, Any]) -> dict[str, Any]:
        """Divides the advantages of one task's rows by their standard deviation under parameters vector [P].

        These parameters may have changed since the rows were played, so the deviation is estimated by importance
        sampling with the weights pi(a|s) / pi_old(a|s). It can be differentiated by vector."""
        valid, advantage = rows["valid"], rows["advantage"]
        outputs, action = self.outputs_and_action(vector, rows)
        log_ratio = outputs.dist.given(action).log_prob(action) - rows["log_prob"]
        weight = bounded(log_ratio.masked_fill(~valid, 0.0)).exp().masked_fill(~valid, 0.0)
        weight = weight / weight.sum().clamp(min=TINY)
        centred = advantage - (weight * advantage).sum()
        # The root has a derivative at 0 as well, for tasks whose advantages are all the same.
        deviation = ((weight * centred.square()).sum() + TINY).sqrt()
        return {**rows, "advantage": advantage / torch.where(valid.any(), deviation, 1.0)}

    def outputs_and_action(self, vector: Tensor, rows: dict[str, Any]) -> tuple[Any, Any]:
        """The policy's outputs for one task's rows under parameters [P], and the actions in the form they take."""
        policy = self.policy
        outputs = with_vector(policy, vector, nested(rows["obs"]), rows["is_first"], frozen=policy.frozen)
        return outputs, nested(rows["action"]) if isinstance(rows["action"], dict) else rows["action"]

    def losses(
        self, vector: Tensor, rows: dict[str, Any], clip: float | None = None, entropy_coef: float = 0.0
    ) -> dict[str, Tensor]:
        """Returns the loss [] of one task's rows under parameters vector [P], and the parts of this loss.

        The loss is -mean(ratio * advantage) + value_coef * value loss - entropy_coef * entropy. The ratio is clipped
        as in PPO, except in an inner step (clip=None). rows is a dict of tensors [T, C, ...]."""
        cfg, valid = self.cfg, rows["valid"]
        count = valid.sum().clamp(min=1)

        def mean(x: Tensor) -> Tensor:
            return x.masked_fill(~valid, 0.0).sum() / count

        outputs, action = self.outputs_and_action(vector, rows)
        dist, advantage = outputs.dist.given(action), rows["advantage"]
        ratio = bounded((dist.log_prob(action) - rows["log_prob"]).masked_fill(~valid, 0.0)).exp()
        surrogate = ratio * advantage
        if clip is not None:
            surrogate = torch.minimum(surrogate, ratio.clamp(1 - clip, 1 + clip) * advantage)
        made = {"policy_loss": -mean(surrogate), "entropy": mean(dist.entropy())}
        loss = made["policy_loss"] - entropy_coef * made["entropy"]
        if cfg.baseline == "value":
            error = (outputs.value - rows["target"]).square()
            if cfg.value_clip > 0:
                clipped_value = rows["value"] + (outputs.value - rows["value"]).clamp(-cfg.value_clip, cfg.value_clip)
                error = torch.maximum(error, (clipped_value - rows["target"]).square())
            made["value_loss"] = 0.5 * mean(error)
            loss = loss + cfg.value_coef * made["value_loss"]
        old = with_dead_rows(nested(rows["dist"]), dist.record().map(torch.detach), valid)  # as in PPO
        made["kl"] = mean(dist.from_record(old).kl(dist))
        if clip is not None:
            made["clip_fraction"] = mean(((ratio - 1).abs() > clip).float())
        return {"loss": loss, **made}

    # -- outer steps ---------------------------------------------------------------------------------------------------

    def update(self, batch: Batch, clock: Clock) -> Update:
        cfg = self.cfg
        rounds, returns = self.rounds(batch)
        shares, steps = Means(), Means()
        for _ in range(cfg.outer_steps):
            loss, metrics = self.outer_loss(self.policy.vector(), rounds, clock)
            inner_kl = torch.stack([metrics[f"inner_kl_{number + 1}"] for number in range(cfg.inner_steps)])
            steps.add(self.optimizer.step(loss, clock))
            shares.add(metrics)
        metrics = self.report({**shares.tensors(), **returns}, steps.tensors())
        told = self.means_of_rounds(metrics)
        for number in range(cfg.inner_steps):
            told[f"kl_coef_{number + 1}"] = self.kl_coef[number].clone()
        self.adapt_kl_coef(self.total(inner_kl))
        return Update(told)

    def outer_loss(
        self, theta: Tensor, rounds: Sequence[dict[str, Any]], clock: Clock
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns this learner's share [] of the meta-objective for parameters theta [P], and its shares of metrics.

        For each task it is PPO's loss of theta_K on the last round, plus the mean of kl_coef_k * KL_k over inner steps
        k (ProMP's eq. 14). rounds are dicts of tensors [G, T, C, ...] for the G tasks of this learner."""
        cfg, clip, entropy_coef = self.cfg, self.cfg.clip(clock), self.cfg.entropy_coef(clock)

        def of_task(theta: Tensor, *rounds: dict[str, Any]) -> dict[str, Tensor]:
            vector, kls = self.adapted(theta, rounds[:-1])
            made = self.losses(vector, rounds[-1], clip, entropy_coef)
            penalty = (self.kl_coef * torch.stack(kls)).mean()
            kl_of_steps = {f"inner_kl_{number + 1}": kl for number, kl in enumerate(kls)}
            return {**made, **kl_of_steps, "loss": made["loss"] + penalty}

        each = vmap(of_task, in_dims=(None, *[0] * len(rounds)))(theta, *rounds)  # [G]
        made = {name: value.sum() / cfg.num_tasks for name, value in each.items()}
        loss = made.pop("loss")
        return loss, {name: value.detach() for name, value in made.items()}

    @torch.no_grad()
    def adapt_kl_coef(self, kl: Tensor) -> None:
        """Adapts the weights of the penalties to divergences [inner_steps] in the last outer step, with RLlib's
        factors."""
        target = self.cfg.kl_target
        self.kl_coef.mul_(torch.where(kl > 1.5 * target, 2.0, torch.where(kl < target / 1.5, 0.5, 1.0)))
        bound_coef_(self.kl_coef)

    # -- rows ----------------------------------------------------------------------------------------------------------

    def rounds(self, batch: Batch) -> tuple[list[dict[str, Any]], dict[str, Tensor]]:
        """The rounds of a batch, leaves [G, T, C, ...], and this learner's shares of their sums of rewards and of
        their numbers of episodes."""
        cfg, sums, made = self.cfg, {}, []
        columns = batch.reward.shape[1] // (cfg.inner_steps + 1)
        vectors = self.policy.vector().detach().expand(self.share(cfg.num_tasks), -1)
        parts = list(batch.split(columns))
        # Live last rows bootstrap from values that nobody recorded, of the parameters that played their round.
        unrecorded = [bool(part.valid[-1].any()) for part in parts]
        for number, part in enumerate(parts):
            sums[f"rewards_{number}"] = part.reward.masked_fill(~part.valid, 0.0).sum()
            sums[f"episodes_{number}"] = (part.is_first[:-1] & part.valid).sum() / self.spec.columns_per_env
            made.append(self.rows(part, vectors))
            if any(unrecorded[number + 1 :]):
                vectors = self.after_step(vectors, made[-1])
        return made, sums

    def means_of_rounds(self, metrics: dict[str, Any]) -> dict[str, Any]:
        """The metrics with adapt_0 ... and adaptation_delta in place of sums of rewards and numbers of episodes."""
        made = {name: value for name, value in metrics.items() if not name.startswith(("rewards_", "episodes_"))}
        for number in range(self.cfg.inner_steps + 1):
            made[f"adapt_{number}"] = metrics[f"rewards_{number}"] / metrics[f"episodes_{number}"]
        made["adaptation_delta"] = made[f"adapt_{self.cfg.inner_steps}"] - made["adapt_0"]
        return made

    def rows(self, batch: Batch, vectors: Tensor) -> dict[str, Any]:
        """Computes advantages and targets of one round [T(+1), B, ...]. Returns what the losses read, by task: a dict
        of tensors [G, T, C, ...] for G tasks of C columns each.

        vectors [G, P] are the parameters that played the round."""
        cfg, valid = self.cfg, batch.valid
        reward = clip_reward(batch.reward, cfg.reward_clip)
        discount = batch.discount(cfg.discount)
        if cfg.baseline == "linear":
            nothing = torch.zeros_like(reward)
            to_go = gae(reward, discount, nothing, nothing, valid, 1.0)
            value, next_value = self.linear_values(batch, to_go)
        else:
            last = self.last_values(batch, vectors)
            value, next_value = batch.value, torch.cat([batch.value[1:], last.unsqueeze(0)])
        advantage = gae(reward, discount, value, next_value, valid, cfg.lambda_)
        made = batch.replace(
            obs=batch.obs.map(lambda x: x[:-1]),
            is_first=batch.is_first[:-1],
            value=value,
            target=advantage + value,
            advantage=self.normalized(advantage, valid),
        )
        names = ("obs", "is_first", "action", "log_prob", "dist", "value", "target", "advantage", "valid")
        return plain(by_task(Batch({name: made[name] for name in names}), self.width))

    def normalized(self, x: Tensor, valid: Tensor) -> Tensor:
        """x [T, B] with mean 0 and deviation 1 over the live rows of each task."""
        x, live = by_task(x, self.width), by_task(valid, self.width)
        count = live.sum((1, 2), keepdim=True).clamp(min=1)
        x = x.masked_fill(~live, 0.0)
        shifted = (x - x.sum((1, 2), keepdim=True) / count).masked_fill(~live, 0.0)
        deviation = (shifted.square().sum((1, 2), keepdim=True) / count).sqrt()
        return side_by_side(shifted / (deviation + 1e-8))

    @torch.no_grad()
    def last_values(self, batch: Batch, vectors: Tensor) -> Tensor:
        """The values [B] of the observations behind a round's last row, from which live last rows bootstrap."""
        if not batch.valid[-1].any():
            return torch.zeros_like(batch.reward[-1])
        obs = by_task(batch.obs.map(lambda x: x[-1:]), self.width)
        return side_by_side(self.policy.outputs_of(vectors, obs, by_task(batch.is_first[-1:], self.width)).value)[0]

    def linear_values(self, batch: Batch, target: Tensor) -> tuple[Tensor, Tensor]:
        """The values [T, B] of every row and of the next one by a linear baseline, which is fitted to the targets
        [T, B] of each task. Nothing is worth anything behind the end of an episode, because the baseline sees the
        time."""
        seen, shape = self.policy.seen(batch.obs).map(lambda x: x[:-1].flatten(0, 1)), target.shape
        obs = flatten(self.spec.observation, seen["observation"]).unflatten(0, shape)  # [T, B, D]
        x = features(obs, rows_since_start(batch.is_first[:-1]))
        of_tasks, live = by_task(x, self.width), by_task(batch.valid, self.width)
        weights = fitted(of_tasks.flatten(1, 2), by_task(target, self.width).flatten(1, 2), live.flatten(1, 2), RIDGE)
        value = side_by_side((of_tasks @ weights[:, None, :, None]).squeeze(-1)).to(target)
        value = value.masked_fill(~batch.valid, 0.0)
        return value, torch.cat([value[1:], torch.zeros_like(value[:1])])
