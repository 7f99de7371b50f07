"""A trained policy as a module of tensors, which acts greedily without rlrun.

The module's forward(obs, is_first, state) -> (action, state) takes and returns dictionaries of tensors. obs is
{"observation": [B, ...]}, with nested parts by their path ("observation.camera"), and an "action_mask" where the policy
has one. is_first is [B] bool. state is zeros for the first call and then what the last call returned; it is empty
without memory. Actions are in the form that the environment takes; those of agents with unlike spaces, of which a row
does not tell which one it is, are in the form of rows, and policy.json says what that is. Nothing is random: noisy
layers use their means, and eval_epsilon is 0. Filters and the division of pixels by 255 are included. Earlier
preprocessing is not: an observation with env.stack is the stack of frames, whose newest one is last. Choices among
observations are numbered as the environment numbers them, from the first number of their space on.

Of a run with several policies (algo=multi), each is exported by itself, and takes rows of its own agents. Of a run of
self-play it is the newest weights, without the snapshots. A policy that learns all agents together (qmix, vdn, iql,
maddpg) takes a row for an environment, [B, N, ...]; each agent's action depends on that agent's part of the row alone.
The state of the whole environment, which only the learner needs, is no input. A policy that searches (alphazero) is
exported without its search, and plays the network's first guess.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rlrun.algos.multi import spec_of
from rlrun.algos.self_play import of_main
from rlrun.core.batch import Batch, RowSpec
from rlrun.core.errors import RunFailed, UserError
from rlrun.core.games import STATE as GAME_STATE
from rlrun.core.plugins import is_path
from rlrun.core.specs import Box, Discrete, EnvSpec, MultiBinary, MultiDiscrete, Nested, Space, leaves
from rlrun.envs.joint import STATE
from rlrun.models.model import Model
from rlrun.models.noisy import draw_noise
from rlrun.policies import QPolicy
from rlrun.policies.joint import JointQPolicy
from rlrun.policies.league import LeaguePolicy
from rlrun.policies.planning import SearchPolicy
from rlrun.policies.several import SeveralPolicies
from rlrun.runtime.trained import Trained

Tensors = dict[str, Tensor]
EXAMPLES = 3  # rows in the example inputs; torch.export would treat 0 or 1 as constants


class Part(NamedTuple):
    """A policy that is exported by itself."""

    trained: Trained  # the run, with this policy in place of its own
    name: str | None = None  # among several
    numbers: tuple[int, ...] | None = None  # of the agents that it plays; None: all
    fixed: str | None = None  # the run that its weights come from, if it did not learn
    as_taken: bool = True  # whether its files give actions as the environment takes them, and not in the form of rows

    @property
    def file(self) -> str:
        """The name of its files, without the format."""
        # Names of agents may hold characters that no file name can.
        return (
            "policy"
            if self.name is None
            else f"policy.{''.join(c if c.isalnum() or c in '-_' else '_' for c in self.name)}"
        )

    @property
    def agents(self) -> list[str]:
        """The names of the agents that it plays; none if the environment has one agent without a name."""
        spec = self.trained.spec
        if spec.agents is None:
            return []
        if self.numbers is not None or spec.joint:
            return list(spec.agents.names)
        return list(self.trained.agents or spec.agents.names)  # what was learnt from data knows names alone

    @property
    def own(self) -> list[Space]:
        """The action space of each of these agents, as the environment has it."""
        known, common = self.trained.agents, self.trained.spec.action  # what was learnt from data knows one space alone
        return [known[agent].action if agent in known else common for agent in self.agents]


def parts_of(trained: Trained) -> tuple[list[Part], dict[str, str]]:
    """The policies of a run that are exported, and for each that is not, the reason why."""
    policy, spec = trained.policy, trained.spec

    def part(own: Any, seen: EnvSpec, *known: Any) -> Part:
        def acting(spec: EnvSpec) -> Trained:
            return Trained(trained.run_dir, trained.config, spec, own, trained.clock, trained.own)

        made = Part(acting(seen), *known)
        action, as_taken = space_of_files(seen, made.own)
        if spec.agents is not None and not made.trained.agents and isinstance(action, Box):
            as_taken = False  # the agents' own bounds are not known
        return made._replace(trained=acting(replace(seen, action=action)), as_taken=as_taken)

    if isinstance(policy, LeaguePolicy):
        return [part(policy.main, of_main(spec, Model(trained.config.run.model)))], {}
    if not isinstance(policy, SeveralPolicies):
        return [Part(trained) if spec.agents is None else part(policy, spec)], {}
    made, left_out = [], {}
    given = getattr(trained.config.algo, "fixed", {})
    for name, numbers in policy.members.items():
        fixed = given.get(name)
        if name in policy.policies:
            made.append(part(policy.policy(name), spec_of(spec, name, numbers), name, numbers, fixed))
        elif fixed is not None and is_path(fixed):
            left_out[name] = f"{fixed} is a class of the user's own, which has no weights"
        else:
            left_out[name] = "it acts at random and has no weights"
    if len({one.file for one in made}) < len(made):
        raise UserError(
            f"the policies {', '.join(str(one.name) for one in made)} cannot have files of their own, because some of"
            " these names differ only in characters that file names do not have"
        )
    return made, left_out


def space_of_files(spec: EnvSpec, own: list[Space]) -> tuple[Space, bool]:
    """The space of the actions in a policy's files, and whether the environment takes them as they are.

    own: the action spaces of its agents. Where a row does not tell which agent it is, and their spaces ask for unlike
    conversions, actions stay in the form of rows."""
    joint, common = spec.joint, spec.action
    if all(space == own[0] for space in own):
        return (own[0] if own and not joint else common), True
    starts = tuple(space.start for space in own if isinstance(space, Discrete))
    if starts and joint:
        sizes = tuple(space.n for space in own if isinstance(space, Discrete))
        return MultiDiscrete(sizes=sizes, starts=starts, shape=(len(own),)), True
    if starts:
        assert isinstance(common, Discrete)
        same = len(set(starts)) == 1
        return (replace(common, start=starts[0]) if same else common), same
    assert isinstance(common, Box)
    boxes = [space for space in own if isinstance(space, Box)]
    if joint and len({box.shape for box in boxes}) == 1:
        low, high = (sum((getattr(box, end) for box in boxes), ()) for end in ("low", "high"))
        return replace(boxes[0], shape=common.shape, low=low, high=high), True
    end = 1.0 if common.bounded else math.inf
    return replace(common, dtype="float32", low=(-end,) * common.size, high=(end,) * common.size), False


def flat(values: Batch, prefix: str = "") -> Tensors:
    """Flattens nested parts into a dictionary by dotted path."""
    made: Tensors = {}
    for name, value in values.items():
        made |= flat(value, f"{prefix}{name}.") if isinstance(value, Batch) else {f"{prefix}{name}": value}
    return made


def nested(values: Mapping[str, Tensor], rows: RowSpec, prefix: str = "") -> Batch:
    """The inverse of flat. rows: the parts by name, because names may hold dots themselves."""
    return Batch(
        {
            name: nested(values, part, f"{prefix}{name}.") if isinstance(part, dict) else values[f"{prefix}{name}"]
            for name, part in rows.items()
        }
    )


def to_env(space: Space, action: Tensor | Batch, name: str = "action") -> Tensors:
    """Converts actions from the form of rows to the environment's, using tensors (core.specs does it for arrays)."""
    if isinstance(space, Nested):
        assert isinstance(action, Batch)
        made: Tensors = {}
        for part, inner in space.spaces:
            made |= to_env(inner, action[part], f"{name}.{part}")
        return made
    assert isinstance(action, Tensor)
    if isinstance(space, Discrete):
        return {name: (action + space.start).to(getattr(torch, space.dtype))}
    if isinstance(space, MultiDiscrete):
        starts = torch.tensor(space.starts, dtype=torch.int64).reshape(space.shape)
        return {name: (action + starts).to(getattr(torch, space.dtype))}
    if isinstance(space, MultiBinary):
        return {name: action.to(torch.int8)}
    assert isinstance(space, Box)
    low, high = (torch.tensor(bound, dtype=torch.float64).reshape(space.shape) for bound in (space.low, space.high))
    action = action.double()
    share = (action.clamp(-1.0, 1.0) + 1.0) * 0.5
    if not space.bounded:
        action = action.clamp(low, high)  # to the bounds that exist
        action = action.round() if space.whole else action
    elif space.whole:
        action = torch.minimum(low + (share * (high - low + 1.0)).floor(), high)
    else:
        action = (low + share * (high - low)).clamp(low, high)
    return {name: action.to(getattr(torch, space.dtype))}


