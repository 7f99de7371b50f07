"""Rows of other libraries' files as trajectories: the spaces that such files do not name, and episodes that go on from
one line or file to the next.

RLlib writes transitions: obs, action, reward, new_obs. A trajectory has one observation more than it has decisions, and
the last one is a dead row. Where new_obs is not the observation of the next row, rows are missing between them, and a
dead row with new_obs stands there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch

from rlrun.core.batch import Field, RowSpec
from rlrun.core.errors import UserError
from rlrun.core.specs import Agents, Box, Discrete, EnvSpec, MultiBinary, MultiDiscrete, Nested, Space, described
from rlrun.datasets.packed import is_packed, unpack
from rlrun.datasets.step_count import StepCounter
from rlrun.datasets.trajectories import DataFacts, without_previous

LOG_PROB: RowSpec = {"log_prob": Field((), torch.float32)}
IMAGE = 3  # axes of a picture
ENDS = ("terminateds", "truncateds", "dones")
LARGEST_CHOICE = 100_000  # more choices than this are numbers of something else
LOOKED_AT = 5_000  # rows that are read before a run, of a set whose spaces are env='s
NORMALIZED_BOUND = 1.0 + 1e-4  # of actions in [-1, 1] that were rounded

COUNTED = (
    "They are counted from the lower bound on, as RLlib counts whole numbers with normalize_actions; if they are as the"
    " environment has them, say data.actions_normalized=false"
)
NOT_COUNTED = (
    "They are read as the environment has them; if they are counted from the lower bound on, leave out"
    " data.actions_normalized=false"
)
DONES = (
    "Its ends are marked by `dones`, which do not say whether a time limit ended the episode. They count as terminated,"
    " except after exactly as many steps as env= allows."
)
NO_NEXT = (
    "It has no new_obs, so that the observation behind the last step of an episode is unknown, and so is that behind a"
    " step whose next one is missing. These steps are left out, unless the episode is terminated there."
)


class Chunk(NamedTuple):
    """Consecutive rows [n, ...] of one policy in a foreign file."""

    where: str  # the file and the place in it
    obs: np.ndarray
    action: np.ndarray
    reward: np.ndarray  # float32
    terminated: np.ndarray
    truncated: np.ndarray
    new_obs: np.ndarray | None = None
    log_prob: np.ndarray | None = None
    episode: list[Any] | None = None  # None: flags alone say where episodes end
    agent: np.ndarray | None = None
    t: np.ndarray | None = None
    policy: str = ""
    only_dones: bool = False


def chunk(columns: Mapping[str, Any], where: str, policy: str = "") -> Chunk:
    """Checks the columns of one batch. Raises UserError that names the column if something does not fit."""
    missing = [name for name in ("obs", "actions", "rewards") if name not in columns]
    if not any(name in columns for name in ENDS):
        missing.append("terminateds or dones")
    if missing:
        raise UserError(f"{where} has no column {' and none named '.join(missing)}")
    count = len(_array(columns["rewards"], "rewards", where))

    def read(name: str, single: bool = False) -> np.ndarray:
        """A column. single: with one number for each row."""
        made = _array(columns[name], name, where)
        if len(made) != count:
            raise UserError(f"{where}: {name} has {len(made)} rows, and rewards have {count}")
        if single and made.ndim != 1:
            raise UserError(f"{where}: {name} has the shape {list(made.shape)}, and one for each row is expected")
        return made

    def optional(name: str, single: bool = False) -> np.ndarray | None:
        return None if columns.get(name) is None else read(name, single)

    obs, new_obs = read("obs"), optional("new_obs")
    if new_obs is not None and new_obs.shape != obs.shape:
        raise UserError(f"{where}: new_obs has the shape {list(new_obs.shape)}, and obs has {list(obs.shape)}")
    ends = {name: read(name, single=True).astype(bool) for name in ENDS if name in columns}
    truncated = ends.get("truncateds", np.zeros(count, dtype=bool))
    terminated = ends.get("terminateds", ends.get("dones", truncated) & ~truncated)
    agent = optional("agent_index", single=True)
    episode = _names(columns, where)
    if episode is not None and len(episode) != count:
        raise UserError(f"{where}: eps_id has {len(episode)} rows, and rewards have {count}")
    return Chunk(
        where,
        obs=obs,
        action=read("actions"),
        reward=read("rewards", single=True).astype(np.float32),
        terminated=terminated,
        truncated=truncated & ~terminated,
        new_obs=new_obs,
        log_prob=_log_prob(optional("action_logp", single=True), optional("action_prob", single=True), where),
        episode=episode,
        agent=None if agent is None else _whole(agent, "agent_index", where),
        t=optional("t", single=True),
        policy=policy,
        only_dones=list(ends) == ["dones"],
    )


def _array(value: Any, name: str, where: str) -> np.ndarray:
    """A column as finite numbers."""
    try:
        made = unpack(value) if is_packed(value) else np.asarray(value)
    except ValueError as error:
        text = str(error)
        reason = text if text.startswith(("holds", "says")) else "holds rows of different shapes"
        raise UserError(f"{where}: {name} {reason}") from None
    except (TypeError, OverflowError, RecursionError, MemoryError) as error:
        raise UserError(f"{where}: {name} holds no numbers ({type(error).__name__})") from None
    if made.dtype.kind not in "biuf":
        raise UserError(f"{where}: {name} holds something else than numbers")
    if made.ndim == 0:
        raise UserError(f"{where}: {name} holds one number, and one for each row is expected")
    if made.dtype.kind == "f" and not np.isfinite(made).all():
        raise UserError(f"{where}: {name} holds a number that is not finite")
    return within_float32(made, name, where)


def within_float32(numbers: np.ndarray, name: str, where: str) -> np.ndarray:
    """The numbers. Raises UserError if one would be infinite as float32, in which rows hold them."""
    if numbers.dtype.kind == "f" and numbers.dtype.itemsize > 4 and numbers.size and np.abs(numbers).max() > 3.4e38:
        raise UserError(f"{where}: {name} holds a number that is too large for 32 bits")
    return numbers


def cast(numbers: np.ndarray, space: Box, name: str, where: str) -> np.ndarray:
    """Observations with the dtype of their space. Raises UserError if it is one of whole numbers and they are others,
    because fractions would be lost without a word."""
    with np.errstate(invalid="ignore"):  # a number that the dtype does not have becomes another one
        made = np.ascontiguousarray(numbers, dtype=space.dtype)
    if space.whole and numbers.dtype != made.dtype and (made != numbers).any():
        raise UserError(f"{where}: {name} holds a number with a fraction or out of range, and {space} is expected")
    return made


def _log_prob(logarithm: np.ndarray | None, probability: np.ndarray | None, where: str) -> np.ndarray | None:
    """The log probability of every action; None if the file does not have it."""
    if logarithm is not None:
        return logarithm.astype(np.float32)
    if probability is None:
        return None
    if (probability < 0).any():  # one above 1 may be a density of continuous actions
        raise UserError(f"{where}: action_prob holds a number below 0")
    with np.errstate(divide="ignore"):
        return np.log(probability.astype(np.float64)).astype(np.float32)


def _names(columns: Mapping[str, Any], where: str) -> list[Any] | None:
    """The name of the episode of every row; None if the file does not have it."""
    value = columns.get("eps_id")
    if value is None:
        return None
    if isinstance(value, list) and all(type(one) in (int, str) for one in value):
        return value  # ids of 64 bits, or names
    if isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.kind in "iuO":
        return value.tolist()
    return _whole(_array(value, "eps_id", where), "eps_id", where).tolist()


def _whole(numbers: np.ndarray, name: str, where: str) -> np.ndarray:
    """Numbers without a fraction as int64."""
    if numbers.dtype.kind == "f" and (numbers != np.floor(numbers)).any():
        raise UserError(f"{where}: {name} holds a number with a fraction")
    return numbers.astype(np.int64)


# Spaces


@dataclass
class Guess:
    """What the rows of a set say about it. Call see() with all of them or, where its spaces are known, with the first
    LOOKED_AT."""

    normalized: bool  # whether actions are in [-1, 1]
    obs: tuple[tuple[int, ...], str] | None = None  # shape and kind of an observation
    action: tuple[tuple[int, ...], str] | None = None
    largest_obs: int = 0
    largest: np.ndarray | None = None  # the largest of every choice
    # Why whole numbers are no choices, by what they are. It only counts if no other rows hold fractions.
    no_choices: dict[str, str] = field(default_factory=dict)
    agents: int = 1
    policies: list[str] = field(default_factory=list)
    only_dones: bool = False
    no_next: bool = False
    log_prob: bool = True
    rows: int = 0
    beyond: int = 0  # rows with an action outside [-1, 1]
    counting: StepCounter = field(default_factory=StepCounter)

    def see(self, rows: Chunk) -> None:
        """Raises UserError if rows differ in shape from those before, or if an agent's number is out of range."""
        if rows.t is not None:
            self.counting.see(rows.t, rows.terminated | rows.truncated, rows.episode)
        self.rows += len(rows.reward)
        beyond = np.abs(rows.action) > NORMALIZED_BOUND
        self.beyond += int(beyond.any(tuple(range(1, beyond.ndim))).sum())
        self.only_dones |= rows.only_dones
        self.no_next |= rows.new_obs is None
        self.log_prob &= rows.log_prob is not None
        if rows.policy not in self.policies:
            self.policies.append(rows.policy)
        if rows.agent is not None and rows.agent.size:
            if rows.agent.min() < 0 or rows.agent.max() >= 10_000:
                raise UserError(f"{rows.where}: agent_index is {int(rows.agent.max())}")
            self.agents = max(self.agents, int(rows.agent.max()) + 1)
        self.obs = self._same(self.obs, rows.obs, "observations", rows.where)
        self.action = self._same(self.action, rows.action, "actions", rows.where)
        if self.obs == ((), "whole") and rows.obs.size:
            self._check_choices(rows.obs, "observations", rows.where)
            self.largest_obs = max(self.largest_obs, int(rows.obs.max()))
        if self.action[1] == "whole" and rows.action.size:
            self._check_choices(rows.action, "actions", rows.where)
            top = rows.action.max(0)
            self.largest = top if self.largest is None else np.maximum(self.largest, top)

    def _check_choices(self, numbers: np.ndarray, what: str, where: str) -> None:
        low, high = int(numbers.min()), int(numbers.max())
        if low < 0 or high > LARGEST_CHOICE:
            self.no_choices.setdefault(
                what,
                f"{where}: {what} are whole numbers {low}..{high}, which are no choices that count from 0; give env=",
            )

    @staticmethod
    def _same(known: tuple | None, numbers: np.ndarray, what: str, where: str) -> tuple[tuple[int, ...], str]:
        kinds = {"b": "whole", "i": "whole", "u": "bytes" if numbers.dtype.itemsize == 1 else "whole", "f": "numbers"}
        found = (numbers.shape[1:], kinds[numbers.dtype.kind])
        if what == "actions" and found[1] == "bytes":
            found = (found[0], "whole")
        if known is None:
            return found
        if known[0] != found[0]:
            raise UserError(f"{where}: {what} have the shape {list(found[0])}, and before they had {list(known[0])}")
        # A list of JSON in which every number happens to be whole
        return known if known[1] == found[1] or known[1] == "numbers" else (known[0], "numbers")

    def facts(self, name: str) -> tuple[EnvSpec, tuple[str, ...]]:
        """The spec of the set, and sentences about it. Raises UserError if it cannot be known."""
        if self.obs is None or self.action is None or not self.rows:
            raise UserError(f"{name} has no rows")
        for what, (_, kind) in (("observations", self.obs), ("actions", self.action)):
            if kind == "whole" and what in self.no_choices:
                raise UserError(self.no_choices[what])
        observation, said = self._observation(), []
        action: Space
        shape, kind = self.action
        if kind == "whole" and shape == ():
            action = Discrete(n=int(self.largest) + 1)  # type: ignore[arg-type]
            said.append(f"Its actions are taken to be {action}, because {action.n - 1} is the largest one in it.")
        elif kind == "whole":
            sizes = tuple(int(top) + 1 for top in np.ravel(self.largest))  # type: ignore[arg-type]
            action = MultiDiscrete(sizes=sizes, starts=(0,) * len(sizes), shape=shape)
            said.append(f"Its actions are taken to be choices of {list(sizes)}, one more than the largest ones in it.")
        elif self.normalized:
            size = int(np.prod(shape, dtype=np.int64))
            action = Box(shape=shape or (1,), dtype="float32", low=(-1.0,) * size, high=(1.0,) * size)
            if not self.beyond:
                said.append("Its actions are taken to lie in [-1, 1], as RLlib writes them.")
        else:
            raise UserError(
                f"{name}: its actions are in the units of their environment, whose bounds are not in the files; give"
                " env="
            )
        if isinstance(observation, Discrete):
            said.append(f"Its observations are taken to be {observation}, from the largest one in it.")
        names = tuple(f"agent_{i}" for i in range(self.agents))
        agents = Agents(groups=(("agents", names),)) if self.agents > 1 else None
        return EnvSpec(name=name, obs={"observation": observation}, action=action, agents=agents), tuple(said)

    def _observation(self) -> Space:
        shape, kind = self.obs  # type: ignore[misc]
        if kind == "whole" and shape == ():
            return Discrete(n=self.largest_obs + 1)
        if kind == "bytes":
            return Box(shape=shape, dtype="uint8", low=(0.0,), high=(255.0,))
        return Box(shape=shape or (1,), dtype="float32", low=(-np.inf,), high=(np.inf,))


