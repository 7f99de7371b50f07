"""RLlib's option names and ours, as data: rlrun/data/rllib/<algo>.yaml beside common.yaml."""

from __future__ import annotations

from typing import Any

import yaml

from rlrun.paths import package


def option_map(algo: str) -> list[dict[str, Any]]:
    """Rows {rllib, rlrun, why}: rlrun is None where there is no counterpart, and why then says the reason. Options that the algorithm does not have
    are left out by their own table's row."""
    folder = package() / "data" / "rllib"
    own, common = (yaml.safe_load(path.read_text()) if path.is_file() else [] for path in (folder / f"{algo}.yaml", folder / "common.yaml"))
    named = {row["rllib"] for row in own}
    return own + [row for row in common if row["rllib"] not in named]
