"""Recorded episodes in memory, with their stacks of frames, and what a policy does in their rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlrun.core.batch import Batch
from rlrun.core.env import map_rows
from rlrun.core.errors import UserError
from rlrun.core.policy import Mode, Policy
from rlrun.core.schedule import Clock
from rlrun.core.specs import Discrete, EnvSpec, MultiBinary, MultiDiscrete, executed
from rlrun.datasets.trajectories import Source, Trajectory
from rlrun.envs.stacked import LastFrames
from rlrun.samplers.evaluator import to_torch

ROWS_AT_A_TIME, IMAGES_AT_A_TIME = 4096, 256


class RecordedEpisodes:
    """The episodes of a data set in memory, and what a policy does in them."""

    def __init__(self, source: Source, spec: EnvSpec, episodes: int | None = None):
        """spec: what the policy sees. Raises UserError if the data's spaces are others, or if no episode is whole."""
        check_spaces(source, spec)
        self.name, self.spec, self.left_out, self.unknown = source.name, spec, 0, 0
        self.cut = 0  # episodes that a time limit ended
        self.lengths: list[int] = []  # rows of every episode
        parts: list[Batch] = []
        for trajectory in trajectories(source):
            if not trajectory.whole or not trajectory.steps:
                self.left_out += 1
                continue
            self.unknown += not trajectory.has_log_prob
            self.cut += is_cut(trajectory)
            _check_log_prob(trajectory, source)
            parts.append(_rows(trajectory, spec))
            self.lengths.append(len(trajectory))
            if len(parts) == episodes:
                break
        if not parts:
            raise UserError(f"{source.name} has no whole episode to estimate from")
        self.rows = _joined(parts)  # leaves [R, ...]

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def starts(self) -> list[int]:
        """The number of every episode's first row."""
        return np.cumsum([0, *self.lengths[:-1]]).tolist()


def trajectories(source: Source):
    """Yields all trajectories of a source."""
    for piece in range(source.pieces()):
        yield from source.read(piece)


def is_cut(trajectory: Trajectory) -> bool:
    """Whether something else than the game itself ended an episode, such as a time limit."""
    return not trajectory.terminated[np.flatnonzero(trajectory.valid)[-1]]


def check_spaces(source: Source, spec: EnvSpec) -> None:
    """Raises UserError if a policy for this environment cannot be judged by these data."""
    theirs = source.facts.spec
    for one in (spec, theirs):
        if one.agents is not None:
            raise UserError(f"values are estimated for one agent, and {one.name} has {len(one.agents.names)}")
    for what, a, b in (
        ("observations", theirs.observation, spec.observation),
        ("actions", theirs.action, spec.action),
        ("action masks", theirs.obs.get("action_mask"), spec.obs.get("action_mask")),
    ):
        if a != b or (what == "observations" and theirs.stack != spec.stack):
            same = str(a) == str(b)
            raise UserError(
                f"{source.name} has {what} {a}{' with other bounds' if same else ''}, and the policy was trained with"
                f" {b} ({spec.name})"
            )


def _check_log_prob(trajectory: Trajectory, source: Source) -> None:
    """Raises UserError for probabilities of choices that are above 1, with which weights would mean nothing."""
    known = trajectory.record.get("log_prob")
    choices = isinstance(source.facts.spec.action, Discrete | MultiDiscrete | MultiBinary)
    if known is not None and choices and (known[trajectory.valid] > 1e-3).any():
        raise UserError(
            f"{source.name} holds behaviour probabilities above 1: {float(np.exp(known[trajectory.valid].max())):g} is"
            " the largest, so that they cannot be those of choices"
        )


def _rows(trajectory: Trajectory, spec: EnvSpec) -> Batch:
    """The rows of an episode as its policy sees them, leaves [N, ...]."""
    count = len(trajectory)
    obs = dict(trajectory.obs)
    if spec.stack > 1:
        obs["observation"] = _stacked(obs["observation"], spec.stack, count)
    live = trajectory.valid
    reward = trajectory.reward
    action = map_rows(trajectory.action, lambda x: np.where(live.reshape(-1, *[1] * (x.ndim - 1)), x, np.zeros_like(x)))

    def before(x: np.ndarray) -> np.ndarray:
        return np.concatenate([np.zeros_like(x[:1]), x[:-1]])

    if "prev_action" in spec.obs and "prev_action" not in obs:
        obs["prev_action"] = map_rows(executed(spec.action, trajectory.action), before)
    if "prev_reward" in spec.obs and "prev_reward" not in obs:
        obs["prev_reward"] = before(reward.astype(np.float32))[:, None]
    log_prob = trajectory.record["log_prob"] if "log_prob" in trajectory.record else np.full(count, np.nan)
    flags = {"terminated": trajectory.terminated, "valid": live, "is_first": np.arange(count) == 0}
    fields = {"obs": {name: obs[name] for name in spec.obs}, "action": action, "reward": reward, "log_prob": log_prob}
    return to_torch(map_rows({**fields, **flags}, np.array))  # copies, since read rows may not be written to


