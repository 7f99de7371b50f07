"""MADDPG: multi-agent deterministic policy gradient (Lowe et al. 2017, arXiv:1706.02275).

Every agent has an actor, which sees the agent's own observation, and a critic, which sees the observations and the
actions of all agents and which only the learner has. Agents may be paid differently, so that some can be adversaries.

Rows: fragments of n_step rows from replay, folded into single transitions. A row holds all agents (envs/joint.py).
Recorded: nothing.
Options: share gives all agents one actor and one critic; critic_sees=own is DDPG of every agent by itself, and
local_agents names those that learn so among others (RLlib's adv_policy and good_policy).
Differs from the paper: choices are one-hot samples of the Gumbel-softmax with a straight-through gradient, because
environments do not take the soft vectors of OpenAI's code. An illegal choice is never drawn. Continuous actions are
tanh of the actor's output plus Gaussian noise, and actor_reg penalises that output before tanh. All agents learn from
the same target networks, which then move together; OpenAI's code moves one agent's targets before the next agent
learns. Gradients are bounded by the norm of each network, and in OpenAI's code by the norm of each variable. An agent
that is not there has an observation and an action of zeros, and its rows are in no mean.
Refused, because it is for one agent: model.observation_filter.
Metrics: learn/critic_loss: mean over agents of the means of weighted losses; actor_loss: the same of -Q and the
regularisation; td_error: mean |target - Q|; q: mean value of the actions taken; target; epsilon or noise_scale;
critic_grad_norm and actor_grad_norm before clipping, the largest of all agents; critic_lr, actor_lr.
Checked: tests/algos/test_maddpg.py (losses by hand, a team of one is DDPG, masks, absent agents), tuned/maddpg/.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from rlrun.core.algorithm import Algorithm, LearnerContext, Needs, Update, recorded
from rlrun.core.batch import Batch
from rlrun.core.conditions import CHOICES, FIRST_PRIORITIES, OnlyFor, OnlyWith
from rlrun.core.errors import UserError
from rlrun.core.follower import Follower
from rlrun.core.masked import masked_mean
from rlrun.core.ranges import NotNegative, Positive
from rlrun.core.schedule import Clock, Schedule
from rlrun.core.specs import EnvSpec, fits_name
from rlrun.families.off_policy import OffPolicyConfig, step_metrics
from rlrun.models.critic import Critics
from rlrun.models.encoders import NetConfig
from rlrun.models.model import Model
from rlrun.ops.gumbel import gumbel
from rlrun.ops.returns import fold_n_step
from rlrun.ops.td import huber
from rlrun.ops.transforms import clip_reward
from rlrun.policies import ActingConfig, JointActorPolicy, JointExplorationConfig
from rlrun.policies.joint_actors import seen_by, vectors

METRICS = ("critic_loss", "actor_loss", "td_error", "q", "target")


@dataclass(frozen=True, kw_only=True)
class Config(OffPolicyConfig, ActingConfig):
    share: bool
    agent_id: Annotated[bool, OnlyWith("share")]
    critic_sees: Literal["all", "own"]
    local_agents: Annotated[tuple[str, ...], OnlyWith("critic_sees", "all")]
    reward_of: Literal["agent", "team"]
    actor: NetConfig
    critic: NetConfig
    actor_lr: Annotated[Schedule, NotNegative]
    critic_lr: Annotated[Schedule, NotNegative]
    actor_reg: Annotated[float, NotNegative]
    temperature: Annotated[float, Positive, OnlyFor(CHOICES)]
    huber_delta: Annotated[float, Positive] | None
    exploration: JointExplorationConfig
    input_priorities: Annotated[bool, OnlyFor(FIRST_PRIORITIES)]

    def __post_init__(self):
        super().__post_init__()
        if self.input_priorities:
            raise ValueError("input_priorities must be false: samplers do not have the critics that know them")
        if self.share and self.local_agents:
            raise ValueError("local_agents have critics of their own, which see less: set share=false with them")


class JointRows(NamedTuple):
    """B transitions of all agents, each of n folded rows. What an agent that is not there sees and does is zeros."""

    seen: Tensor  # observations [B, N, D]
    action: Tensor  # as critics see them [B, N, A]
    legal: Tensor  # numbers of an action that an agent may use [B, N, A]
    alive: Tensor  # [B, N]
    reward: Tensor  # summed over the n rows [B, N]
    discount: Tensor  # of the value of what follows [B, N]; 0 after a termination
    then_seen: Tensor
    then_legal: Tensor
    then_alive: Tensor


class MADDPG(Algorithm):
    cfg: Config
    policy: JointActorPolicy

    @classmethod
    def needs(cls, cfg: Config) -> Needs:
        # The team's rewards are those of an agent while it is there, which every row's observations tell.
        several = cfg.reward_of == "team" and cfg.n_steps[1] > 1
        return Needs(
            rows=cfg.n_steps[1],
            columns=cfg.batch_size,
            actions=("multi_discrete", "box"),
            joint=True,
            replay=replace(cfg.from_replay, obs="all") if several else cfg.from_replay,
        )

    @classmethod
    def make_policy(cls, spec: EnvSpec, model: Model, cfg: Config) -> JointActorPolicy:
        names = spec.agents.names if spec.agents is not None else ()
        for pattern in cfg.local_agents:
            if not any(fits_name(name, pattern) for name in names):
                raise UserError(
                    f"algo.local_agents: {pattern} fits no agent of {spec.name}, which has {', '.join(names)}"
                )
        return JointActorPolicy(spec, model, cfg.actor, cfg.explorer(spec), cfg.share, cfg.agent_id)

    def __init__(self, policy: JointActorPolicy, spec: EnvSpec, cfg: Config, ctx: LearnerContext):
        super().__init__(policy, spec, cfg, ctx)
        assert spec.agents is not None
        # Whether the critic of an agent sees only what the agent sees and does.
        self.local = [
            cfg.critic_sees == "own" or any(fits_name(name, pattern) for pattern in cfg.local_agents)
            for name in spec.agents.names
        ]
        self.critics = nn.ModuleList(self.make_critic(self.local[agents[0]]) for agents in policy.served).to(ctx.device)
        self.target_critics = copy.deepcopy(self.critics).requires_grad_(False)
        self.target_actors = copy.deepcopy(policy.actors).requires_grad_(False)
        self.critic_following = Follower(self.target_critics, self.critics)
        self.actor_following = Follower(self.target_actors, policy.actors)
        self.critic_optimizers, self.actor_optimizers = (
            [ctx.optimizer(net.parameters(), cfg.optimizer, lr, cfg.max_grad_norm) for net in side]
            for side, lr in ((self.critics, cfg.critic_lr), (policy.actors, cfg.actor_lr))
        )

    def make_critic(self, local: bool) -> Critics:
        policy, spec = self.policy, self.spec
        count = 1 if local else policy.agents
        inputs = count * policy.seen_size + policy.agent_id * policy.agents
        own: Any = replace(spec.agent, obs={"observation": vectors(inputs)}, action=vectors(count * policy.size))  # type: ignore[attr-defined]
        return Critics(own, self.ctx.model, self.cfg.critic, 1)

    def update(self, batch: Batch, clock: Clock) -> Update:
        metrics, writes = self.learn(batch, clock)
        if (clock.updates + 1) % self.cfg.target_update_interval == 0:
            self.actor_following.move(self.cfg.target_tau)
            self.critic_following.move(self.cfg.target_tau)
        return Update(metrics | self.policy.explored(clock), writes)

    @recorded
    def learn(self, batch: Batch, clock: Clock) -> Update:
        rows = self.transitions(batch)
        target = self.targets(rows)
        count = self.total(rows.alive.sum(0)).clamp(min=1)  # rows of all learners in which an agent is there [N]
        told, steps, errors = [], [], []
        for net, agents in enumerate(self.policy.served):
            mine = slice(agents.start, agents.stop)
            alive, many = rows.alive[:, mine], count[mine].sum()

            own_target = target[:, mine]  # [B, K]
            td_error = own_target - self.values(self.critics[net], rows.seen, rows.action, agents)  # [B, K]
            error = batch.weight.unsqueeze(-1) * huber(td_error, self.cfg.huber_delta)
            critic_loss = masked_mean(error, alive, many)
            critic_steps = self.critic_optimizers[net].step(critic_loss, clock)

            actor_loss = masked_mean(self.actor_loss(net, rows, agents), alive, many)
            actor_steps = self.actor_optimizers[net].step(actor_loss, clock)

            errors.append(td_error.detach().masked_fill(~alive, 0.0).abs())
            steps.append(step_metrics(critic=critic_steps, actor=actor_steps))
            means = [masked_mean(x, alive, many) for x in (errors[-1], own_target - td_error.detach(), own_target)]
            told.append(torch.stack([critic_loss.detach(), actor_loss.detach(), *means]))
        shares = dict(zip(METRICS, torch.stack(told).mean(0), strict=True))
        priority = torch.cat(errors, 1).sum(1) / rows.alive.sum(1).clamp(min=1)
        return Update(self.report(shares, largest(steps)), {"priority": priority})

    def transitions(self, batch: Batch) -> JointRows:
        """Takes the transitions out of a batch [n, B] of replayed fragments. That of an agent ends where it leaves."""
        cfg, policy = self.cfg, self.policy
        ends = batch.ends()
        now, then = ends.obs[0], ends.obs[1]
        alive, then_alive = now["alive"].bool(), then["alive"].bool()
        valid = batch.valid.unsqueeze(-1).expand_as(batch.reward)  # [n, B, N]
        if len(batch.obs["alive"]) > 2:
            there, before_the_end = batch.obs["alive"][:-1].bool(), valid.long().cumprod(0).bool()
            then_alive = then_alive & (there | ~before_the_end).all(0)
            valid = valid & there
        reward_of_agents = batch.reward  # [n, B, N]
        if cfg.reward_of == "team":
            reward_of_agents = reward_of_agents.sum(-1, keepdim=True).expand_as(reward_of_agents)
        agents = alive.shape[-1]
        reward, discount = fold_n_step(
            clip_reward(reward_of_agents, cfg.reward_clip).flatten(1),
            batch.terminated.repeat_interleave(agents, 1),
            valid.flatten(1),
            cfg.discount,
        )
        return JointRows(
            seen=policy.seen(now),
            action=policy.told(batch.action[0]).masked_fill(~alive.unsqueeze(-1), 0.0),
            legal=policy.legal(now),
            alive=alive,
            reward=reward.view_as(alive),
            discount=discount.view_as(alive),
            then_seen=policy.seen(then),
            then_legal=policy.legal(then),
            then_alive=then_alive,
        )

    def targets(self, rows: JointRows) -> Tensor:
        """Returns y of eq. 6 [B, N], in which all agents act by their target networks."""
        policy = self.policy
        with torch.no_grad():
            outputs = policy.outputs(self.target_actors, rows.then_seen)
            action = self.chosen(outputs, rows.then_legal, rows.then_alive)
            critics = zip(self.target_critics, policy.served, strict=True)
            value = torch.cat([self.values(critic, rows.then_seen, action, agents) for critic, agents in critics], 1)
            return rows.reward + rows.discount * value.masked_fill(~rows.then_alive, 0.0)

    def actor_loss(self, net: int, rows: JointRows, agents: range) -> Tensor:
        """Returns -Q of eq. 5 [B, K] with the regularisation of OpenAI's code, for the agents of one actor. In what the
        critic of an agent sees, the agent acts by its actor, and the others did what the replay says."""
        mine = slice(agents.start, agents.stop)
        legal = rows.legal[:, mine]
        outputs = self.policy.output(self.policy.actors[net], rows.seen, agents)
        own = self.chosen(outputs, legal, rows.alive[:, mine])
        # value[:, k] is about the actions of all agents, of which only those of agent k are new.
        values = []
        for place, agent in enumerate(agents):
            action = [rows.action[:, other] for other in range(self.policy.agents)]
            action[agent] = own[:, place]
            values.append(self.values(self.critics[net], rows.seen, torch.stack(action, 1), range(agent, agent + 1)))
        squares = outputs.square().masked_fill(~legal, 0.0).sum(-1) / legal.sum(-1).clamp(min=1)
        return self.cfg.actor_reg * squares - torch.cat(values, 1)

    def chosen(self, outputs: Tensor, legal: Tensor, alive: Tensor) -> Tensor:
        """Turns the actors' outputs [B, K, A] into actions as critics see them [B, K, A]: one-hot samples of the
        Gumbel-softmax for choices, and numbers for continuous actions. Agents that are not there get zeros."""
        noise = None if self.policy.continuous else gumbel(self.ctx.rand(outputs.shape))
        action = self.policy.actions(outputs, legal, noise, self.cfg.temperature)
        return action.masked_fill(~alive.unsqueeze(-1), 0.0)

    def values(self, critic: Any, seen: Tensor, action: Tensor, agents: range) -> Tensor:
        """Returns a critic's values [B, K] for K agents. seen [B, N, D] and action [B, N, A] are those of all agents;
        the critic of a local agent is given only the agent's own."""
        made = []
        for agent in agents:
            mine = seen[:, agent], action[:, agent]
            rows, told = mine if self.local[agent] else (seen.flatten(1), action.flatten(1))
            made.append(critic(seen_by(self.policy.named(rows, agent)), told)[0, :, 0])
        return torch.stack(made, 1)

    def renew_targets(self) -> None:
        self.target_actors.load_state_dict(self.policy.actors.state_dict())


def largest(steps: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The largest of each metric of several networks' steps."""
    return {
        name: torch.stack(values).max() if isinstance(values[0], Tensor) else max(values)
        for name, values in ((name, [step[name] for step in steps]) for name in steps[0])
    }
