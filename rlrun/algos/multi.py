"""Several policies for the agents of one environment, each of which learns by itself (independent learners: Tan 1993,
"Multi-Agent Reinforcement Learning: Independent vs. Cooperative Agents").

The algorithm inside learns every policy from the columns of that policy's agents, as if the other agents were part of
the environment. Policies may differ in their options, or in their algorithms where these learn from batches of the same
shape. A policy that does not learn acts at random, with another run's weights, or as a class of the user's own says.

Rows: those of the algorithm inside. With a replay, every policy has one of its own (replay/grouped.py), and an update
draws a batch for each.
Recorded: what the algorithms inside record.
Refused, because it would scale by the returns of all agents: normalize_reward, of the algorithm inside or in options.
Metrics: learn/<policy>/<metric of the algorithm inside>.
Checked: tests/algos/test_multi.py (independent PPO equals separate PPOs to the bit).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from rlrun.core.algorithm import Algorithm, Inner, LearnerContext, Needs, Update
from rlrun.core.batch import Batch
from rlrun.core.errors import UserError, closest
from rlrun.core.plugins import is_path
from rlrun.core.policy import Policy
from rlrun.core.schedule import Clock
from rlrun.core.specs import Agents, EnvSpec, fits_name
from rlrun.models.model import Model
from rlrun.policies.exploration import Exploration, Uniform, load_exploration
from rlrun.policies.several import SeveralPolicies

# What must be equal in the needs of all policies, and the options that it follows from.
SAME = {
    "rows": "fragment_length or sequence_length",
    "columns": "batch_size",
    "on_policy": "algorithm",
    "cut_share": "straggler_share",
    "replay": "fragment_length, num_envs, learning_starts, batch_size or training ratio",
}
# In place of the run that a fixed policy's weights came from, where the run's own checkpoint has them. No file has this
# name.
SAVED = "\0the run's own checkpoint"


@dataclass(frozen=True, kw_only=True)
class Config:
    name: str
    inner: Any  # Inner
    policies: Literal["each"] | dict[str, str | tuple[str, ...]]
    fixed: dict[str, str]
    options: dict[str, Any]  # Inner

    def __post_init__(self):
        if isinstance(self.policies, dict):
            if not self.policies:
                raise ValueError("policies must name at least one policy, as in {good: [agent_*], bad: [adversary_*]}")
            for name, patterns in self.patterns.items():
                if _is_taken(name):
                    raise ValueError(f"policies.{name}: a policy cannot be called {name!r}; choose another name")
                if not patterns:
                    raise ValueError(f"policies.{name} has no pattern, so no agent would have this policy")
        for option in ("fixed", "options"):
            for name in getattr(self, option):
                self._check_known(option, name)
        for name in self.options:
            if name in self.fixed and not _is_run(self.fixed[name]):
                raise ValueError(
                    f"options.{name} are for a policy with weights, and fixed.{name}={self.fixed[name]} has none"
                )
        if isinstance(self.policies, dict) and set(self.fixed) == set(self.policies):
            raise ValueError("every policy is fixed, so nothing would be learnt")
        first = self._checked(self.inner, self.inner.cfg.name)
        for name in self.policies if isinstance(self.policies, dict) else self.options:
            if name not in self.fixed:
                self._check_same(first, name)

    @property
    def patterns(self) -> dict[str, tuple[str, ...]]:
        """The patterns of every policy; empty if every agent has one of its own."""
        named = self.policies if isinstance(self.policies, dict) else {}
        return {name: (given,) if isinstance(given, str) else given for name, given in named.items()}

    def _check_known(self, option: str, name: str) -> None:
        if isinstance(self.policies, dict) and name not in self.policies:
            known = list(self.policies)
            raise ValueError(
                f"{option} names the policy {name!r}; policies has {', '.join(known)}.{closest(name, known)}"
            )

    def _checked(self, inner: Inner, called: str) -> Needs:
        """The needs of an algorithm of one policy, which errors call `called`. Raises ValueError if several policies
        cannot learn by it."""
        needs = inner.algorithm.needs(inner.cfg)
        for wrong, why in (
            (needs.joint, "learns all agents together in one policy"),
            (needs.population is not None, "changes the parameters of one policy at a time"),
            (needs.tasks is not None, "adapts one policy to tasks"),
            (needs.every_process_learns, "lets every process learn one policy"),
            (needs.return_discount is not None, "scales rewards by the returns of all agents: normalize_reward"),
            (needs.replay is not None and needs.replay.first_priority, "has input_priorities of one policy"),
        ):
            if wrong:
                raise ValueError(f"{called} cannot be inside {self.name}, because it {why}")
        return needs

    def _check_same(self, first: Needs, name: str) -> None:
        """Refuses options that change the shape of this policy's batches, which come from the same samplers."""
        own = self._checked(self.of(name), f"options.{name} ({self.of(name).cfg.name})")
        for part, options in SAME.items():
            if getattr(own, part) != getattr(first, part):
                sizes = getattr(first, part), getattr(own, part)
                shown = f" ({sizes[0]} and {sizes[1]})" if part in ("rows", "columns") else ""
                raise ValueError(
                    f"the policies share samplers, so that algo.inner ({self.inner.cfg.name}) and options.{name}"
                    f" ({self.of(name).cfg.name}) must have the same {options}{shown}: set it for one of them"
                )

    def of(self, policy: str) -> Inner:
        """The algorithm of a policy, with its options."""
        return self.options.get(policy, self.inner)