def _stacked(frames: Any, stack: int, count: int) -> Any:
    """Every row's last frames, of the newest frame of every row [N, ...]. Those from before the first are 0."""
    last, first = LastFrames(stack), np.zeros(1, dtype=bool)

    def seen(row: int) -> Any:
        return last.push(map_rows(frames, lambda x: x[row : row + 1]), first)

    return _together([seen(row) for row in range(count)])


def _together(parts: Sequence[Any]) -> Any:
    if isinstance(parts[0], dict):
        return {name: _together([part[name] for part in parts]) for name in parts[0]}
    return np.concatenate(parts)


def _joined(parts: Sequence[Batch]) -> Batch:
    first = parts[0]
    return Batch(
        {
            name: _joined([part[name] for part in parts])  # type: ignore[misc]
            if isinstance(first[name], Batch)
            else torch.cat([part[name] for part in parts])  # type: ignore[misc]
            for name in first
        }
    )


# -- what the policy does ----------------------------------------------------------------------------------------------


def _pieces(played: RecordedEpisodes, policy: Policy) -> list[slice]:
    """The rows that a policy is given at a time: whole episodes if it remembers anything, else as many as fit."""
    if remembers(policy):
        return [slice(start, start + count) for start, count in zip(played.starts, played.lengths, strict=True)]
    size, total = (IMAGES_AT_A_TIME if played.spec.image else ROWS_AT_A_TIME), sum(played.lengths)
    return [slice(start, min(start + size, total)) for start in range(0, total, size)]


def remembers(policy: Policy) -> bool:
    """Whether what a policy does depends on more than the row: on memory, or on the state of its exploration."""
    return len(policy.initial_state(1)) > 0


@torch.inference_mode()
def log_prob(played: RecordedEpisodes, policy: Policy, mode: Mode, clock: Clock) -> Tensor:
    """The log-probabilities [R] of the actions of all rows. Raises UserError if the policy gives none."""
    made = [
        policy.log_prob(played.rows[piece].map(lambda x: x.unsqueeze(1)), mode, clock).squeeze(1)
        for piece in _pieces(played, policy)
    ]
    return torch.cat(made).double()


@torch.inference_mode()
def knows_choices(played: RecordedEpisodes, policy: Policy, mode: Mode, clock: Clock) -> bool:
    """Whether actions are single choices whose probabilities the policy gives, so that chances() draws none."""
    if not isinstance(played.spec.action, Discrete):
        return False
    try:
        policy.log_probs(played.rows[:1].map(lambda x: x.unsqueeze(1)), mode, clock)
    except UserError:
        return False
    return True


@torch.inference_mode()
def chances(
    played: RecordedEpisodes, policy: Policy, mode: Mode, clock: Clock, count: int, rng: torch.Generator
) -> Any:
    """What the policy does in all rows: probabilities [R, A] where an action is one choice, else `count` actions that
    it draws, leaves [R, count, ...]. Where it has no probabilities of choices, they are frequencies of drawn ones."""
    space, pieces = played.spec.action, _pieces(played, policy)
    if isinstance(space, Discrete):
        try:
            made = [
                policy.log_probs(played.rows[piece].map(lambda x: x.unsqueeze(1)), mode, clock).squeeze(1)
                for piece in pieces
            ]
            return torch.cat(made).exp().float()
        except UserError:
            drawn = torch.cat([_drawn(played.rows[p], policy, mode, clock, count, rng) for p in pieces])
            return torch.nn.functional.one_hot(drawn, space.n).float().mean(1)
    actions = [Batch(action=_drawn(played.rows[piece], policy, mode, clock, count, rng)) for piece in pieces]
    return _joined(actions)["action"]


def _drawn(rows: Batch, policy: Policy, mode: Mode, clock: Clock, count: int, rng: torch.Generator) -> Any:
    """`count` actions in each of N rows, leaves [N, count, ...]."""
    total = len(rows["is_first"])
    if not remembers(policy):
        nothing = policy.initial_state(total)  # one call for each draw, since noisy layers draw once in a call
        many = [policy.act(rows["obs"], rows["is_first"], nothing, clock, mode, rng).action for _ in range(count)]  # type: ignore[arg-type]
        return _joined([Batch(action=action).map(lambda x: x.unsqueeze(0)) for action in many]).map(
            lambda x: x.transpose(0, 1)
        )["action"]
    state, made = policy.initial_state(count), []
    for row in range(total):
        one = rows[row : row + 1].map(lambda x: x.expand(count, *x.shape[1:]))
        act = policy.act(one["obs"], one["is_first"], state, clock, mode, rng)
        state = act.state
        made.append(Batch(action=act.action).map(lambda x: x.unsqueeze(0)))
    return _joined(made)["action"]
