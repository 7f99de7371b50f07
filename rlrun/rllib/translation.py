"""One of RLlib's experiments while the other modules of this folder translate its options to rlrun's."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from rlrun.config.paths import inner_algorithm
from rlrun.core.errors import UserError
from rlrun.rllib.algorithms import (
    APEX,
    CURIOUS,
    DEFAULTS_OF,
    FROM_DATA,
    JOINT,
    RUNS,
    alone_in_policy,
    cannot_hold,
    curious_problem,
)
from rlrun.rllib.environments import Environment
from rlrun.rllib.fits import misfit
from rlrun.rllib.kinds import SHOWN, takes, wrong_kind
from rlrun.rllib.option_map import option_map
from rlrun.rllib.team import Team, merged
from rlrun.rllib.yaml_files import (
    GROUPS,
    SWEPT,
    Era,
    How,
    Imported,
    Line,
    class_defaults,
    defaults,
    flattened,
    flow,
    without_grids,
)

OFF = "null: nothing is asked for"
# Options that only the new API stack has; an experiment with one of them has that stack's defaults
NEW = (
    "num_learners",
    "train_batch_size_per_learner",
    "circular_buffer_num_batches",
    "circular_buffer_iterations_per_batch",
    "target_worker_clipping",
)
# Options that the new API stack refuses or leaves out
OLD_STACK = ("lr_schedule", "entropy_coeff_schedule", "exploration_config", "optimization")
# Names that releases have had since 2.10, which have both stacks. Most have the new one by default.
RECENT = ("num_env_runners", "num_envs_per_env_runner")
# Options that only releases before 1.0 have; an experiment with one of them has their defaults
OLD = (
    "sample_batch_size",
    "schedule_max_timesteps",
    "exploration_fraction",
    "exploration_final_eps",
    "exploration_final_scale",
    "exploration_should_anneal",
    "exploration_ou_noise_scale",
    "exploration_ou_sigma",
    "exploration_ou_theta",
    "exploration_noise_type",
    "exploration_gaussian_sigma",
    "per_worker_exploration",
    "pure_exploration_steps",
    "parameter_noise",
    "soft_q",
)
# What the new API stack calls `model`
MODELS = (
    "model_config",
    "_model_config",
    "_model_config_dict",
    "rl_module.model_config",
    "rl_module.model_config_dict",
)
# Names that AlgorithmConfig has for options of RLlib's dictionaries, which releases 2.0 to 2.9 read
RENAMED = {"num_rollout_workers": "num_workers"}
SAMPLER = "sampler"  # as an input: what is played
INPUTS = ("input", "input_")
# Options that RLlib had before replay_buffer_config, when SAC drew without priorities unless it was told to, and the
# workers and the learner of Ape-X did not wait for each other
FLAT = (
    "buffer_size",
    "prioritized_replay_alpha",
    "prioritized_replay_beta",
    "prioritized_replay_eps",
    "final_prioritized_replay_beta",
    "prioritized_replay_beta_annealing_timesteps",
    "Q_model",
    "policy_model",
)
STACK = ("enable_rl_module_and_learner", "enable_env_runner_and_connector_v2")


@cache
def _table(algo: str, inner: str | None) -> dict[str, dict[str, Any]]:
    return {row["rllib"]: row for row in option_map(algo, inner)}


class Original(NamedTuple):
    """An experiment of RLlib's, as its file has it."""

    name: str
    run: str  # RLlib's name of the algorithm
    env: str  # RLlib's name of the environment
    config: dict[str, Any]
    experiment: dict[str, Any]  # what stands beside `config`
    source: str
    place: Environment  # the environment
    old_stack: bool  # whether the file says that it is for the old API stack


