"""A policy that is made of several, each of which acts for some of an environment's agents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rlrun.core.batch import Batch, RowSpec
from rlrun.core.errors import UserError
from rlrun.core.policy import Act, Mode, Pass, Policy, action_rows_of
from rlrun.core.ranks import Ranks
from rlrun.core.schedule import Clock
from rlrun.policies.exploration import Exploration

LATE = Clock(env_steps=2**62)  # a policy that does not learn explores as at the end of its schedules


class SeveralPolicies(Policy):
    """Policies by name. Column e * N + i belongs to agent i of environment e, and an agent has the same policy in all
    environments.

    The recurrent state of every policy has a row for every column, of which the policy uses its own."""

    def __init__(
        self,
        agents: int,
        members: Mapping[str, Sequence[int]],
        policies: Mapping[str, Policy],
        scripted: Mapping[str, Exploration],
        recorded: Mapping[str, tuple[str, ...]],
        clocks: Mapping[str, Clock] | None = None,
    ):
        """agents: N. members: the agents of every policy. policies and scripted, together, have the same names.
        recorded: what every policy that learns records; a policy that is not named does not learn. clocks: how far
        policies that do not learn are in their schedules of exploration; LATE where none is named."""
        super().__init__()
        self.agents, self.members = agents, {name: tuple(numbers) for name, numbers in members.items()}
        self.policies = nn.ModuleDict(policies)
        self.scripted, self.recorded, self.clocks = dict(scripted), dict(recorded), dict(clocks or {})
        self._indices: dict[tuple[str, int, torch.device], Tensor] = {}

    def policy(self, name: str) -> Policy:
        made = self.policies[name]
        assert isinstance(made, Policy)
        return made

    def when(self, name: str, clock: Clock) -> Clock:
        """The clock by which a policy explores. clock: that of the run."""
        return clock if name in self.recorded else self.clocks.get(name, LATE)

    def columns(self, name: str, count: int, device: torch.device) -> Tensor:
        """The numbers of a policy's columns among `count`, in ascending order."""
        key = (name, count, device)
        if key not in self._indices:
            agents = torch.tensor(self.members[name])
            envs = torch.arange(count // self.agents) * self.agents
            self._indices[key] = (envs.unsqueeze(1) + agents).flatten().to(device)
        return self._indices[key]

    def recordable(self, what: Pass) -> bool:
        return not self.scripted and all(self.policy(name).recordable(what) for name in self.policies)

    def initial_state(self, columns: int, place: Tensor | None = None) -> Batch:
        """One Batch for every policy that has a state."""
        made = {name: self.policy(name).initial_state(columns, place) for name in self.policies}
        device = next(self.parameters(), torch.zeros(())).device
        for name, scripted in self.scripted.items():
            made[name] = Batch(scripted.initial_state(columns, place, device))
        return Batch({name: state for name, state in made.items() if len(state)})

    def core_spec(self) -> RowSpec:
        specs = {name: self.policy(name).core_spec() for name in self.policies}
        return {name: spec for name, spec in specs.items() if spec}

    def record_spec(self, names: tuple[str, ...]) -> RowSpec:
        found: RowSpec = {}
        for policy, recorded in self.recorded.items():
            for name, field in self.policy(policy).record_spec(tuple(n for n in names if n in recorded)).items():
                if found.setdefault(name, field) != field:
                    raise UserError(f"the policies record {name} in unlike shapes, {found[name]} and {field}")
        for name in names:
            if name not in found:
                raise KeyError(name)
        return found

    def act(
        self,
        obs: Batch,
        is_first: Tensor,
        state: Batch,
        clock: Clock,
        mode: Mode,
        rng: torch.Generator,
        record: tuple[str, ...] = (),
    ) -> Act:
        parts: dict[str, Act] = {}
        for name in self.members:
            index = self.columns(name, len(is_first), is_first.device)
            seen, first, before = obs[index], is_first[index], self._state(state, name)[index]
            if name in self.scripted:
                chosen = self.scripted[name].choose(None, seen, first, before, clock, rng)
                told = {} if "log_prob" not in record else {"log_prob": _known(chosen.log_prob, first)}
                parts[name] = Act(chosen.action, Batch({**before, **chosen.state}), Batch(told))  # type: ignore[arg-type]
                continue
            asked, when = self._asked(name, record), self.when(name, clock)
            made = self.policy(name).act(seen, first, before, when, mode, rng, asked)
            if "log_prob" in record and "log_prob" not in asked:
                made = made._replace(record=made.record.replace(log_prob=_known(None, first)))
            parts[name] = made
        return self._together(parts, state, len(is_first), is_first.device)

    def _asked(self, name: str, record: tuple[str, ...]) -> tuple[str, ...]:
        """What a policy records: what its algorithm learns from, and the probabilities of its actions if it knows
        them."""
        asked = tuple(one for one in record if one in self.recorded.get(name, ()))
        if "log_prob" not in record or "log_prob" in asked:
            return asked
        try:
            self.policy(name).record_spec(("log_prob",))
        except (KeyError, UserError):
            return asked
        return (*asked, "log_prob")

    def greedy(self, obs: Batch, is_first: Tensor, state: Batch) -> tuple[Tensor | Batch, Batch]:
        if self.scripted:
            raise UserError(f"the policy {next(iter(self.scripted))} has no weights that could be exported")
        parts = {}
        for name in self.members:
            index = self.columns(name, len(is_first), is_first.device)
            action, after = self.policy(name).greedy(obs[index], is_first[index], self._state(state, name)[index])
            parts[name] = Act(action, after, Batch())  # type: ignore[arg-type]
        act = self._together(parts, state, len(is_first), is_first.device)
        return act.action, act.state

    def log_prob(self, batch: Batch, mode: Mode, clock: Clock) -> Tensor:
        """The log-probabilities [T, B], by each column's own policy. Raises UserError where one has none."""
        if self.scripted:
            raise UserError(f"the policy {next(iter(self.scripted))} gives no probabilities of actions")
        rest = Batch({name: value for name, value in batch.items() if name != "core"})
        first: Tensor = batch["is_first"]  # type: ignore[assignment]
        made = torch.zeros(action_rows_of(batch), first.shape[1], device=first.device)
        for name in self.members:
            index = self.columns(name, first.shape[1], first.device)
            own = rest.columns(index)
            if "core" in batch and name in batch["core"]:
                own = own.replace(core=batch["core"][name].map(lambda x, i=index: x[:, i]))  # type: ignore[index, misc, union-attr, arg-type]
            made[:, index] = self.policy(name).log_prob(own, mode, self.when(name, clock))
        return made

    @staticmethod
    def _state(state: Batch, name: str) -> Batch:
        part = state[name] if name in state else Batch()
        assert isinstance(part, Batch)
        return part

    def _together(self, parts: Mapping[str, Act], state: Batch, count: int, device: torch.device) -> Act:
        """Puts what the policies returned for their columns into rows of all columns. What a policy does not record is
        0 there."""
        action: Any = None
        record: dict[str, Any] = {}
        after = dict(state.items())
        for name, part in parts.items():
            index = self.columns(name, count, device)
            action = _put(action, index, part.action, count)
            for field, values in part.record.items():
                record[field] = _put(record.get(field), index, values, count)
            if len(part.state):
                after[name] = _put(self._state(state, name).clone(), index, part.state, count)
        return Act(action, Batch(after), Batch(record))

    def moments(self, batch: Batch) -> Any:
        """What every policy's filter learns from its own columns; None if no policy has a filter."""
        found = {}
        for name in self.recorded:
            part = Batch({key: value for key, value in batch.items() if key != "core"})
            index = self.columns(name, batch["reward"].shape[1], batch["reward"].device)
            found[name] = self.policy(name).moments(part.columns(index)) if self._filters(name) else None
        return found if any(one is not None for one in found.values()) else None

    def _filters(self, name: str) -> bool:
        return getattr(self.policy(name), "filter", None) is not None

    def absorb(self, moments: Sequence[Any], ranks: Ranks) -> None:
        for name in self.recorded:
            self.policy(name).absorb([m[name] for m in moments if m is not None and m[name] is not None], ranks)


def _known(log_prob: Tensor | None, like: Tensor) -> Tensor:
    """Log-probabilities [B], NaN if they are not known. like: [B]."""
    return torch.full(like.shape, torch.nan, device=like.device) if log_prob is None else log_prob


def _put(into: Any, index: Tensor, values: Any, count: int) -> Any:
    """Writes values [n, ...] into the rows `index` [n] of a tree of `count` rows, which is made if it is None."""
    if isinstance(values, Batch):
        return Batch(
            {name: _put(None if into is None else into[name], index, part, count) for name, part in values.items()}
        )
    if into is None:
        into = values.new_zeros((count, *values.shape[1:]))
    into[index] = values
    return into
