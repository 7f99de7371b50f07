"""SlateQ: Q-learning for slates of documents (Ie et al. 2019, arXiv:1905.12767).

A user looks at a slate and chooses one document or none. Reward and next state depend on the choice alone, so that a
slate's value is the mean of the values of its documents under the user's choice: Q(s, A) = sum_i P(i | s, A) Qbar(s, i)
(eq. 17). One network learns Qbar of a user and a document, whatever its place among the candidates, another one the
choice.

Rows: fragments of n_step rows from replay, with all their observations. The next observation says which document the
user chose.
Recorded: nothing.
Options: train_slates says which slate the target uses in the next state: optimal, greedy, top_k (section 4), or taken,
the slate that was shown there (SARSA, section 3.2). slates says how slates are chosen when acting. null_value=true
learns a value for choosing nothing, because the session goes on afterwards. choice is a network, or the inner product
of user and document with two learnt numbers. place_factors learns whether documents are chosen more often in some
places.
Differs from the paper: the model of the user's choice is learnt, and the paper takes it as given. Without null_value,
rows without a choice are left out of the loss, as in the authors' code, which values choosing nothing at 0. In the
paper's eq. 17 it is one of the documents. The optimal slate needs no linear program (ops/slates.py). RLlib and RecSim
evaluate the next slate in the state before it, and RLlib uses the responses of the row before; here rows are aligned.
Refused: input_priorities, since a row's choice is not known when the row is recorded; action masks.
Metrics: learn/loss: mean of weighted losses; td_error: mean |target - Qbar|; q: mean value of what was chosen; target;
chosen: share of rows in which a document was chosen; choice_loss: weighted mean of -log P of what was chosen;
place_factor: that of the last place; epsilon; q_grad_norm and choice_grad_norm before clipping; q_lr, choice_lr.
Checked: tests/ops/test_best_slates.py (slates against brute force and a linear program), tests/algos/test_slateq.py
(targets by hand; DQN over documents), tests/envs/test_slates.py, tuned/slateq/.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from torch import Tensor

from rlrun.core.algorithm import Algorithm, FromReplay, LearnerContext, Needs, Update, recorded
from rlrun.core.batch import Batch
from rlrun.core.conditions import FIRST_PRIORITIES, OnlyFor, OnlyWith
from rlrun.core.follower import Follower
from rlrun.core.masked import masked_mean
from rlrun.core.ranges import NotNegative, Positive
from rlrun.core.schedule import Clock, Schedule
from rlrun.core.specs import EnvSpec
from rlrun.families.off_policy import OffPolicyConfig, step_metrics
from rlrun.models.encoders import NetConfig
from rlrun.models.model import Model
from rlrun.ops.returns import fold_n_step
from rlrun.ops.slates import SlateRule
from rlrun.ops.td import huber
from rlrun.ops.transforms import clip_reward
from rlrun.policies import ActingConfig
from rlrun.policies.slates import Choice, ChoiceNetConfig, SlateExplorationConfig, SlatePolicy


@dataclass(frozen=True, kw_only=True)
class Config(OffPolicyConfig, ActingConfig):
    candidates: str
    click: str
    slates: SlateRule
    train_slates: SlateRule | Literal["taken"]
    double: Annotated[bool, OnlyWith("train_slates", "optimal", "greedy", "top_k")]
    null_value: bool
    choice: Choice
    place_factors: bool
    q: NetConfig
    choice_net: ChoiceNetConfig
    lr: Annotated[Schedule, NotNegative]
    choice_lr: Annotated[Schedule, NotNegative]
    huber_delta: Annotated[float, Positive] | None
    exploration: SlateExplorationConfig
    input_priorities: Annotated[bool, OnlyFor(FIRST_PRIORITIES)]

    def __post_init__(self):
        super().__post_init__()
        if self.input_priorities:
            raise ValueError("input_priorities must be false: what a user chose is known only behind the row")
        if self.train_slates == "taken" and self.n_steps[0] != self.n_steps[1]:
            raise ValueError("train_slates=taken needs one n_step, and not a range of them")

    @property
    def rows(self) -> int:
        """Rows of a fragment: those that are summed up, and with train_slates=taken the one behind them."""
        return self.n_steps[1] + (self.train_slates == "taken")

    @property
    def from_replay(self) -> FromReplay:
        taken = self.train_slates == "taken"
        return replace(super().from_replay, rows_from=self.n_steps[0] + taken, obs="all")


class SlateQ(Algorithm):
    cfg: Config
    policy: SlatePolicy
    target: SlatePolicy

    @classmethod
    def needs(cls, cfg: Config) -> Needs:
        return Needs(
            rows=cfg.rows,
            columns=cfg.batch_size,
            actions=("multi_discrete",),
            only_weights=True,
            replay=cfg.from_replay,
        )

    @classmethod
    def make_policy(cls, spec: EnvSpec, model: Model, cfg: Config) -> SlatePolicy:
        return SlatePolicy(
            spec,
            model,
            cfg.explorer(spec),
            (cfg.candidates, cfg.click),
            cfg.q,
            cfg.choice,
            cfg.choice_net,
            cfg.place_factors,
            cfg.null_value,
            cfg.slates,
        )

    def __init__(self, policy: SlatePolicy, spec: EnvSpec, cfg: Config, ctx: LearnerContext):
        super().__init__(policy, spec, cfg, ctx)
        self.target = copy.deepcopy(policy).requires_grad_(False)
        self.following = Follower(self.target, policy)
        chooses = [*policy.choice_net.parameters(), *([] if policy.place_logits is None else [policy.place_logits])]
        self.q_optimizer = ctx.optimizer(policy.q_net.parameters(), cfg.optimizer, cfg.lr, cfg.max_grad_norm)
        self.choice_optimizer = ctx.optimizer(chooses, cfg.optimizer, cfg.choice_lr, cfg.max_grad_norm)

    def update(self, batch: Batch, clock: Clock) -> Update:
        metrics, writes = self.learn(batch, clock)
        if (clock.updates + 1) % self.cfg.target_update_interval == 0:
            self.following.move(self.cfg.target_tau)
        return Update(metrics | self.policy.explored(clock), writes)

    @recorded
    def learn(self, batch: Batch, clock: Clock) -> Update:
        """Makes a step of the values and one of the model of choices."""
        click = batch.obs["observation"][self.cfg.click][1]  # [B]: in the observation behind the row
        loss, priority, shares = self.loss(batch, click)
        choice_loss = self.choice_loss(batch, click)
        steps = step_metrics(
            q=self.q_optimizer.step(loss, clock), choice=self.choice_optimizer.step(choice_loss, clock)
        )
        shares["choice_loss"] = choice_loss
        told = {"place_factor": self.policy.log_places().detach()[-1].exp()}
        return Update(self.report(shares, steps, told), {"priority": priority})

    def loss(self, batch: Batch, click: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Returns this learner's share of the loss [], absolute TD errors [B] and shares of metrics.

        batch is [n, B] or, with train_slates=taken, [n + 1, B], with obs and is_first of one row more; click [B] is the
        place that was chosen, or S."""
        cfg, policy = self.cfg, self.policy
        target = self.targets(batch)
        values = policy.values(first_row(batch))[0]  # [B, C + 1]
        chose = click < policy.display.size
        shown = batch.action[0].gather(-1, click.clamp(max=policy.display.size - 1).unsqueeze(-1)).squeeze(-1)
        item = torch.where(chose, shown, policy.display.count)  # [B]: the last entry is choosing nothing
        q = values.gather(-1, item.unsqueeze(-1)).squeeze(-1)
        td_error = target - q
        error = batch.weight * huber(td_error, cfg.huber_delta)
        counts = torch.ones_like(chose) if cfg.null_value else chose
        counted = self.total(counts.sum())
        many = counted.clamp(min=1)

        def mean(x: Tensor) -> Tensor:
            return masked_mean(x, counts, many)

        size = td_error.detach().abs()
        loss, typical = mean(error), mean(size)
        # The model of choices learns from rows without a choice too, which are drawn as often as the others.
        usual = self.total(torch.where(counted > 0, typical, self.mean(size)))
        priority = torch.where(counts, size, usual)
        shares = {"loss": loss, "td_error": typical, "q": mean(q), "target": mean(target)}
        return loss, priority, shares | {"chosen": self.mean(chose.float())}

    @torch.no_grad()
    def targets(self, batch: Batch) -> Tensor:
        """Returns r + discount * Q(s', A') [B]."""
        cfg, policy = self.cfg, self.policy
        rows = Batch({name: batch[name][: cfg.n_steps[1]] for name in ("reward", "terminated", "valid")})
        reward, discount = fold_n_step(
            clip_reward(rows.reward, cfg.reward_clip), rows.terminated, rows.valid, cfg.discount
        )
        end = end_row(batch, cfg.n_steps[1])
        # P of the newest model of choices, Qbar' of the target network.
        pairs = policy.pairs(end, self.target.values(end))
        if cfg.train_slates == "taken":
            # Where the row behind is dead, no slate was shown there.
            known = batch.valid[-1] & rows.valid.all(0)
            slate = torch.where(known.unsqueeze(-1), batch.action[-1], pairs.best(cfg.slates)[0]).unsqueeze(0)
        else:
            slate = (policy.pairs(end) if cfg.double else pairs).best(cfg.train_slates)
        return reward + discount * pairs.worth(slate)[0]

    def choice_loss(self, batch: Batch, click: Tensor) -> Tensor:
        """Returns this learner's share of the weighted mean of -log P(what was chosen | slate) []."""
        logits = self.policy.choice_logits(first_row(batch), batch.action[:1])[0]  # [B, S + 1]
        return self.mean(batch.weight * torch.nn.functional.cross_entropy(logits, click, reduction="none"))


def first_row(batch: Batch) -> Batch:
    """obs and is_first [1, B, ...] of a fragment's first row."""
    return Batch(obs=batch["obs"][:1], is_first=batch["is_first"][:1])


def end_row(batch: Batch, rows: int) -> Batch:
    """obs and is_first [1, B, ...] behind a fragment's first n rows, or at the first dead row among them."""
    rows_and_end = {name: batch[name][: rows + 1] for name in ("obs", "is_first")}
    ends = Batch(rows_and_end, valid=batch["valid"][:rows]).ends()
    return Batch(obs=ends["obs"][1:], is_first=ends["is_first"][1:])