def starts_of(space: Space) -> Tensors:
    """The first numbers of those choices of an observation that do not count from 0, by path."""
    made: Tensors = {}
    for path, part in leaves(space):
        name = ".".join(("observation", *path))
        if isinstance(part, Discrete) and part.start:
            made[name] = torch.tensor(part.start)
        elif isinstance(part, MultiDiscrete) and any(part.starts):
            made[name] = torch.tensor(part.starts).reshape(part.shape)
    return made


def as_shown(space: Space, obs: Tensors) -> Tensors:
    """Observations in the form of rows, flat by path -> as the environment numbers their choices."""
    starts = starts_of(space)
    return {name: value + starts[name] if name in starts else value for name, value in obs.items()}


class Exported(nn.Module):
    """The greedy policy as a module that takes and returns tensors."""

    def __init__(self, trained: Trained):
        super().__init__()
        self.policy, self.action = trained.policy, trained.spec.action
        self.starts, self.seen = starts_of(trained.spec.observation), seen_by(trained)
        without_chance(self.policy)

    def forward(self, obs: Tensors, is_first: Tensor, state: Tensors) -> tuple[Tensors, Tensors]:
        """Described at the top of this file."""
        rows = {name: value - self.starts[name] if name in self.starts else value for name, value in obs.items()}
        action, after = self.policy.greedy(nested(rows, self.seen), is_first, nested(state, self.policy.core_spec()))
        if isinstance(self.action, Box) and len(self.action.shape) == 1:  # rows may be as long as another agent's
            action = action[:, : self.action.shape[0]]
        return to_env(self.action, action), flat(after)


