"""Small games with several agents, which no package has, with PettingZoo's parallel interface."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

from rlrun.core.plugins import import_named
from rlrun.envs.boards import connect_four, tic_tac_toe


class Together:
    """A game whose agents all act at every step. Subclasses implement _reset and _step over lists in the agents'
    order."""

    def __init__(self, agents: Sequence[str], observation: gymnasium.Space, action: gymnasium.Space):
        self.metadata: dict[str, Any] = {"render_modes": []}
        self.possible_agents: list[str] = list(agents)
        self.agents: list[str] = []  # those that are in the game
        self._observation, self._action = observation, action
        self.rng = np.random.default_rng()

    @property
    def unwrapped(self) -> Together:
        return self

    def observation_space(self, agent: str) -> gymnasium.Space:
        return self._observation

    def action_space(self, agent: str) -> gymnasium.Space:
        return self._action

    def reset(self, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.agents = list(self.possible_agents)
        return self._each(self._reset(seed)), self._each([{} for _ in self.agents])

    def step(self, actions: dict[str, Any]) -> tuple[dict, dict, dict, dict, dict]:
        there = list(self.agents)
        obs, reward, terminated, truncated = self._step([actions[agent] for agent in there])
        self.agents = [a for a, t, u in zip(there, terminated, truncated, strict=True) if not (t or u)]
        parts: tuple[Sequence[Any], ...] = (obs, reward, terminated, truncated, [{} for _ in there])
        made = tuple(dict(zip(there, values, strict=True)) for values in parts)
        return made  # type: ignore[return-value]

    def _each(self, values: Sequence[Any]) -> dict[str, Any]:
        return dict(zip(self.agents, values, strict=True))

    def _reset(self, seed: int | None) -> Sequence[Any]:
        raise NotImplementedError

    def _step(self, actions: Sequence[Any]) -> tuple[Sequence[Any], Sequence[float], Sequence[bool], Sequence[bool]]:
        """Returns observations, rewards, terminations and truncations of the agents that acted."""
        raise NotImplementedError

    def render(self) -> Any:
        return None

    def close(self) -> None: ...


class TwoStep(Together):
    """The two-step game (Rashid et al. 2018, arXiv:1803.11485, section 5 and appendix B), for two agents.

    In the first step agent_0 alone chooses the second state. There both are paid 7 (state 2A), or what the table of
    state 2B says: 0, 1, 1 and 8. The observation is one-hot: the state 1, 2A or 2B. Both agents are paid half, so that
    the return is the paper's."""

    PAYS = (((7, 7), (7, 7)), ((0, 1), (1, 8)))

    def __init__(self) -> None:
        super().__init__(["agent_0", "agent_1"], Box(0, 1, (3,), np.float32), Discrete(2))

    def _seen(self) -> list[np.ndarray]:
        return [np.eye(3, dtype=np.float32)[self.place] for _ in range(2)]

    def _reset(self, seed: int | None) -> list[np.ndarray]:
        self.place = 0
        return self._seen()

    def _step(self, actions: Sequence[Any]) -> tuple:
        first, second = map(int, actions)
        if self.place == 0:
            self.place = 1 + first
            return self._seen(), [0.0, 0.0], [False, False], [False, False]
        paid = self.PAYS[self.place - 1][first][second] / 2
        return self._seen(), [paid, paid], [True, True], [False, False]

    def state(self) -> np.ndarray:
        """One-hot: the state 1, 2A or 2B."""
        return self._seen()[0]


class Matrix(Together):
    """A game of two agents that both get `payoff[a][b]`, `rounds` times. The observation is the number of the round,
    divided by the number of rounds.

    Payoffs by name: climbing and penalty (Claus and Boutilier 1998) and qtran (Son et al. 2019, arXiv:1905.05408)."""

    KNOWN: ClassVar[dict[str, tuple]] = {
        "climbing": ((11, -30, 0), (-30, 7, 0), (0, 6, 5)),
        "penalty": ((-100, 0, 10), (0, 2, 0), (10, 0, -100)),
        "qtran": ((8, -12, -12), (-12, 0, 0), (-12, 0, 0)),
    }

    def __init__(self, payoff: str | Sequence[Sequence[float]] = "climbing", rounds: int = 25) -> None:
        if isinstance(payoff, str) and payoff not in self.KNOWN:
            raise ValueError(f"payoff is one of {', '.join(self.KNOWN)} or a table, not {payoff!r}")
        self.table = np.asarray(self.KNOWN[payoff] if isinstance(payoff, str) else payoff, dtype=np.float64)
        if self.table.ndim != 2 or self.table.shape[0] != self.table.shape[1] or rounds < 1:
            raise ValueError("payoff is a square table, and rounds is at least 1")
        self.rounds = rounds
        super().__init__(["agent_0", "agent_1"], Box(0, 1, (1,), np.float32), Discrete(len(self.table)))

    def _seen(self) -> list[np.ndarray]:
        return [np.array([self.round / self.rounds], dtype=np.float32) for _ in range(2)]

    def _reset(self, seed: int | None) -> list[np.ndarray]:
        self.round = 0
        return self._seen()

    def _step(self, actions: Sequence[Any]) -> tuple:
        self.round += 1
        paid = float(self.table[int(actions[0]), int(actions[1])]) / 2
        over = self.round >= self.rounds
        return self._seen(), [paid, paid], [over, over], [False, False]

    def state(self) -> np.ndarray:
        return self._seen()[0]


