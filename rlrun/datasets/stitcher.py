"""Stitcher: makes trajectories of rows of other libraries' files, in which episodes go on from one line or file to the
next. An episode that becomes too long for memory becomes several trajectories, as a recorder makes of it."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from rlrun.core.errors import UserError
from rlrun.core.specs import Box, EnvSpec
from rlrun.datasets.foreign import Chunk, actions, is_normalized, observations
from rlrun.datasets.parquet_writer import FILE_BYTES, GROUP_ROWS
from rlrun.datasets.step_count import StepCount
from rlrun.datasets.trajectories import DataFacts, Trajectory

FORGET = 256  # batches after which an episode that no batch continued is over
LONGEST_ROWS, LONGEST_BYTES = GROUP_ROWS, FILE_BYTES  # of a trajectory whose episode goes on, without its last batch


class WithEnds:
    """Where decisions and dead rows stand in a trajectory."""

    def __init__(self, gap: np.ndarray, lead: np.ndarray | None = None):
        """gap [n]: whether a dead row follows a decision. lead [n]: how many more dead rows stand in front of each
        decision; None: none."""
        lead = np.zeros(len(gap), dtype=np.int64) if lead is None else lead
        before = np.cumsum(lead) + np.cumsum(gap) - gap  # dead rows in front of each decision
        self.live = np.arange(len(gap)) + before  # the rows of decisions
        self.dead = self.live[gap] + 1
        self.total = len(gap) + int(lead.sum()) + int(gap.sum())
        self.valid = np.zeros(self.total, dtype=bool)
        self.valid[self.live] = True

    def spread(self, values: np.ndarray) -> np.ndarray:
        """[n or more, ...] values of the decisions -> [total, ...], in which dead rows are 0."""
        made = np.zeros((self.total, *values.shape[1:]), dtype=values.dtype)
        made[self.live] = values[: len(self.live)]
        return made


@dataclass
class _Open:
    """An episode that may go on."""

    seen: int  # the batch that continued it last
    agent: int
    policy: int
    t: float = -np.inf
    parts: list[dict[str, np.ndarray]] = field(default_factory=list)
    rows: int = 0  # of the parts
    size: int = 0  # their bytes, as a trajectory has them
    # The last steps of the trajectory before this one, if that is a part of the same episode.
    lead: dict[str, np.ndarray] = field(default_factory=dict)
    # The frames [stack - 1, ...] before that of a row, for rows of the parts whose frames are not in the rows before.
    older: dict[int, np.ndarray] = field(default_factory=dict)
    last: np.ndarray | None = None  # the stack [stack, ...] of the last row
    then: np.ndarray | None = None  # the stack behind it; None: unknown
    steps: int = 0  # of the episode in earlier trajectories
    where: str = ""
    only_dones: bool = False

    def add(self, part: dict[str, np.ndarray]) -> None:
        """Adds rows that go on with the episode."""
        self.parts.append(part)
        self.rows += len(part["reward"])
        self.size += sum(values.nbytes for name, values in part.items() if name != "new_obs")

    def look(self, seen: np.ndarray, then: np.ndarray | None, follows: np.ndarray) -> None:
        """Keeps the older frames of the rows that are added next where the rows before do not hold them.

        seen [n, stack, ...]: their observations. then [n, stack, ...]: those behind them; None: unknown. follows [n]:
        whether each is the next step after the row before it."""
        broken = np.zeros(len(seen), dtype=bool)
        broken[1:] = _differ(seen[1:, :-1], seen[:-1, 1:])
        if then is None:
            broken |= ~follows
        else:
            broken[1:] |= _differ(seen[1:], then[:-1])
        if self.last is None:
            # RLlib fills the stack of a first step with copies of its frame, and others with zeros.
            older, copies = seen[0, :-1], follows[0] and not (seen[0, :-1] != seen[0, -1]).any()
            broken[0] = older.any() and not copies
        else:
            known = then is not None and self.then is not None
            broken[0] |= (seen[0, :-1] != self.last[1:]).any() or (known and (seen[0] != self.then).any())
        for row in np.flatnonzero(broken):
            self.older[self.rows + int(row)] = seen[row, :-1].copy()
        self.size += int(broken.sum()) * seen[0, :-1].nbytes
        self.last, self.then = seen[-1].copy(), None if then is None else then[-1].copy()

    @property
    def long(self) -> bool:
        """Whether its rows are enough for one trajectory."""
        return self.rows >= LONGEST_ROWS or self.size >= LONGEST_BYTES


class Stitcher:
    """Makes trajectories of chunks of rows that arrive in the order of recording."""

    def __init__(self, facts: DataFacts, policies: Sequence[str], normalized: bool, count: StepCount | None):
        """policies: the names in Chunk.policy, in the order of facts.policies. count: how Chunk.t counts the steps
        of an episode; None: it does not count them."""
        self.facts, self.normalized = facts, normalized
        self.policies = {name: i for i, name in enumerate(policies)}
        # An agent among several skips steps of its env.
        self.count = count if facts.spec.agents is None and len(policies) == 1 else None
        self.open: dict[Hashable, _Open] = {}
        self.forgotten: set[Hashable] = set()  # episodes that may go on, of which no t tells where
        self.batch = 0

    def add(self, rows: Chunk) -> Iterator[Trajectory]:
        """Yields the trajectories that end in these rows. Raises UserError if rows do not fit the spec."""
        self.batch += 1
        spec = self.facts.spec
        seen, then = observations(spec, rows.obs, rows.where), None
        obs = _newest(spec, seen)
        fields = {
            "obs": obs,
            "action": actions(spec, rows.action, self.normalized, rows.where),
            "reward": rows.reward,
            "terminated": rows.terminated,
            "truncated": rows.truncated,
        }
        if rows.new_obs is not None:
            then = observations(spec, rows.new_obs, rows.where)
            fields["new_obs"] = _newest(spec, then)
        if "log_prob" in self.facts.record:
            none = np.full(len(obs), np.nan, dtype=np.float32)
            fields["log_prob"] = none if rows.log_prob is None else self._density(rows.log_prob)
        agent = np.zeros(len(obs), dtype=np.int64) if rows.agent is None else rows.agent
        many = 1 if spec.agents is None else len(spec.agents.names)
        if agent.size and (agent.min() < 0 or agent.max() >= many):
            raise UserError(f"{rows.where}: agent_index is {int(agent.max())}, and {spec.name} has {many} agents")
        if rows.policy not in self.policies:
            raise UserError(f"{rows.where}: the policy {rows.policy!r} was in no batch before")
        done = rows.terminated | rows.truncated
        for start, stop in self._pieces(rows, agent, done):
            name = None if rows.episode is None else rows.episode[start]
            if not isinstance(name, Hashable):
                raise UserError(f"{rows.where}: {name!r} is no name of an episode")
            key: Hashable = (rows.policy, name, int(agent[start]))
            time = None if rows.t is None else float(rows.t[start])
            before = self.open.get(key)
            if before is not None and time is not None and time <= before.t:
                yield from self._close(key)
                before = None
            if before is None:
                before = self.open[key] = _Open(self.batch, int(agent[start]), self.policies[rows.policy])
            follows = self._follows(rows, start, stop, before.t, key, not before.parts)
            if before.long:
                yield from self._divide(key, fields["obs"][start : start + 1] if follows[0] else None)
                before = self.open[key]
            if spec.stack > 1:
                before.look(seen[start:stop], None if then is None else then[start:stop], follows)
            before.add({name: values[start:stop] for name, values in fields.items()} | {"follows": follows})
            before.seen, before.where, before.only_dones = self.batch, rows.where, rows.only_dones
            before.t = -np.inf if rows.t is None else float(rows.t[stop - 1])
            if done[stop - 1]:
                yield from self._close(key)
        for one in self.open.values():
            if one.seen == self.batch:  # a slice would keep the whole batch in memory
                one.parts[-1] = {name: values.copy() for name, values in one.parts[-1].items()}
        for key in [key for key, one in self.open.items() if one.seen < self.batch - FORGET]:
            if self.count is None or self.open[key].t == -np.inf:
                self.forgotten.add(key)
            yield from self._close(key)

    def _follows(self, rows: Chunk, start: int, stop: int, before: float, key: Hashable, first: bool) -> np.ndarray:
        """[n] whether these rows are each the next step of their episode. before: the t of the row before them. first:
        whether they begin a trajectory, so that the first of them should be the first step."""
        made = np.ones(stop - start, dtype=bool)
        if self.count is not None and rows.t is not None:
            t = rows.t[start:stop].astype(np.float64)
            made = self.count.follows(t, np.append(before, t[:-1]))
            if first:
                made[0] = self.count.begins(t[0])
            elif before == -np.inf:  # the row before has no t
                made[0] = True
        elif first and key in self.forgotten:
            self.forgotten.remove(key)
            made[0] = False
        return made

    def _density(self, log_prob: np.ndarray) -> np.ndarray:
        """Log probabilities of a file for actions in the units that rows have: a density grows as its space shrinks."""
        space = self.facts.spec.action
        if not isinstance(space, Box) or not space.bounded or is_normalized(space, self.normalized):
            return log_prob
        width = np.subtract(space.high, space.low) + float(space.whole)  # [-1, 1] has a part for each whole number
        return log_prob + np.log(width / 2).sum(dtype=np.float32)

    def finish(self) -> Iterator[Trajectory]:
        """Yields the episodes that nothing ended."""
        for key in list(self.open):
            yield from self._close(key)

    @staticmethod
    def _pieces(rows: Chunk, agent: np.ndarray, done: np.ndarray) -> Iterator[tuple[int, int]]:
        """Yields (start, stop) of rows that follow each other in one episode."""
        count = len(done)
        cut = done[:-1] | (agent[1:] != agent[:-1])
        if rows.t is not None:
            cut = cut | (rows.t[1:] <= rows.t[:-1])
        if rows.episode is not None:
            cut = cut | np.array([one != other for one, other in itertools.pairwise(rows.episode)], dtype=bool)
        edges = [0, *(np.flatnonzero(cut) + 1).tolist(), count] if count else []
        yield from itertools.pairwise(edges)

    def _close(self, key: Hashable) -> Iterator[Trajectory]:
        one = self.open.pop(key)
        yield from self._made(one, _joined(one.parts), None)

    def _divide(self, key: Hashable, then: np.ndarray | None) -> Iterator[Trajectory]:
        """Ends a trajectory whose episode goes on. The next one begins with its last rows, as dead ones: stacks of
        frames and the last action are true then. then [1, ...]: the observation behind it; None: unknown."""
        one = self.open[key]
        rows, count = _joined(one.parts), max(1, self.facts.spec.stack - 1)
        yield from self._made(one, rows, then)
        lead = {name: values[-count:].copy() for name, values in rows.items()}
        if one.last is not None:
            lead["obs"] = one.last[-len(lead["obs"]) :]  # also where rows are missing before them
        self.open[key] = replace(one, parts=[], rows=0, size=0, lead=lead, older={}, steps=one.steps + one.rows)

    def _made(self, one: _Open, rows: dict[str, np.ndarray], then: np.ndarray | None) -> Iterator[Trajectory]:
        """Yields the rows as a trajectory, unless nothing is known of what became of them."""
        count, following = len(rows["reward"]), "new_obs" in rows
        terminated, truncated = rows["terminated"].copy(), rows["truncated"].copy()
        limit = self.facts.spec.max_episode_steps
        if one.only_dones and limit is not None and one.steps + count == limit and terminated[-1]:
            terminated[-1], truncated[-1] = False, True
        # Where it is not known what came behind a step, it is left out, and its observation ends the rows before it.
        follows = rows["follows"]
        if following:
            gap = np.append(_differ(rows["new_obs"][:-1], rows["obs"][1:]), True)
            follows = np.append(follows[:1], ~gap[:-1])
            behind, known = rows["new_obs"], np.ones(count, dtype=bool)
        else:
            known = np.append(follows[1:], terminated[-1] or then is not None)
            gap = np.append(~known[1:], True)
            # Nobody learns from the observation of a terminal state.
            behind = np.append(rows["obs"][1:], rows["obs"][-1:] if then is None else then, axis=0)
        if not known.any():
            return
        ended = known[-1] and (terminated[-1] or truncated[-1])
        whole = bool(ended and follows.all() and not one.lead)
        first = len(one.lead.get("reward", ()))
        older = np.zeros(count, dtype=np.int64)
        older[list(one.older)] = self.facts.spec.stack - 1
        gap[:-1] |= older[1:] > 0  # the older frames of a row do not follow from the decision before it
        lead = older[known]
        lead[0] += first
        rows_of = WithEnds(gap[known], lead)

        def spread(name: str) -> np.ndarray:
            made = rows_of.spread(rows[name][known])
            if first:
                made[:first] = one.lead[name]
            return made

        obs = spread("obs")
        obs[rows_of.dead] = behind[known & gap]
        for at, row in zip(rows_of.live, np.flatnonzero(known), strict=True):
            if older[row]:
                obs[at - older[row] : at] = one.older[int(row)]
        yield Trajectory(
            obs={"observation": obs},
            action=spread("action"),
            reward=spread("reward"),
            terminated=rows_of.spread(terminated[known]),
            truncated=rows_of.spread(truncated[known]),
            valid=rows_of.valid,
            record={"log_prob": spread("log_prob")} if "log_prob" in rows else {},
            agent=one.agent,
            policy=one.policy,
            whole=whole,
        )


def _newest(spec: EnvSpec, obs: np.ndarray) -> np.ndarray:
    """The newest frames of observations that are stacks, and other observations as they are."""
    return obs[:, -1] if spec.stack > 1 else obs


def _differ(some: np.ndarray, others: np.ndarray) -> np.ndarray:
    """[n] whether anything differs in rows [n, ...]."""
    return (some != others).any(axis=tuple(range(1, some.ndim)))


def _joined(parts: Sequence[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """The rows of all parts, in the fields that each of them has."""
    names = [name for name in parts[0] if all(name in part for part in parts)]
    return {name: np.concatenate([part[name] for part in parts]) for name in names}
