"""What an environment's own state() says of all agents together, for mixers and central critics."""

from __future__ import annotations

import numpy as np

from rlrun.core.errors import UserError, told
from rlrun.envs.agent_games import AgentsConfig, ParallelGame, TupleGame, make_game


def state_size(cfg: AgentsConfig) -> int | None:
    """The number of numbers in the environment's own state; None if it has none. Raises UserError if state() fails."""
    game = make_game(cfg)
    try:
        game.reset(0)
        try:
            seen = state_of(game)
        except Exception as error:  # the user's own
            raise UserError(f"env={cfg.name} fails in state: {told(error, __file__)}") from error
        return None if seen is None else seen.size
    finally:
        game.close()


def state_of(game: ParallelGame | TupleGame) -> np.ndarray | None:
    """The environment's own state, flat; None if it has none (that of PettingZoo's classic games is not implemented).
    Raises whatever state() raises."""
    inside = getattr(game.env, "unwrapped", game.env)
    # Gymnasium's wrappers hide the methods of what they wrap, and PettingZoo's pass them on.
    state = getattr(inside if isinstance(game, TupleGame) else game.env, "state", None)
    # PettingZoo's rps_v2 keeps data under this name, which its wrappers would call.
    if not callable(state) or not callable(getattr(inside, "state", state)):
        return None
    try:
        return np.asarray(state(), dtype=np.float32).reshape(-1)
    except NotImplementedError:
        return None
    except AttributeError as error:
        if error.name == "state":  # a wrapper asked an environment that has none
            return None
        raise