def without_chance(policy: nn.Module) -> None:
    """Takes what no file can hold from greedy acting: noisy layers use their means, no choice is random, and nothing is
    searched."""
    draw_noise(policy, None)
    for part in policy.modules():
        if isinstance(part, QPolicy | JointQPolicy):
            part.explore = replace(part.explore, eval_epsilon=0.0)
        if isinstance(part, SearchPolicy):
            part.eval_cfg = replace(part.eval_cfg, simulations=0)


def example(trained: Trained, rows: int = EXAMPLES) -> tuple[Tensors, Tensor, Tensors]:
    """Returns (obs, is_first, state) with the right shapes, at the beginning of episodes: zeros, the first numbers of
    choices, and all actions legal."""
    blank = flat(zeros(seen_by(trained), rows))
    obs = as_shown(trained.spec.observation, blank)
    if "action_mask" in obs:
        obs["action_mask"] = torch.ones_like(obs["action_mask"])
    state = trained.policy.initial_state(rows)
    return (
        obs,
        torch.ones(rows, dtype=torch.bool),
        {name: value for name, value in flat(state).items() if name in trained.policy.core_spec()},
    )


def seen_by(trained: Trained) -> RowSpec:
    """The parts of an observation that the files take."""
    hidden = (GAME_STATE,) if trained.spec.agents is None else (STATE, GAME_STATE)
    return {name: spec for name, spec in trained.spec.obs_rows.items() if name not in hidden}


def zeros(spec: Any, rows: int) -> Any:
    if isinstance(spec, dict):
        return Batch({name: zeros(part, rows) for name, part in spec.items()})
    return torch.zeros(rows, *spec.shape, dtype=spec.dtype)


def program(trained: Trained) -> torch.export.ExportedProgram:
    """Traces the policy with torch.export, for any number of rows. Raises RunFailed where PyTorch cannot trace it."""
    inputs = example(trained)
    batch = torch.export.Dim("batch", min=1)
    dynamic = tuple({name: {0: batch} for name in part} if isinstance(part, dict) else {0: batch} for part in inputs)
    with torch.no_grad(), warnings.catch_warnings():
        # PyTorch warns of the list in which its own LSTM keeps its weights, which changes nothing here.
        warnings.filterwarnings("ignore", message="The tensor attributes? .*_flat_weights", category=UserWarning)
        try:
            return torch.export.export(Exported(trained).eval(), inputs, dynamic_shapes=dynamic)
        except Exception as error:  # PyTorch raises many kinds of exceptions here
            raise RunFailed(
                f"torch.export cannot trace this policy: {(str(error).splitlines() or [type(error).__name__])[0]}"
            ) from None
