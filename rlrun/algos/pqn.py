"""PQN: parallelised Q-network (Gallici et al. 2024, arXiv:2407.04811), without replay or target network.

It learns Q(lambda) on fresh rows of many environments.

Rows: fragments [T, B] that the newest policy sampled. Every update makes num_epochs passes over all of them in
shuffled minibatches of single rows.
Recorded: q_max, the value of the best action in every row when the policy acted there.
Differs from the paper: the optimiser is Adam, unless algo.optimizer.kind=radam. Layer normalisation is
model.layer_norm.
Refused, because it is for algorithms with a replay: head.noisy.
Metrics: learn/loss: half the mean squared error; td_error: mean |target - Q|; q: mean value of the actions taken;
epsilon; explained_variance of q_max; grad_norm before clipping; lr.
Checked: tests/algos/test_pqn.py (targets by their definition), tuned/pqn/.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from rlrun.core.algorithm import Algorithm, LearnerContext, Needs, Update, recorded
from rlrun.core.batch import Batch
from rlrun.core.metrics import Means
from rlrun.core.optimizer import OptimizerConfig
from rlrun.core.ranges import Count, NotNegative, Positive, Share
from rlrun.core.schedule import Clock, Schedule
from rlrun.core.specs import EnvSpec
from rlrun.models.heads import QHeadConfig
from rlrun.models.model import Model
from rlrun.ops.returns import lambda_return
from rlrun.ops.td import taken
from rlrun.ops.transforms import clip_reward
from rlrun.policies import ActingConfig, QPolicy, ValueExplorationConfig


@dataclass(frozen=True, kw_only=True)
class Config(ActingConfig):
    name: str
    fragment_length: Annotated[int, Count]
    batch_size: Annotated[int, Count]
    minibatch_size: Annotated[int, Count]
    num_epochs: Annotated[int, Count]
    discount: Annotated[float, Share]
    lambda_: Annotated[float, Share]
    lr: Annotated[Schedule, NotNegative]
    optimizer: OptimizerConfig
    max_grad_norm: Annotated[float, NotNegative]
    reward_clip: Literal["none", "sign"] | Annotated[float, Positive]
    head: QHeadConfig
    exploration: ValueExplorationConfig

    def __post_init__(self):
        if self.batch_size % self.fragment_length or self.batch_size % self.minibatch_size:
            raise ValueError(
                f"batch_size {self.batch_size} must be a multiple of fragment_length {self.fragment_length} and"
                f" minibatch_size {self.minibatch_size}"
            )
        if self.head.noisy:
            raise ValueError("head.noisy is for algorithms with a replay; pqn explores by epsilon")


class PQN(Algorithm):
    cfg: Config
    policy: QPolicy

    @classmethod
    def needs(cls, cfg: Config) -> Needs:
        return Needs(
            rows=cfg.fragment_length,
            columns=cfg.batch_size // cfg.fragment_length,
            record=("q_max",),
            actions=("discrete",),
            on_policy=True,
            shared=(cfg.minibatch_size,),
        )

    @classmethod
    def make_policy(cls, spec: EnvSpec, model: Model, cfg: Config) -> QPolicy:
        return QPolicy(spec, model, cfg.head, cfg.explorer(spec))

    def __init__(self, policy: QPolicy, spec: EnvSpec, cfg: Config, ctx: LearnerContext):
        super().__init__(policy, spec, cfg, ctx)
        # Rows of a minibatch on this learner: those of all agents at so many env steps.
        self.minibatch = self.share(cfg.minibatch_size) * spec.columns_per_env
        self.optimizer = ctx.optimizer(policy.parameters(), cfg.optimizer, cfg.lr, cfg.max_grad_norm)

    def update(self, batch: Batch, clock: Clock) -> Update:
        cfg = self.cfg
        target = self.target(batch)
        before = {"explained_variance": self.explained_variance(target, batch.q_max, batch.valid)}
        rows = batch.replace(target=target).sequences(1)
        if self.ctx.sparse:
            rows = rows.alive()
        shares, steps = Means(), Means()
        for part in self.minibatches(rows, cfg.num_epochs, self.minibatch):
            metrics, step = self.learn(part, clock)
            steps.add(step)
            shares.add(metrics)
        return Update(self.report(shares.tensors(), steps.tensors(), before, self.policy.explored(clock)))

    @torch.no_grad()
    def target(self, batch: Batch) -> Tensor:
        """Returns the Q(lambda) targets [T, B] (section 4, eq. 8).

        They are r + discount ((1 - lambda) max Q' + lambda G'), cut where episodes end."""
        end = self.policy(batch["obs"][-1:], batch["is_first"][-1:], Batch())[0].max(-1).values  # [1, B]
        reward, next_value = clip_reward(batch.reward, self.cfg.reward_clip), torch.cat([batch.q_max[1:], end])
        return lambda_return(reward, batch.terminated, batch.valid, next_value, self.cfg.discount, self.cfg.lambda_)

    @recorded
    def learn(self, part: Batch, clock: Clock) -> tuple[dict[str, Tensor], dict[str, Tensor | float]]:
        """Makes a step on a minibatch. Returns this learner's shares of its metrics, and the optimiser's metrics."""
        loss, metrics = self.loss(part)
        return metrics, self.optimizer.step(loss, clock)

    def loss(self, rows: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns this learner's share of a minibatch's loss [] and of its metrics. rows are [1, N] with targets."""
        mean = self.mean_over(rows.valid)
        q = taken(self.policy.values(rows)[0], rows.action[0])[None]  # [1, N]
        error = rows.target - q
        loss = mean(0.5 * error.square())
        with torch.no_grad():
            metrics = {"loss": loss, "td_error": mean(error.abs()), "q": mean(q)}
        return loss, metrics
