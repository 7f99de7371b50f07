"""C51: categorical DQN (Bellemare et al. 2017, arXiv:1707.06887), which learns the distribution of returns.

The distribution is over num_atoms fixed values; DQN learns only its mean.

Rows: fragments of n_step rows from replay, folded into single transitions.
Recorded: log_p_taken and p_max [K] with input_priorities, for the first priorities.
Differs from the paper: Adam has a higher lr, which suits small problems. double, dueling, noisy and n_step are
options, as in RLlib and rlpyt.
Metrics: learn/loss: mean of weighted cross-entropies; kl: mean KL(target || prediction), whose values per row are the
priorities; q: mean value of the actions taken; epsilon; grad_norm before clipping; lr.
Checked: tests/ops/test_td.py (the projection against algorithm 1), tests/algos/test_dqn.py, tuned/c51/.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor

from rlrun.core.algorithm import Algorithm, LearnerContext, Needs, Update, recorded
from rlrun.core.batch import Batch
from rlrun.core.follower import Follower
from rlrun.core.schedule import Clock
from rlrun.core.specs import EnvSpec
from rlrun.families.q_learning import CategoricalQConfig, recorded_kl
from rlrun.models.model import Model
from rlrun.models.noisy import draw_noise
from rlrun.ops.returns import fold_n_step
from rlrun.ops.td import categorical_projection, taken
from rlrun.ops.transforms import clip_reward
from rlrun.policies import CategoricalPolicy


@dataclass(frozen=True, kw_only=True)
class Config(CategoricalQConfig):
    double: bool


class C51(Algorithm):
    knows_first_priority = True
    cfg: Config
    policy: CategoricalPolicy
    target: CategoricalPolicy

    @classmethod
    def needs(cls, cfg: Config) -> Needs:
        record = ("log_p_taken", "p_max") if cfg.input_priorities else ()
        return Needs(
            rows=cfg.n_steps[1],
            columns=cfg.batch_size,
            actions=("discrete",),
            record=record,
            only_weights=True,
            replay=cfg.from_replay,
        )

    @classmethod
    def make_policy(cls, spec: EnvSpec, model: Model, cfg: Config) -> CategoricalPolicy:
        return CategoricalPolicy(spec, model, cfg.head, cfg.explorer(spec), cfg.num_atoms, cfg.v_min, cfg.v_max)

    @classmethod
    def first_priority(cls, cfg: Config, rows: Batch) -> Tensor:
        """Returns priorities [N] of rows [n + 1, N] as they were recorded."""
        return recorded_kl(cfg, rows)

    def __init__(self, policy: CategoricalPolicy, spec: EnvSpec, cfg: Config, ctx: LearnerContext):
        super().__init__(policy, spec, cfg, ctx)
        self.target = copy.deepcopy(policy).requires_grad_(False)
        self.following = Follower(self.target, policy)
        self.optimizer = ctx.optimizer(policy.parameters(), cfg.optimizer, cfg.lr, cfg.max_grad_norm)

    def update(self, batch: Batch, clock: Clock) -> Update:
        metrics, writes = self.learn(batch, clock)
        if (clock.updates + 1) % self.cfg.target_update_interval == 0:
            self.following.move(self.cfg.target_tau)
        return Update(metrics | self.policy.explored(clock), writes)

    @recorded
    def learn(self, batch: Batch, clock: Clock) -> Update:
        """Makes one gradient step and returns metrics of the whole batch and new priorities [B]."""
        loss, priority, shares = self.loss(batch)
        steps = self.optimizer.step(loss, clock)
        return Update(self.report(shares, steps), {"priority": priority})

    def loss(self, batch: Batch) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Returns this learner's share of the loss [], KL divergences [B] and shares of metrics.

        batch is [n, B] with obs [2, B]."""
        cfg, ends, policy = self.cfg, batch.ends(), self.policy
        reward, discount = fold_n_step(
            clip_reward(batch.reward, cfg.reward_clip), batch.terminated, batch.valid, cfg.discount
        )
        for network in (policy, self.target):
            draw_noise(network, self.ctx.rng)
        with torch.no_grad():
            next_logits = self.target.head_outputs(ends[1:])[0]  # [B, A, K]
            chooser = next_logits
            if cfg.double:
                chooser = policy.head_outputs(ends[1:])[0]
                draw_noise(policy, self.ctx.rng)  # independent of the choice above (Fortunato et al. 2018, sec. 3.1)
            best = policy.legal_q(chooser, ends["obs"][1]).argmax(-1)
            target = categorical_projection(
                taken(next_logits, best).softmax(-1), reward, discount, policy.atoms
            )  # eq. 7
        log_p = taken(policy.head_outputs(ends[:1])[0], batch.action[0]).log_softmax(-1)  # [B, K]
        cross_entropy = -(target * log_p).sum(-1)  # [B]
        # KL(target || prediction) = cross-entropy - entropy of the target
        kl = cross_entropy.detach() - torch.special.entr(target).sum(-1)
        loss = self.mean(batch.weight * cross_entropy)
        q = (log_p.exp() * policy.atoms).sum(-1)
        return loss, kl.clamp(min=0.0), {"loss": loss, "kl": self.mean(kl), "q": self.mean(q)}
