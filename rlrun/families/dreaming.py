"""What algorithms that learn in dreams ask of the data flow."""

from __future__ import annotations

from typing import Any

from rlrun.core.algorithm import FromReplay, Needs


def needs_of_sequences(
    cfg: Any, rows: int, rows_learnt: int, actions: tuple[str, ...], new_first: bool = False, core_first: int = 0
) -> Needs:
    """Batches of cfg.batch_size sequences that begin at any row, also at an end, with all observations. Recurrent state
    is stored at every row.

    Args: cfg, an algorithm's options; rows of a sequence, of which rows_learnt count for cfg.train_ratio; actions, the
    kinds of action space; new_first, see FromReplay; core_first, see Needs."""
    sequences = FromReplay(
        fragment_length=cfg.fragment_length,
        num_envs=cfg.num_envs,
        learning_starts=cfg.learning_starts,
        ratio=cfg.train_ratio,
        rows_from=rows,
        rows_learnt=rows_learnt,
        obs="all",
        sequences=True,
        new_first=new_first,
        priorities=False,
    )
    return Needs(
        rows=rows,
        columns=cfg.batch_size,
        core_every=1,
        core_first=core_first,
        actions=actions,
        low_precision=True,
        replay=sequences,
    )
