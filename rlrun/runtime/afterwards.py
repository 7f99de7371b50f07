"""What a run says after the line that tells how it ended: what can be done next."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

from rlrun.config.run import Typed
from rlrun.core.installing import typed_as
from rlrun.core.passwords import masked_values
from rlrun.envs.recorded import RecordedConfig
from rlrun.runtime.advice import ended_rates
from rlrun.runtime.rundir import checkpoints_of


def last_words(config: Typed, path: Path, ending: str, odd: bool = False) -> str:
    """The last lines of a run; the very last one is its directory, for scripts.

    ending: COMPLETED, REACHED (stop.return_mean), STOPPED, INTERRUPTED or FAILED. odd: whether something is wrong
    with the environment."""
    steps = [f"  {what:<19} {command}" for what, command in next_steps(config, path, ending)]
    if odd:
        own = {name: value for name in ("kwargs", "wrappers") if (value := getattr(config.env, name, ()))}
        asked = [f"env.{name}={json.dumps(masked_values(value), default=list)}" for name, value in own.items()]
        command = shlex.join(["check-env", config.env.name, *asked])
        steps.insert(0, f"  {'mend its env first':<19} {typed_as()} {command}")
    return "\n".join([*steps, str(path)])


def own_env_failed(config: Typed, status: str, reason: str) -> bool:
    """Whether an environment of the user's own ended the run."""
    name = config.env.name
    return status == "FAILED" and ":" in name and f"{name}, env" in reason  # EnvError begins so


def next_steps(config: Typed, path: Path, ending: str) -> list[tuple[str, str]]:
    """What can be done with the run now, as (what, command)."""
    saved = checkpoints_of(path).names()
    if not saved:
        return []
    rlrun, run = typed_as(), shlex.quote(str(path))
    if ending in ("INTERRUPTED", "FAILED"):
        return [("go on with it", f"{rlrun} resume {run}")]
    asked, played = config.run.env_steps, int(saved[-1])  # a run ends with an update, so that it may play more
    starts = getattr(config.algo, "learning_starts", None) or 0  # a shorter run has learnt nothing, and would not again
    further = 2 * max(asked if played < 2 * asked else played, starts)
    more = "stop.return_mean=null" if ending == "REACHED" else f"env_steps={further}"
    shown = [] if isinstance(config.env, RecordedConfig) else [("see it play", f"{rlrun} watch {run}")]
    found = [*shown, ("one page about it", f"{rlrun} report {run}")]
    if ending != "STOPPED":  # where time or patience has run out, it would stop again
        # A learning rate whose schedule has come to 0 would stay there, so that a new run begins with these weights.
        ended = ended_rates(config.algo, played)
        again = f"train --from-run {run} init={run}" if ended else f"resume {run} {more}"
        found.append(("train it further", f"{rlrun} {again}"))
    return found