class Translation:
    """The options of an experiment and their translation.

    Every option is taken once. Options that are left at the end were read by no part of the translation. Every value
    that is written has a line in `made.lines`, and a value that rlrun would refuse is not written. `given` has the
    first value of every grid of the file, and `grids` has all of them.
    """

    discrete: bool | None  # whether actions are discrete; None: unknown
    minibatch_unit: int = 1  # minibatches are multiples of these env steps
    repeat: int = 1  # frames of an env step, where the file counts frames
    emulated: int | None = 1  # frames of an action in an Atari game's emulator; None: drawn from 2 to 4
    minibatch_rows: int | None = None  # rows of one policy in RLlib's minibatches; None: there are none

    def __init__(self, original: Original, team: Team | None, refused: dict[str, str]):
        """team: who has which policy; None: there is one agent. refused: options of the file that are to have RLlib's
        defaults, and why."""
        name, run, _, config, experiment, source, env, old_stack = original
        self.run, self.source, self.env, self.team = DEFAULTS_OF.get(run, run), source, env, team
        (self.stop, self.stop_grids), (self.passes, self.pass_grids) = (
            without_grids(experiment.get(part) or {}) for part in ("stop", "pass_criteria")
        )
        self.config = config  # all that the file has
        self.atari = env.family == "atari"
        self.shown: dict[str, str] = {}  # names under which options are listed, where these differ
        # values of the file that were converted to other units before they are translated, and to what
        self.converted: dict[str, tuple[Any, str]] = {}
        renamed = self._with_old_names(self._of_the_only_policy(config))
        self.given, self.grids = without_grids(self._with_networks(renamed))
        self.era = self._era(old_stack)
        said = flattened(defaults(self.run, self.era))
        self.defaults = {key: value for key, value in said.items() if value is not None}
        groups = {key.split(".")[0] for key in self.given}
        if groups & {*FLAT} and "replay_buffer_config" not in groups:
            if self.run == "SAC":
                self.defaults["replay_buffer_config.type"] = "MultiAgentReplayBuffer"
            elif self.run in ("APEX", "APEX_DDPG"):
                self.defaults.pop("training_intensity", None)
        self.misfits: dict[str, str] = {}  # options of the file whose values rlrun does not accept, and why
        nothing = {key for key, value in self.given.items() if value is None and self._means_nothing(key)}
        unfit = {key: why for key in self.given if (why := refused.get(key) or self._wrong_kind(key)) is not None}
        without = {key: self.given.pop(key) for key in list(self.given) if key in unfit or key in nothing}
        self.curious = self._sub_exploration()
        self.outer, self.core, why = self._algorithms(RUNS[run])
        for group in ("exploration_config", "replay_buffer_config"):
            self._change_type(group)
        if team is not None and len(team.policies) > 1 and self.core != "maddpg":
            problem = alone_in_policy(self.outer, self.core)
            if problem is not None:
                raise UserError(f"{problem}, and the file has {len(team.policies)} policies")
            self.outer = "multi"
        self.runner = self._runner()  # chosen because of what is learnt from; None: the algorithm's own
        self.offline = self.core in FROM_DATA and self.runner is None  # learns from data alone
        self.algo = self.outer or self.core
        self.inner = "algo.inner" if self.outer else "algo"  # where the options of `core` are
        self.table = _table(self.algo, self.core if self.outer else None)
        self.made = Imported(name, self.algo, "", comment=source)
        chosen = f"algo={self.algo}"
        if self.core in JOINT or team is None or team.agents is None:
            self.acting = 1 if self.core in JOINT or team is None else None  # agents in an env step; None: unknown
        else:
            self.acting = len(team.agents)
        if self.outer and self.core != inner_algorithm(self.outer):
            self.made.inner = self.core
            chosen += f" algo@algo.inner={self.core}"
        self.made.lines.append(Line("run", run, "mapped", chosen, why))
        self.taken: set[str] = set()
        self.refused = unfit  # options of the file that have RLlib's defaults, and why
        for key, value in without.items():
            how: How = "dropped" if key in nothing else "not mapped"
            why = self.first_of(key, OFF) if key in nothing else _short(unfit[key], value)
            self.made.lines.append(Line(self.shown.get(key, key), self._grid_or(key, value), how, "", why))
        self.grids = {key: values for key, values in self.grids.items() if key not in without}
        for key in GROUPS:
            if key in self.grids and key not in self.given:
                self.made.lines.append(Line(key, self._grid_or(key, None), "not mapped", "", self.first_of(key)))
        self.reasons: dict[str, str] = {}  # why an option of rlrun's is written

    # What is imported

    def _of_the_only_policy(self, config: dict[str, Any]) -> dict[str, Any]:
        """Returns the options with those of the only policy, which then hold for all agents."""
        if self.team is None or len(self.team.policies) > 1:
            return config
        ((_, own),) = self.team.policies.items()
        for at, changes in own.changes.items():
            self.shown |= {key: f"{at}.{key}" for key in flattened(changes)}
        return merged(config, own.config)

    def _with_old_names(self, config: dict[str, Any]) -> dict[str, Any]:
        """Returns the options with the names of RLlib's dictionaries. One that has both names stays as it is."""
        found = {key: name for key, name in RENAMED.items() if key in config and name not in config}
        self.shown |= {name: key for key, name in found.items()}
        return {found.get(key, key): value for key, value in config.items()}

    def _with_networks(self, config: dict[str, Any]) -> dict[str, Any]:
        """Returns the options with what describes the networks as `model`; the new API stack has other names for it."""
        for path in MODELS:
            *groups, last = path.split(".")
            place: Any = config
            for name in groups:
                place = place.get(name) if isinstance(place, dict) else None
            networks = place.get(last) if isinstance(place, dict) else None
            if not isinstance(networks, dict):
                continue
            self.shown |= {f"model.{key}": f"{path}.{key}" for key in flattened(networks)}
            rest = {key: value for key, value in config.items() if key != (groups or [last])[0]}
            if groups and (more := {key: value for key, value in place.items() if key != last}):
                rest[groups[0]] = more
            config = {**rest, "model": {**(config.get("model") or {}), **networks}}
        return config

    def _wrong_kind(self, key: str) -> str | None:
        """Returns the reason why the file's value of an option, or one of its grid, is none that RLlib has."""
        values = self.grids.get(key, [self.given[key]])
        said = [wrong_kind(key, one) for one in values if one is not None or not self._means_nothing(key)]
        return next((why for why in said if why is not None), None)

    def _grid_or(self, key: str, value: Any) -> Any:
        """Returns what the file has for an option whose first value is `value`."""
        return {"grid_search": self.grids[key]} if key in self.grids else value

    def _means_nothing(self, key: str) -> bool:
        """Whether null is what RLlib does anyway: the option has no default, and null switches nothing off."""
        return key not in self.defaults and takes(key) is not None and "null" not in (takes(key) or ())

    def _era(self, old_stack: bool) -> Era:
        if any(key in self.given for key in OLD):
            return "old"
        if old_stack or any(self.given.get(key) is False for key in STACK):
            return "middle"
        if self.run == "CQL":  # RLlib's is on the old stack unless a file says otherwise
            asked = any(self.given.get(key) for key in STACK) or "train_batch_size_per_learner" in self.given
            return "new" if asked else "middle"
        new = any(key in self.given for key in NEW) or any(self.given.get(key) for key in STACK)
        new = new or (self.run == "APPO" and "target_network_update_freq" in self.given)
        replay = str(self.given.get("replay_buffer_config.type") or "")
        if new or "EpisodeReplayBuffer" in replay:
            return "new"
        if replay or any(key.split(".")[0] in OLD_STACK for key, value in self.given.items() if value is not None):
            return "middle"
        return "new" if any(key in self.given for key in RECENT) else "middle"

    def _runner(self) -> str | None:
        """Returns the runner of an algorithm that learns from data, if it is to play: cql may do so beside data."""
        value = next((self.given[key] for key in INPUTS if key in self.given), None)
        shares = value if isinstance(value, dict) else {value: 1.0} if isinstance(value, str) else {}
        used = [name for name, share in shares.items() if isinstance(share, int | float) and share > 0]
        if SAMPLER in used and self.core == "cql":
            return "replay"
        return "on_policy" if used == [SAMPLER] and self.core == "marwil" else None

    def _sub_exploration(self) -> dict[str, Any]:
        """Returns the options of RLlib's Curiosity or RE3; empty if neither is used.

        The options of its sub_exploration take their place in the config."""
        group = "exploration_config"
        kind = str(self.given.get(f"{group}.type", "")).rsplit(".", 1)[-1]
        learner = {key: value for key, value in self.given.items() if key.startswith("learner_config_dict.")}
        if kind not in CURIOUS:
            return learner if "learner_config_dict.intrinsic_reward_coeff" in learner else {}
        found = {key: self.given.pop(key) for key in list(self.given) if key.startswith(f"{group}.")}
        sub = found.pop(f"{group}.sub_exploration", None)
        for key, value in (sub if isinstance(sub, dict) else {}).items():
            self.given[f"{group}.{key}"] = value
            self.shown[f"{group}.{key}"] = f"{group}.sub_exploration.{key}"
        return found

    def _change_type(self, group: str) -> None:
        """Gives the group the defaults of its class if the file changes its type, as RLlib does."""
        key = f"{group}.type"
        said, usual = str(self.get(key)), str(self.defaults.get(key))
        sub = group == "exploration_config" and f"{group}.type" in self.curious  # a sub_exploration inherits nothing
        kind = said.rsplit(".", 1)[-1]
        own = class_defaults(usual, kind) if key in self.given and (said != usual or sub) else None
        if own is None or (self.core in JOINT and kind in ("SoftQ", "ParameterNoise", "Random")):
            return  # the same type, or one that becomes the usual one
        kept = {name: value for name, value in self.defaults.items() if name == key or not name.startswith(f"{group}.")}
        self.defaults = kept | {f"{group}.{name}": value for name, value in own.items()}

    @property
    def around(self) -> str:
        """The algorithm that RLlib's Curiosity or RE3 is here."""
        return CURIOUS.get(str(self.curious.get("exploration_config.type", "")).rsplit(".", 1)[-1], "icm")

    def _algorithms(self, wanted: str) -> tuple[str | None, str, str]:
        """Returns the algorithm around another one, if there is one, the algorithm that learns the policy, and why."""
        outer = wanted if wanted in APEX.values() else None
        core = {"apex": "dqn", "apex_ddpg": "ddpg"}.get(wanted, wanted)
        core = "qmix" if self.run == "APEX_QMIX" else core
        why = ""
        if outer is None and core in APEX and self.given.get("optimizer_class") == "AsyncReplayOptimizer":
            outer, why = APEX[core], "AsyncReplayOptimizer is Ape-X"
        if core == "qmix" and self.get("mixer") != "qmix":
            core = "vdn" if self.get("mixer") == "vdn" else "iql"
            why = f"mixer is {flow(self.get('mixer'))}"
        if core == "dqn" and float(self.get("num_atoms", default=1) or 1) > 1:
            full = self.get("noisy") and self.get("dueling") and self.get("double_q")
            atoms = "rainbow" if full else "c51"
            if outer is None or cannot_hold(outer, atoms) is None:
                core = atoms
                why = "num_atoms is above 1" + (", with noisy, dueling and double Q-learning" if full else "")
        twins = self.get("twin_q") or float(self.get("policy_delay", default=1) or 1) > 1
        if core == "ddpg" and (twins or self.get("smooth_target_policy")):
            core, why = "td3", "DDPG with twin_q, policy_delay or smooth_target_policy is TD3"
        around = self.around
        if self.curious and outer is None and curious_problem(core, around) is None:
            outer, why = around, f"{'Curiosity' if around == 'icm' else 'RE3'} is {around.upper()} around {core}"
        return outer, core, why

    def get(self, *keys: str, default: Any = None) -> Any:
        """Returns the first of these options in the file or else in RLlib's defaults, without taking it."""
        for source in (self.given, self.defaults):
            for key in keys:
                if key in source:
                    return source[key]
        return default

    # What becomes of it

    def first_of(self, key: str, why: str = "") -> str:
        """Returns a reason with a sentence before it that says that the option is the first of a grid, if it is."""
        return first_of(self.grids.get(key), why)

    def say(self, key: str, how: How, became: str = "", why: str = "", whatever: bool = False) -> None:
        """Lists what becomes of one of RLlib's options. A default is listed if it is mapped, or if it is lost.

        whatever: the reason holds for every value of the option, so that the others of a grid are not worth a word."""
        if key in self.taken:
            return
        self.taken.add(key)
        if not whatever and became.partition("=")[0] not in self.made.grid:  # the imported file has no sweep of them
            why = self.first_of(key, why)
        name, value = self.shown.get(key, key), self._grid_or(key, self.given.get(key, self.defaults.get(key)))
        if key in self.converted:
            value, unit = self.converted[key]
            why = f"{unit}; {why}" if why else unit
        why = _short(why, value)
        if key in self.given:
            self.made.lines.append(Line(name, value, how, became, why))
        elif key in self.refused:  # it has a line, and what is written in its place is listed as added
            target = became.partition("=")[0]
            target = target if target in self.made.values else f"{target}._choice"
            why = f"RLlib's default, because {name} is refused" + (f"; {why}" if why else "")
            self.reasons |= {target: why} if how == "mapped" else {}
        elif key in self.defaults and how != "dropped":
            self.made.lines.append(Line(name, value, how, became, why, given=False))

    def set(self, target: str, value: Any, *keys: str, why: str = "") -> bool:
        """Sets one of rlrun's options and marks those of RLlib's options that it was computed from.

        Returns whether rlrun accepts the value. If it does not, nothing is written and the reason is listed."""
        self._take(keys)
        problem = self.misfit_of(target, value)
        if problem is not None:
            self.refuse(problem, *keys)
            return False
        self.made.values[target] = value
        self.reasons[target] = why
        for key in keys:
            self.say(key, "mapped", f"{target}={flow(value)}", why)
        return True

    def convert(self, target: str, key: str, made: Callable[[Any], Any], *others: str, why: str = "") -> bool:
        """Sets one of rlrun's options from one of RLlib's, as `made` converts it. The file's grid becomes a grid.

        others: further names of RLlib's option. Returns whether rlrun accepts the values; if it does not, nothing is
        written and the reason is listed."""
        several = self.grids.get(key)
        if several is None:
            return self.set(target, made(self.get(key)), key, *others, why=why)
        values = [made(one) for one in several]
        wrong = [one for one in values if self.misfit_of(target, one) is not None]
        if wrong:
            return self.set(target, wrong[0], key, *others)
        self.made.grid[target] = values
        first = f"the first of {len(values)}; {SWEPT}"
        return self.set(target, values[0], key, *others, why=f"{first}; {why}" if why else first)

    def place(
        self,
        target: str,
        value: Any,
        key: str,
        why: str = "on the command line, because a file may not choose folders",
    ) -> bool:
        """Sets an option that names files or folders, or is about these files, which the command line will have to say.
        Returns whether rlrun accepts the value."""
        problem = misfit(self.outer, self.core, self.env, target, value)
        if problem is not None:
            self.say(key, "not mapped", why=problem)
            return False
        self.made.places[target] = value
        self.say(key, "mapped", f"{target}={flow(value)}", why)
        return True

    def choose(self, group: str, file: str, *keys: str, why: str = "") -> None:
        """Chooses the file of a group, such as model=lstm."""
        self._take(keys)
        self.made.values[f"{group}._choice"] = file
        self.reasons[f"{group}._choice"] = why
        for key in keys:
            self.say(key, "mapped", f"{group}={file}", why)

    def refuse(self, problem: str, *keys: str) -> None:
        """Lists options whose value rlrun does not accept. Those of the file will have RLlib's defaults instead."""
        self.misfits |= {key: problem for key in keys if key in self.given and key not in self.taken}
        for key in keys:
            self.say(key, "not mapped", why=problem)

    def misfit_of(self, target: str, value: Any) -> str | None:
        """Returns the reason why rlrun does not accept a value for one of its options; None if it does."""
        return misfit(self.outer, self.core, self.env, target, value, self.runner)

    def _take(self, keys: tuple[str, ...]) -> None:
        """Takes the other names of an option, which the file does not use."""
        if any(key in self.given for key in keys):
            self.taken |= {key for key in keys if key not in self.given}

    def list_the_rest(self) -> None:
        """Lists the values that are written and that no other line names."""
        said = " ".join(line.became for line in self.made.lines) + " "
        for target, value in self.made.values.items():
            text = f"{target.removesuffix('._choice')}={value if target.endswith('._choice') else flow(value)}"
            if f"{text} " not in said:
                self.made.lines.append(Line("", None, "added", text, self.reasons.get(target, "")))


def _short(why: str, value: Any) -> str:
    """Returns a reason that shows no more than the beginning of a long value."""
    if not isinstance(value, str) or len(value) <= SHOWN:
        return why
    return why.replace(value.rsplit(".", 1)[-1], f"{value[:SHOWN]}...")


def first_of(several: list[Any] | None, why: str) -> str:
    """Returns a reason with a sentence before it that says that a value is the first of a grid, if there is one."""
    if several is None:
        return why
    return f"the first of {len(several)}: a sweep over the others is yours to make" + (f"; {why}" if why else "")
