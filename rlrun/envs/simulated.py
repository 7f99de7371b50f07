"""Puts the state of an environment's simulator beside its observations, for algorithms that search (core/games.py).

rlrun's own games have simulators of their own. A Gymnasium environment of the user's with get_state() and set_state(),
as RLlib's AlphaZero asks for, is stepped in a copy instead, one state at a time."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from rlrun.core.env import Rows, Step, VectorEnv, map_rows
from rlrun.core.errors import FAILURES, UserError, told
from rlrun.core.games import BEHIND, STATE, GameSpec, Moved, Simulator, random_legal, random_returns
from rlrun.core.specs import Box, Discrete, EnvSpec
from rlrun.envs import gym
from rlrun.envs.agent_games import AgentsConfig, TurnsGame, make_game
from rlrun.envs.agents import AgentsEnv
from rlrun.envs.gym import GymConfig
from rlrun.envs.gym_env import GymEnv
from rlrun.envs.gym_spaces import to_rows

MAKER = f"{__name__}:simulator_of"
SIMULATOR = ("players", "actions", "size", "dtype", "start", "observe", "step", "paid", "known", "forget", "symmetries")
NEEDS = (
    "algorithms that search try moves before they make one, which takes one of rlrun's games (CartPoleSparse-v0,"
    " Knapsack-v0, BinPacking-v0, TicTacToe-v0, ConnectFour-v0), a game for two of yours (a BoardEnv with a simulator),"
    " or a Gymnasium environment with get_state() and set_state(state)"
)


def with_game(spec: EnvSpec, cfg: Any) -> EnvSpec:
    """Adds the simulator and its state to an environment. Raises UserError if it has none, or if a state does not
    restore."""
    _check_options(spec, cfg)
    game = simulator_of(cfg)
    if not isinstance(spec.action, Discrete) or spec.action.n != game.actions:
        raise UserError(f"algorithms that search choose one of several actions; {spec.name} has {spec.action}")
    _check_rewards(game, spec.name)
    if not isinstance(game, CopiedGame):
        _check_pure(game, spec.name)
    copies = isinstance(game, CopiedGame)
    if isinstance(game, CopiedGame):
        check_restores(game, cfg.name)
    state = Box(shape=(game.size + BEHIND,), dtype=game.dtype, low=(-np.inf,), high=(np.inf,))
    made = GameSpec(MAKER, cfg, game.players, copies)
    said: tuple[str, ...] = ()
    if copies:
        said = (f"the search steps copies of {cfg.name}, one at a time; a simulator that steps many would be faster",)
    return replace(spec, obs={**spec.obs, STATE: state}, game=made, notes=(*spec.notes, *said))


def _check_options(spec: EnvSpec, cfg: Any) -> None:
    """Raises UserError for options with which the simulator would show something else than the environment."""
    if not isinstance(cfg, GymConfig | AgentsConfig):
        raise UserError(f"env={cfg.name} has no simulator: {NEEDS}")
    changed = {"env.stack": cfg.stack > 1}
    if isinstance(cfg, GymConfig):
        changed |= {
            "env.wrappers": bool(cfg.wrappers),
            "env.observation": cfg.draws,
            "env.action_repeat": cfg.action_repeat > 1,
        }
    else:
        changed |= {"env.agent_id": cfg.agent_id}
        if cfg.max_episode_steps is not None:
            raise UserError(
                "env.max_episode_steps: the simulator of a game of several players does not know this limit, so that a"
                " search would look beyond it; leave it null"
            )
    for option in (name for name, is_so in changed.items() if is_so):
        raise UserError(f"{option} changes what is seen, and a search sees {spec.name} itself: leave it at its default")


def _check_rewards(game: Simulator, name: str) -> None:
    """Raises UserError for a simulator whose rewards a search cannot hold."""
    if game.players == 1:
        if not np.issubdtype(np.dtype(game.dtype), np.floating):
            raise UserError(
                f"the simulator of {name} has states of {game.dtype}, which cannot hold the rewards of an episode that"
                " stand beside them: give it a dtype of floating-point numbers"
            )
        return
    most = float(np.abs(random_returns(game, np.random.default_rng(0), 64, 1000)).max())
    if most > 1.0:
        raise UserError(
            f"a game of {name} for two pays {most:g}, and values of games for two lie between -1 and 1: divide its"
            " rewards by the most that a game pays"
        )


def _check_pure(game: Simulator, name: str) -> None:
    """Raises UserError unless a step depends on its arguments alone and leaves them as they are, and two players take
    turns."""
    rng = np.random.default_rng(0)
    state = game.start(rng, 16)
    for _ in range(8 if game.players == 1 else 1000):
        moves = random_legal(game.observe(state), game.actions, rng)
        before = state.copy()
        made, again = game.step(state, moves), game.step(state, moves)
        if not np.array_equal(state, before, equal_nan=True):
            raise UserError(f"the simulator of {name} changes the states that step() is given: let it make new ones")
        if not all(np.array_equal(a, b, equal_nan=True) for a, b in zip(made, again, strict=True)):
            raise UserError(
                f"the simulator of {name} makes other states of the same states and actions: a search tries moves again"
                " and again, so that step() may draw no random numbers (put what it needs of them into the state)"
            )
        if game.players == 2 and (made.state[~made.over, -1] == state[~made.over, -1]).any():
            raise UserError(
                f"in the simulator of {name} a player moves twice in a row (the last number of a state says who moves),"
                " and a search takes the value of a move for that of the other player: let players take turns, and"
                " give one that must pass a move that does nothing"
            )
        state = made.state[~made.over]
        if not len(state):
            return


def simulator_of(cfg: Any, limited: bool = True) -> Simulator:
    """Makes the simulator of an environment. limited: as in GameSpec.make. Raises UserError if it has none."""
    if isinstance(cfg, AgentsConfig):
        game = make_game(cfg)
        try:
            simulator = getattr(getattr(game, "env", None), "simulator", None)
            if not isinstance(game, TurnsGame) or simulator is None:
                raise UserError(f"env={cfg.name} has no simulator: {NEEDS}")
            return simulator
        finally:
            game.close()
    env = gym.make_one(cfg)
    if (wrapper := gym.wrapped_by(env)) is not None:
        env.close()
        raise UserError(
            f"env={cfg.name} is made inside of {wrapper}, and a search steps what is inside of wrappers, which may show"
            " and pay something else: let the environment's own class do what the wrapper does"
        )
    own: Any = getattr(env.unwrapped, "simulator", None)
    if _is_simulator(own):
        env.close()
        limit = gym.make_spec(cfg).max_episode_steps
        if limit is not None:
            raise UserError(
                f"{cfg.name} has a time limit of {limit} steps (env.max_episode_steps, or its registration), and its"
                " simulator does not know this limit, so that a search would look beyond it: give the environment a"
                " limit of its own (env.kwargs.max_steps=N for CartPoleSparse-v0)"
            )
        return own
    missing = [name for name in ("get_state", "set_state") if not callable(getattr(env.unwrapped, name, None))]
    if missing:
        env.close()
        raise UserError(f"env={cfg.name} has no {' and no '.join(missing)}: {NEEDS}")
    return CopiedGame(cfg, env, limited)


def _is_simulator(thing: Any) -> bool:
    """Whether it has what core/games.py asks of a simulator; a physics engine of the same name has not."""
    return thing is not None and all(hasattr(thing, name) for name in SIMULATOR)


# -- environments with get_state and set_state -------------------------------------------------------------------------


class HeldState(NamedTuple):
    """A state of an environment, which rows name by a number."""

    state: Any  # what get_state() returned; None at an end
    rows: Rows  # what is seen there, leaves [1, ...]
    paid: float  # rewards of the episode before it
    steps: int  # of the episode before it, because a time limit counts them outside of the environment


_KEPT: dict[int, HeldState] = {}  # of this process: environments and the searches that begin at them share it
_numbers = itertools.count(1)


def keep(kept: HeldState) -> int:
    number = next(_numbers)
    _KEPT[number] = kept
    return number


class CopiedGame:
    """Steps one copy of an environment from state to state. States are numbers [B, 1] of what `keep` holds."""

    players, size, dtype = 1, 1, "float64"  # which holds whole numbers up to 2 ** 53

    def __init__(self, cfg: GymConfig, env: Any, limited: bool):
        self.env, self.inside = env, env.unwrapped
        self.spec = gym.make_spec(cfg)
        self.limited, self.limit = limited, self.spec.max_episode_steps if limited else None
        self.actions = self.spec.action.n if isinstance(self.spec.action, Discrete) else 0
        self.name = cfg.name
        self.made: list[int] = []
        self.env.reset(seed=0)  # many environments cannot be stepped before, whatever set_state() does

    def _rows(self, obs: Any) -> Rows:
        """One observation of the environment -> leaves [1, ...]."""
        return map_rows(to_rows(self.spec, _batched(obs)), np.array)

    def _keep(self, kept: HeldState) -> int:
        self.made.append(keep(kept))
        return self.made[-1]

    def start(self, rng: np.random.Generator, count: int) -> np.ndarray:
        numbers = []
        for seed in rng.integers(2**31, size=count).tolist():
            obs, _ = self.env.reset(seed=seed)
            numbers.append(self._keep(HeldState(self.inside.get_state(), self._rows(obs), 0.0, 0)))
        return np.array(numbers, dtype=np.float64)[:, None]

    def observe(self, state: np.ndarray) -> Rows:
        rows = [_KEPT[number].rows for number in state[:, 0].tolist()]
        return _joined(rows)

    def step(self, state: np.ndarray, action: np.ndarray) -> Moved:
        after, reward, over = [], np.zeros(len(state), dtype=np.float32), np.zeros(len(state), dtype=bool)
        start = self.spec.action.start if isinstance(self.spec.action, Discrete) else 0
        for i, (number, move) in enumerate(zip(state[:, 0].tolist(), action.tolist(), strict=True)):
            kept = _KEPT[number]
            self.inside.set_state(kept.state)
            obs, reward[i], terminated, truncated, _ = self.inside.step(move + start)
            steps = kept.steps + 1
            # Without limits, a search looks beyond them, as the values do that are learnt then.
            cut = truncated or (self.limit is not None and steps >= self.limit)
            over[i] = terminated or (self.limited and cut)
            held = None if over[i] else self.inside.get_state()
            after.append(self._keep(HeldState(held, self._rows(obs), kept.paid + float(reward[i]), steps)))
        return Moved(np.array(after, dtype=np.float64)[:, None], reward, over)

    def paid(self, state: np.ndarray) -> np.ndarray:
        return np.array([_KEPT[number].paid for number in state[:, 0].tolist()], dtype=np.float32)

    def known(self, state: np.ndarray) -> np.ndarray:
        return np.array([number in _KEPT and _KEPT[number].state is not None for number in state[:, 0].tolist()])

    def forget(self) -> None:
        for number in self.made:
            _KEPT.pop(number, None)
        self.made.clear()

    def symmetries(self) -> None:
        return None


def _batched(obs: Any) -> Any:
    """One observation as a batch of one."""
    if isinstance(obs, dict):
        return {key: _batched(part) for key, part in obs.items()}
    return tuple(_batched(part) for part in obs) if isinstance(obs, tuple) else np.asarray(obs)[None]


def _joined(rows: list[Rows]) -> Rows:
    return {
        name: _joined([one[name] for one in rows])
        if isinstance(part, dict)
        else np.concatenate([r[name] for r in rows])
        for name, part in rows[0].items()
    }


def check_restores(game: CopiedGame, name: str) -> None:
    """Raises UserError unless an episode goes on from a restored state as it did before."""
    try:
        for seed in range(3):
            rng = np.random.default_rng(seed)
            state = game.start(rng, 1)
            moves: list[np.ndarray] = []
            for _ in range(4):  # somewhere behind the beginning
                legal = _legal(game, state, rng)
                played = game.step(state, legal)
                if played.over[0]:
                    break
                state = played.state
            first = _path(game, state, rng, moves)
            again = _path(game, state, rng, moves)
            if first != again:
                raise UserError(
                    f"env={name}: set_state() does not restore what get_state() returned: the same actions then led to"
                    " other observations, rewards or ends (are states copies, with the random generator among them?)"
                )
    except UserError:
        raise
    except FAILURES as error:  # the user's own
        raise UserError(f"env={name}: get_state() and set_state() fail: {told(error, __file__)}") from None
    finally:
        game.forget()


def _legal(game: CopiedGame, state: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    rows = game.observe(state)
    weight = rng.random((1, game.actions))
    return (weight * (rows["action_mask"] != 0) if "action_mask" in rows else weight).argmax(1)


def _path(game: CopiedGame, state: np.ndarray, rng: np.random.Generator, moves: list[np.ndarray]) -> list[Any]:
    """What a few moves lead to; those of `moves`, to which missing ones are added."""
    found: list[Any] = []
    for number in range(5):
        if number == len(moves):
            moves.append(_legal(game, state, rng))
        state, reward, over = game.step(state, moves[number])
        seen = []
        map_rows(game.observe(state), lambda part: seen.append(part.tobytes()))  # noqa: B023
        found += [seen, reward.tolist(), over.tolist()]
        if over[0]:
            break
    return found


class StatesPlayed:
    """The states that policies search from, in one or more episodes that the user's own loop plays."""

    def __init__(self, spec: EnvSpec):
        assert spec.game is not None
        self.game, self.name = spec.game, spec.name
        self.reset()

    def reset(self) -> None:
        """Forgets the episodes that were being played."""
        self.paid: np.ndarray | None = None
        self.steps: np.ndarray | None = None

    def _alone(self, envs: Any, count: int) -> list[Any]:
        given = list(envs) if isinstance(envs, list | tuple) else [envs]
        if envs is None or len(given) != count:
            raise ValueError(
                f"this policy tries moves of {self.name} before it makes one: act(obs, env=env), with the environment"
                f" that showed the observation, or a list of {count} for {count} observations"
            )
        return [env.unwrapped for env in given]

    def rows(self, envs: Any, seen: Rows, first: np.ndarray, reward: Any) -> np.ndarray:
        """Returns game_state [B, S + 2] of B environments with one player, after `reward` [B] for the last actions.
        Raises ValueError if something is missing. The rows are forgotten by forget()."""
        inside = self._alone(envs, len(first))
        if self.paid is None or self.steps is None or len(self.paid) != len(first):
            self.paid, self.steps = np.zeros(len(first)), np.zeros(len(first), dtype=np.int64)
        elif not first.all() and reward is None and self.game.copies:
            raise ValueError("a search counts what an episode has paid: act(obs, reward=reward, env=env)")
        else:
            last = 0.0 if reward is None else np.asarray(reward, dtype=np.float64).reshape(len(first))
            self.paid, self.steps = np.where(first, 0.0, self.paid + last), np.where(first, 0, self.steps + 1)
        made = []
        for i, env in enumerate(inside):
            if hasattr(env, "game_state"):
                state = env.game_state
            else:
                one = map_rows(seen, lambda part, i=i: np.array(part[i : i + 1]))  # type: ignore[misc]
                state = [keep(HeldState(env.get_state(), one, float(self.paid[i]), int(self.steps[i])))]
            made.append(np.concatenate([state, [self.paid[i], 1.0]]))
        return np.stack(made)

    def forget(self, rows: np.ndarray) -> None:
        if self.game.copies:
            for number in rows[:, 0].tolist():
                _KEPT.pop(number, None)

    def rows_of_two(self, env: Any, names: list[str], asked: Any) -> np.ndarray:
        """Returns game_state [2, S + 2] of a game for two, of whom `asked` are to act. Raises ValueError if the
        environment is missing, or if it is not their turn."""
        (inside,) = self._alone(env, 1)
        for name in asked:
            if name != inside.agent_selection:
                raise ValueError(f"it is the turn of {inside.agent_selection}, and not of {name}")
        mine = [[0.0, float(name in asked)] for name in names]
        return np.stack([np.concatenate([inside.game_state, own]) for own in mine])


