"""One of RLlib's experiments while translate.py, q_learning.py and continuous.py translate its options to rlrun's."""

from __future__ import annotations

from functools import cache
from typing import Any

from rlrun.rllib.option_map import option_map
from rlrun.rllib.yaml_files import How, Imported, Line, defaults, flattened, flow, options_of

RUNS = {
    "PG": "pg",
    "A2C": "a2c",
    "A3C": "a3c",
    "PPO": "ppo",
    "DDPPO": "ddppo",
    "APPO": "appo",
    "IMPALA": "impala",
    "DQN": "dqn",
    "SimpleQ": "dqn",
    "SIMPLEQ": "dqn",
    "APEX": "apex",
    "APEX_DQN": "apex",
    "R2D2": "r2d2",
    "RAINBOW": "rainbow",
    "DDPG": "ddpg",
    "TD3": "td3",
    "SAC": "sac",
    "APEX_DDPG": "apex_ddpg",
    "ES": "es",
    "ARS": "ars",
}
DEFAULTS_OF = {"SIMPLEQ": "SimpleQ", "APEX_DQN": "APEX", "RAINBOW": "DQN"}


@cache
def _table(algo: str) -> dict[str, dict[str, Any]]:
    return {row["rllib"]: row for row in option_map(algo)}


class Translation:
    """The options of an experiment and their translation.

    Every option is taken once. Options that are left at the end were read by no part of the translation.
    """

    atari: bool  # whether the environment is an Atari game

    def __init__(self, name: str, run: str, config: dict, stop: dict, passes: dict, source: str):
        self.run, self.stop, self.passes, self.source = DEFAULTS_OF.get(run, run), stop, passes, source
        self.given = flattened(config)
        self.defaults = flattened(defaults(self.run, "sample_batch_size" in config))
        self.algo = self._algorithm(RUNS[run])
        self.table = _table(self.algo)
        self.inner = "algo.inner" if "apex" in self.algo else "algo"
        self.old = "sample_batch_size" in config  # RLlib 0.5 to 0.8.2
        self.made = Imported(name, self.algo, "", comment=source)
        self.taken: set[str] = set()

    def _algorithm(self, algo: str) -> str:
        if algo == "dqn" and float(self.get("num_atoms", default=1)) > 1:
            return "rainbow" if self.get("noisy") and self.get("dueling") and self.get("double_q") else "c51"
        return algo

    def get(self, *keys: str, default: Any = None) -> Any:
        """Returns the first of these options in the file or else in RLlib's defaults, without taking it."""
        for source in (self.given, self.defaults):
            for key in keys:
                if key in source:
                    several = options_of(source[key])
                    return source[key] if several is None else several[0]
        return default

    def say(self, key: str, how: How, became: str = "", why: str = "") -> None:
        if key in self.taken:
            return
        self.taken.add(key)
        several = options_of(self.given.get(key))
        # the file's grid has no sweep over the other values
        if several is not None and how == "mapped" and not any(flow(one) in became for one in self.made.grid):
            why = f"the first of {len(several)}: a sweep over the others is yours to make" + (f"; {why}" if why else "")
        if key in self.given:
            self.made.lines.append(Line(key, self.given[key], how, became, why))
        elif how == "mapped" and key in self.defaults:
            self.made.lines.append(Line(key, self.defaults[key], "default", became, why))

    def set(self, target: str, value: Any, *keys: str, why: str = "") -> None:
        """Sets one of rlrun's options and marks those of RLlib's options that it was computed from."""
        self.made.values[target] = value
        # the option's other names, which the file does not use, are taken too
        if any(key in self.given for key in keys):
            self.taken |= {key for key in keys if key not in self.given}
        for key in keys:
            self.say(key, "mapped", f"{target}={flow(value)}", why)