def facts_of(guess: Guess, spec: EnvSpec | None, name: str, notes: Sequence[str] = ()) -> DataFacts:
    """The facts of a set, whose spec is env='s where one is given. Raises UserError if they cannot be known."""
    if spec is None:
        spec, said = guess.facts(name)
    else:
        spec = without_previous(spec)
        check_fits(spec, name)
        said = ()
    if guess.beyond and is_normalized(spec.action, guess.normalized):
        said = (*said, _beyond(guess))
    told = [*said, *([DONES] if guess.only_dones else []), *([NO_NEXT] if guess.no_next else []), *notes]
    if guess.no_next and spec.agents is None and len(guess.policies) == 1:
        told += guess.counting.left_out
    policies = tuple(f"RLlib's policy {one}" if one else "a policy of RLlib's" for one in guess.policies)
    return DataFacts(
        spec=spec,
        record=LOG_PROB if guess.log_prob else {},
        policies=policies,
        made_by="RLlib",
        notes=tuple(told),
    )


def is_normalized(space: Space, normalized: bool) -> bool:
    """Whether actions in files are in [-1, 1], where `normalized` says so of the set. RLlib normalises no whole
    numbers: its policies choose among them, and it adds the lower bound to the choice."""
    return normalized and isinstance(space, Box) and space.bounded and not space.whole