# -- beside the observations -------------------------------------------------------------------------------------------


class WithGame:
    """Adds game_state to the rows of an environment."""

    def __init__(self, env: VectorEnv, spec: EnvSpec):
        assert spec.game is not None or STATE in spec.obs
        self.env, self.spec, self.count = env, spec, env.count
        space = spec.obs[STATE]
        self.rows = np.zeros((env.count, *space.shape), dtype=space.dtype)
        self.paid, self.steps = np.zeros(env.count), np.zeros(env.count, dtype=np.int64)
        self.held: dict[int, int] = {}  # of environments that are copied: the number of the state that is kept of each

    def _with(self, obs: Rows) -> Rows:
        self.rows[:] = 0
        if isinstance(self.env, AgentsEnv):
            many = len(self.env.names)
            for number, game in enumerate(self.env.games):
                if not self.env.ended[number]:
                    columns = slice(number * many, (number + 1) * many)
                    made: Any = game.env
                    self.rows[columns, :-BEHIND] = made.game_state
                    self.rows[number * many + self.env.index[game.deciding[0]], -1] = 1
            return {**obs, STATE: self.rows}
        assert isinstance(self.env, GymEnv)
        for number, env in enumerate(self.env.env.envs):
            self._one(number, env.unwrapped, obs)
        return {**obs, STATE: self.rows}

    def _one(self, number: int, env: Any, obs: Rows) -> None:
        assert isinstance(self.env, GymEnv)
        going = not self.env.ended[number]
        if hasattr(env, "game_state"):
            self.rows[number, :-BEHIND] = env.game_state
        elif going:
            seen = map_rows(obs, lambda part: np.array(part[number : number + 1]))
            kept = HeldState(env.get_state(), seen, float(self.paid[number]), int(self.steps[number]))
            self.rows[number, 0] = self._replace(number, kept)
        self.rows[number, -BEHIND:] = self.paid[number], going

    def _replace(self, number: int, kept: HeldState) -> int:
        """Keeps an environment's state in place of the one before it."""
        _KEPT.pop(self.held.get(number, 0), None)
        self.held[number] = keep(kept)
        return self.held[number]

    def reset(self, generation: int) -> Rows:
        self.paid[:], self.steps[:] = 0.0, 0
        return self._with(self.env.reset(generation))

    def step(self, action: Any) -> Step:
        step = self.env.step(action)
        if step.reward.ndim == 1:
            self.paid = np.where(step.is_first, 0.0, self.paid + step.reward)
            self.steps = np.where(step.is_first, 0, self.steps + 1)
        return step._replace(obs=self._with(step.obs))

    def close(self) -> None:
        for number in self.held.values():
            _KEPT.pop(number, None)
        self.env.close()