def _is_run(value: str) -> bool:
    return value != "random" and not is_path(value)


def _is_taken(name: str) -> bool:
    """Whether PyTorch, which keeps policies as modules by name, refuses this name."""
    return not name or "." in name or hasattr(nn.ModuleDict(), name)


def members(cfg: Config, names: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    """The numbers of the agents that have each policy. names: all agents. Raises UserError for an agent without a
    policy, a pattern that matches no agent, and names of policies that do not exist."""
    if cfg.policies == "each":
        made: dict[str, tuple[int, ...]] = {name.replace(".", "_"): (number,) for number, name in enumerate(names)}
        for name in made:
            if _is_taken(name):
                raise UserError(
                    f"a policy cannot have the name of the agent {name!r}: give policies other names, as in"
                    f" algo.policies={{first: [{name}], ...}}"
                )
        if len(made) < len(names):
            raise UserError(
                "two agents have names that differ only by a dot, and algo.policies=each puts an underscore in its"
                f" place: give policies other names, as in algo.policies={{first: [{names[0]}], ...}}"
            )
        for option in ("fixed", "options"):
            for name in getattr(cfg, option):
                if name not in made:
                    raise UserError(
                        f"algo.{option} names the policy {name!r}; with algo.policies=each there are"
                        f" {', '.join(made)}.{closest(name, made)}"
                    )
        if set(made) == set(cfg.fixed):
            raise UserError("every policy is fixed, so nothing would be learnt")
        return made
    found: dict[str, list[int]] = {name: [] for name in cfg.patterns}
    used: set[tuple[str, str]] = set()
    for number, agent in enumerate(names):
        matching = [
            (policy, pattern)
            for policy, patterns in cfg.patterns.items()
            for pattern in patterns
            if fits_name(agent, pattern)
        ]
        used.update(matching)
        if not matching:
            every = [pattern for patterns in cfg.patterns.values() for pattern in patterns]
            idle = [one for one in every if not any(fits_name(other, one) for other in names)]
            more = f" ({', '.join(idle)} {'match' if len(idle) > 1 else 'matches'} no agent)" if idle else ""
            raise UserError(f"the agent {agent} has no policy: no pattern of algo.policies matches its name{more}")
        found[matching[0][0]].append(number)
    for policy, patterns in cfg.patterns.items():
        for pattern in patterns:
            if (policy, pattern) not in used:
                raise UserError(
                    f"the pattern {pattern!r} of algo.policies.{policy} matches no agent; there are"
                    f" {', '.join(names)}.{closest(pattern, names)}"
                )
        if not found[policy]:
            raise UserError(f"algo.policies.{policy} gets no agent: earlier patterns match all of its agents")
    return {name: tuple(numbers) for name, numbers in found.items()}


class Multi(Algorithm):
    holds_another = True
    cfg: Config
    policy: SeveralPolicies

    @classmethod
    def can_hold(cls, inner: type[Algorithm]) -> str | None:
        return "it holds another algorithm itself" if inner.holds_another else None

    @classmethod
    def needs(cls, cfg: Config) -> Needs:
        every = [cfg.inner, *cfg.options.values()]
        needs = [one.algorithm.needs(one.cfg) for one in every]
        first = needs[0]
        record = tuple(dict.fromkeys(field for one in needs for field in one.record))
        actions = tuple(kind for kind in first.actions if all(kind in one.actions for one in needs))
        shared = tuple(dict.fromkeys(count for one in needs for count in one.shared))
        return replace(first, record=record, actions=actions, shared=shared, only_weights=False, several=True)

    @classmethod
    def teams(cls, cfg: Config, names: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
        """The agents of every policy, but for those that have one agent and its name."""
        of_policies = {name: tuple(names[n] for n in numbers) for name, numbers in members(cfg, names).items()}
        return {name: agents for name, agents in of_policies.items() if agents != (name,)}

    @classmethod
    def make_policy(cls, spec: EnvSpec, model: Model, cfg: Config) -> SeveralPolicies:
        if spec.agents is None:
            raise UserError(f"{cfg.name} is for environments with several agents; {spec.name} has one")
        of_agents = members(cfg, spec.agents.names)
        policies: dict[str, Policy] = {}
        scripted: dict[str, Exploration] = {}
        recorded: dict[str, tuple[str, ...]] = {}
        for name, numbers in of_agents.items():
            inner, own = cfg.of(name), spec_of(spec, name, numbers)
            fixed = cfg.fixed.get(name)
            if fixed == "random":
                scripted[name] = Uniform(own)
            elif fixed is not None and is_path(fixed):
                scripted[name] = load_exploration(fixed, own, {}, f"algo.fixed.{name}")
            else:
                policies[name] = inner.algorithm.make_policy(own, model, inner.cfg)
                if fixed is None:
                    recorded[name] = inner.algorithm.needs(inner.cfg).record
        return SeveralPolicies(len(spec.agents.names), of_agents, policies, scripted, recorded)

    def __init__(self, policy: SeveralPolicies, spec: EnvSpec, cfg: Config, ctx: LearnerContext):
        super().__init__(policy, spec, cfg, ctx)
        if ctx.learners > 1 and self.needs(cfg).replay is not None:
            raise ValueError("with a replay, several policies have one learner: set resources.num_learners=1")
        for name, one in cfg.options.items() if policy.core_spec() else ():
            if one.algorithm.needs(one.cfg).core_every != self.needs(cfg).core_every:
                raise ValueError(
                    f"options.{name} must not change sequence_length: memory is stored for all policies alike"
                )
        self.rngs = {name: ctx.another_rng() for name in policy.recorded}
        self.learners = nn.ModuleDict()
        for name in policy.recorded:
            inner, own = cfg.of(name), spec_of(spec, name, policy.members[name])
            try:
                made = inner.algorithm(policy.policy(name), own, inner.cfg, ctx._replace(rng=self.rngs[name]))
            except ValueError as error:
                raise ValueError(f"for the policy {name}: {error}") from None
            self.learners[name] = made
        for name in policy.policies:
            if name not in policy.recorded:
                policy.policy(name).requires_grad_(False)

    def update(self, batch: Batch, clock: Clock) -> Update:
        metrics: dict[str, Any] = {}
        writes: list[Mapping[str, Tensor | Batch]] = []
        for name, part in self.parts(batch):
            learner = self.learners[name]
            assert isinstance(learner, Algorithm)
            update = learner.update(part, clock)
            metrics |= {f"{name}/{metric}": value for metric, value in update.metrics.items()}
            if update.writes:
                writes.append(update.writes)
        if not writes:
            return Update(metrics)
        if len(writes) < len(self.learners) or any(set(one) != set(writes[0]) for one in writes):
            raise ValueError("all policies must write the same fields back to replay")
        return Update(metrics, {name: _joined([one[name] for one in writes]) for name in writes[0]})

    def parts(self, batch: Batch) -> Iterator[tuple[str, Batch]]:
        """The rows of every policy that learns: its agents' columns, or what its own replay drew."""
        columns = batch["reward"].shape[1]
        for number, name in enumerate(self.policy.recorded):
            if "key" in batch:  # from replay, where the draws lie side by side in this order
                width = columns // len(self.policy.recorded)
                where: slice | Tensor = slice(number * width, (number + 1) * width)
            else:
                where = self.policy.columns(name, columns, batch["reward"].device)
            kept = {
                field: value[where] if field in ("weight", "key") else Batch({field: value}).columns(where)[field]
                for field, value in batch.items()
                if field != "core"
            }
            if "core" in batch and name in batch["core"]:
                core = batch["core"][name]
                assert isinstance(core, Batch)
                kept["core"] = core if "key" in batch else core.columns(where)  # a replay draws each policy's by itself
            yield name, Batch(kept)

    def renew_targets(self) -> None:
        """The algorithms inside have the targets."""


def frozen(cfg: Config) -> dict[str, Path]:
    """The run directories or checkpoints from which policies that do not learn get their weights, by their names."""
    return {name: Path(value) for name, value in cfg.fixed.items() if _is_run(value) and value != SAVED}


def with_saved_weights(algo: dict[str, Any]) -> dict[str, Any]:
    """The options of a resumed run, whose own checkpoint holds the weights of policies that do not learn."""
    fixed = algo.get("fixed")
    if not isinstance(fixed, dict) or algo.get("name") != "multi":
        return algo
    return {**algo, "fixed": {name: SAVED if _is_run(value) else value for name, value in fixed.items()}}


def spec_of(spec: EnvSpec, name: str, numbers: tuple[int, ...]) -> EnvSpec:
    """The environment as the agents with these numbers see it."""
    assert spec.agents is not None
    return replace(spec, agents=Agents(groups=((name, tuple(spec.agents.names[number] for number in numbers)),)))


def _joined(values: list[Any]) -> Any:
    if isinstance(values[0], Batch):
        return Batch({name: _joined([one[name] for one in values]) for name in values[0]})
    return torch.cat(values, 0 if values[0].ndim == 1 else 1)