def has_units(space: Space) -> bool:
    """Whether actions in files may be something else than the environment's own numbers: parts of [-1, 1], or choices
    that are counted from the lower bound on."""
    return isinstance(space, Box) and space.bounded and (not space.whole or any(space.low))


def _beyond(guess: Guess) -> str:
    return (
        f"{guess.beyond:,} of the {guess.rows:,} actions that were looked at lie outside [-1, 1], and all are taken to"
        " be normalised, as RLlib writes them. A Gaussian policy also draws numbers beyond the bounds; but if the"
        " actions are in the units of their environment, say data.actions_normalized=false and env=."
    )


def check_fits(spec: EnvSpec, name: str) -> None:
    """Raises UserError if RLlib's files cannot hold rows of this environment."""
    if isinstance(spec.observation, Nested) or isinstance(spec.action, Nested):
        raise UserError(
            f"{name}: RLlib flattens the observations and actions of {spec.name}, which has several parts, and they"
            " cannot be told apart again"
        )
    if "action_mask" in spec.obs:
        raise UserError(f"{name}: {spec.name} masks its actions, and RLlib's files hold no masks")
    if spec.joint:
        raise UserError(f"{name}: RLlib's files hold a row for each agent, and here all agents learn together")


def observations(spec: EnvSpec, numbers: np.ndarray, where: str) -> np.ndarray:
    """[n, ...] observations of a file in the form that rows have: stacks of frames [n, stack, ...] are whole. Raises
    UserError if they do not fit."""
    space, shape = spec.observation, numbers.shape[1:]
    if isinstance(space, Box):
        if len(shape) == IMAGE and (shape[2], *shape[:2]) == space.shape != shape:
            numbers = np.moveaxis(numbers, -1, 1)  # RLlib's images have their channels last
        elif shape == () and space.shape == (1,):
            numbers = numbers[:, None]
        elif shape != space.shape:
            raise UserError(f"{where}: obs has the shape {list(shape)}, and {spec.name} has {space}")
        return cast(numbers, space, "obs", where)
    if isinstance(space, Discrete) and shape == (space.n,) and _one_hot(numbers):
        return numbers.argmax(1).astype(np.int64)
    if isinstance(space, MultiDiscrete) and shape == (sum(space.sizes),) and numbers.dtype.kind == "f":
        parts = np.split(numbers, np.cumsum(space.sizes)[:-1], axis=1)
        if all(_one_hot(part) for part in parts):
            return np.stack([part.argmax(1) for part in parts], 1).reshape(-1, *space.shape).astype(np.int64)
    return _choices(space, numbers, "obs", spec.name, where)


