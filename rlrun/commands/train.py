"""rlrun train: Hydra composes the config, the session runs it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlrun.cli import compose
from rlrun.core.errors import UserError


def main(words: list[str]) -> int:
    return compose(words, train)


def train(cfg: Any, choices: dict[str, Any]) -> int:
    from rlrun.config import plain, save_yaml
    from rlrun.rundir import RunDir, default_path
    from rlrun.wiring import preflight, type_config

    values = plain(cfg)
    check_tuned(choices, values)
    print(f"rlrun train: {values['algo']['name']} on {values['env']['name']}, seed {values['seed']}", flush=True)
    config = type_config(values)
    path = Path(config.run.run_dir) if config.run.run_dir else default_path(config.run.runs_root, config.algo.name, config.env.name, config.run.seed)
    values["run_dir"] = str(path)
    values["runs_root"] = str(Path(config.run.runs_root).resolve())  # a run that is resumed elsewhere keeps its MLflow store
    wiring = preflight(type_config(values))
    directory = RunDir.create(path)
    save_yaml(values, path / "config.yaml")
    from rlrun import session

    return session.run(wiring, values, directory, restored=None)


def check_tuned(choices: dict[str, Any], values: dict[str, Any]) -> None:
    """A tuned file belongs to its folder's algorithm; for another env it is only a start."""
    tuned = choices.get("tuned")
    if not tuned:
        return
    folder = tuned.split("/")[0]
    if folder != values["algo"]["name"]:
        raise UserError(f"tuned={tuned} is for algo={folder}, not algo={values['algo']['name']}: leave one of them out")
    import yaml

    from rlrun.paths import root

    for line in yaml.safe_load((root() / "tuned" / f"{tuned}.yaml").read_text())["defaults"]:
        if isinstance(line, dict) and line.get("override /env", choices.get("env")) != choices.get("env"):
            print(f"  note: tuned={tuned} was made for env={line['override /env']}, not env={choices.get('env')}", flush=True)