class RockPaperScissors(Together):
    """Rock (0), paper (1), scissors (2), `rounds` times. The winner of a round is paid 1 and the loser -1. The
    observation is one-hot: the other player's last move, or none of them."""

    def __init__(self, rounds: int = 10) -> None:
        if rounds < 1:
            raise ValueError("rounds is at least 1")
        self.rounds = rounds
        super().__init__(["player_0", "player_1"], Box(0, 1, (4,), np.float32), Discrete(3))

    def _seen(self) -> list[np.ndarray]:
        return [np.eye(4, dtype=np.float32)[move] for move in reversed(self.last)]

    def _reset(self, seed: int | None) -> list[np.ndarray]:
        self.round, self.last = 0, [3, 3]
        return self._seen()

    def _step(self, actions: Sequence[Any]) -> tuple:
        first, second = self.last = [int(action) for action in actions]
        self.round += 1
        paid = {0: 0.0, 1: 1.0, 2: -1.0}[(first - second) % 3]
        over = self.round >= self.rounds
        return self._seen(), [paid, -paid], [over, over], [False, False]


class Several(Together):
    """`num_agents` copies of a Gymnasium environment, one for each agent, that do not meet (RLlib's MultiAgentCartPole
    and MultiAgentPendulum). An agent leaves when its own episode ends, and the game is over when all have left."""

    def __init__(self, name: str, num_agents: int = 2, **kwargs: Any) -> None:
        if num_agents < 1:
            raise ValueError("num_agents is at least 1")
        module, _, id_only = name.rpartition(":")
        if module:  # gymnasium.make would import it, whoever wrote the name
            import_named(module, f"env.kwargs.name={name}")
        self.copies = [gymnasium.make(id_only, **kwargs) for _ in range(num_agents)]
        self.number = {f"agent_{i}": copy for i, copy in enumerate(self.copies)}
        super().__init__(list(self.number), self.copies[0].observation_space, self.copies[0].action_space)
        self.metadata = self.copies[0].metadata

    def _reset(self, seed: int | None) -> list[Any]:
        seeds = [None] * len(self.copies) if seed is None else [seed + i for i in range(len(self.copies))]
        return [copy.reset(seed=one)[0] for copy, one in zip(self.copies, seeds, strict=True)]

    def _step(self, actions: Sequence[Any]) -> tuple:
        told = [self.number[agent].step(action) for agent, action in zip(self.agents, actions, strict=True)]
        obs, reward, terminated, truncated, _ = zip(*told, strict=True)
        return obs, [float(r) for r in reward], terminated, truncated

    def state(self) -> np.ndarray:
        raise NotImplementedError

    def render(self) -> np.ndarray | None:
        """The pictures of all copies side by side [H, N * W, 3]; None where they draw none."""
        pictures: list[Any] = [copy.render() for copy in self.copies]
        return np.concatenate(pictures, 1) if isinstance(pictures[0], np.ndarray) else None

    def close(self) -> None:
        for copy in self.copies:
            copy.close()


def _several(name: str) -> Callable[..., Several]:
    def make(num_agents: int = 2, **kwargs: Any) -> Several:
        return Several(name, num_agents, **kwargs)

    return make


GAMES: dict[str, Callable[..., Any]] = {
    "TwoStepGame-v0": TwoStep,
    "MatrixGame-v0": Matrix,
    "RockPaperScissors-v0": RockPaperScissors,
    "MultiAgentCartPole-v0": _several("CartPole-v1"),
    "MultiAgentPendulum-v0": _several("Pendulum-v1"),
    "TicTacToe-v0": tic_tac_toe,
    "ConnectFour-v0": connect_four,
}