def _one_hot(numbers: np.ndarray) -> bool:
    return bool(((numbers == 0) | (numbers == 1)).all() and (numbers.sum(1) == 1).all())


def actions(spec: EnvSpec, numbers: np.ndarray, normalized: bool, where: str) -> np.ndarray:
    """[n, ...] actions of a file in the form that rows have. normalized: whether numbers with bounds are in [-1, 1], or
    counted from the lower bound where they are whole. Raises UserError if they do not fit."""
    space, shape = spec.action, numbers.shape[1:]
    if not isinstance(space, Box):
        return _choices(space, numbers, "actions", spec.name, where)
    if shape == () and space.shape == (1,):
        numbers = numbers[:, None]
    elif shape != space.shape:
        raise UserError(f"{where}: actions have the shape {list(shape)}, and {spec.name} has {space}")
    if is_normalized(space, normalized):
        return numbers.astype(np.float32)
    numbers = numbers.astype(np.float64)
    if space.whole and space.bounded:
        numbers = _as_played(space, numbers, normalized, spec.name, where)
    return space.from_env(numbers)


def _as_played(space: Box, numbers: np.ndarray, counted: bool, name: str, where: str) -> np.ndarray:
    """Whole numbers as the environment got them. counted: whether files count them from the lower bound on. Raises
    UserError if one is outside the bounds or has a fraction."""
    low, high = (np.reshape(bound, space.shape) for bound in (space.low, space.high))
    made = numbers + low if counted else numbers
    if (made < low).any() or (made > high).any() or (made != np.rint(made)).any():
        told = COUNTED if counted else NOT_COUNTED
        raise UserError(
            f"{where}: actions hold {numbers.min():g}..{numbers.max():g}, and {name} has {described(space)}. {told}"
        )
    return made


def outside(space: Any, made: np.ndarray) -> bool:
    """Whether choices, counted from 0, are none of a space's."""
    if isinstance(space, MultiBinary):
        many: Any = 2
    else:
        many = space.n if isinstance(space, Discrete) else np.reshape(space.sizes, space.shape)
    return bool((made < 0).any() or (made >= many).any())


def _choices(space: Any, numbers: np.ndarray, what: str, name: str, where: str) -> np.ndarray:
    shape = () if isinstance(space, Discrete) else space.shape
    if numbers.shape[1:] != shape and numbers.shape[1:] == (*shape, 1):
        numbers = numbers[..., 0]
    if numbers.shape[1:] != shape:
        raise UserError(f"{where}: {what} have the shape {list(numbers.shape[1:])}, and {name} has {space}")
    made = space.from_env(_whole(numbers, what, where))
    if outside(space, made):
        raise UserError(f"{where}: {what} hold {made.min()}..{made.max()}, counted from 0, and {name} has {space}")
    return made
