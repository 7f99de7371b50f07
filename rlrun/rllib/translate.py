"""Translates RLlib's tuned experiments (0.5 to 2.x) to rlrun's options.

Names come from options/ (the tables of `rlrun explain`) and RLlib's defaults from defaults.yaml. This module and those
that it calls compute what depends on several options at once: fragments, schedules, networks and units.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from rlrun.config.paths import runner_of
from rlrun.core.errors import UserError, closest
from rlrun.envs.arguments import config_parameter
from rlrun.envs.names import sticky_actions
from rlrun.rllib.agents import agents, steps_of_agents
from rlrun.rllib.algorithms import (
    DREAMING,
    EVOLUTION,
    FROM_DATA,
    JOINT,
    LACKING,
    META,
    OFF_POLICY,
    RUNS,
    SOFT,
    WITH_VALUE,
)
from rlrun.rllib.alphazero import alphazero, dense_model
from rlrun.rllib.batches import batches
from rlrun.rllib.continuous import continuous
from rlrun.rllib.curiosity import curiosity
from rlrun.rllib.data import data
from rlrun.rllib.dreamer import dreamer, task_options
from rlrun.rllib.ends import ends
from rlrun.rllib.environments import ROCK_PAPER_SCISSORS, TWO_STEP, continuous_actions, emulator_frames, environment
from rlrun.rllib.estimates import estimates
from rlrun.rllib.evaluation import evaluation
from rlrun.rllib.joint import joint
from rlrun.rllib.kinds import known_kinds, takes
from rlrun.rllib.losses import losses
from rlrun.rllib.maddpg import maddpg
from rlrun.rllib.meta import meta
from rlrun.rllib.networks import networks
from rlrun.rllib.q_learning import q_learning
from rlrun.rllib.slates import BANDITS, OWN, slates, world_options
from rlrun.rllib.team import GROUP, Team, team_of
from rlrun.rllib.translation import OFF, Original, Translation
from rlrun.rllib.vain import leave_out
from rlrun.rllib.yaml_files import (
    NESTED,
    SWEPT,
    Imported,
    Line,
    around,
    first_values,
    flow,
    machinery,
    numbers,
    options_of,
    rounded,
    slug,
)

PARTS = ("run", "env", "stop", "config", "pass_criteria")  # of an experiment; the others are listed by _around()
FILTERS = {"MeanStdFilter": "mean_std", "ConcurrentMeanStdFilter": "mean_std", "NoFilter": "none"}
SHARING = ("dqn", "c51", "rainbow", "ddpg")  # off-policy algorithms whose processes can share weights
MOST_SEEDS = 1000  # of an experiment's num_samples
WORKERS = ("num_workers", "num_env_runners")
LIMIT = "max_episode_steps"
# Options whose counterpart has another number, or is not quite the same; the reader is told why
CONVERTED = ("vf_loss_coeff", "max_weight_sync_delay", "horizon")
# RLlib's options of its samplers, which runs that learn from data alone do not have
SAMPLERS = ("num_workers", "num_env_runners", "num_envs_per_worker", "num_envs_per_env_runner")
# RLlib's optimizer_class and the runner that does the same
OPTIMIZERS = {
    "SyncReplayOptimizer": "replay",
    "AsyncReplayOptimizer": "distributed_replay",
    "AsyncSamplesOptimizer": "actor_learner",
    "AsyncGradientsOptimizer": "async_gradients",
    "SyncSamplesOptimizer": "on_policy",
    "LocalMultiGPUOptimizer": "on_policy",
}


def translate(name: str, experiment: dict[str, Any], source: str, old_stack: bool = False) -> list[Imported]:
    """Returns one tuned file for each environment of an experiment. old_stack: whether its file says that it is for
    RLlib's old API stack.

    Raises UserError if rlrun does not have the algorithm or the environment, or if the experiment names none.
    """
    run = str(experiment["run"])
    lacking = LACKING.get(run.removeprefix("contrib/"))
    if lacking is not None:
        raise UserError(f"{source}, {name}: rlrun has no {run}: {lacking}")
    if run not in RUNS:
        raise UserError(f"{source}, {name}: rlrun has no {run}.{closest(run, RUNS)}")
    for part in PARTS[2:]:
        if not isinstance(experiment.get(part) or {}, dict):
            raise UserError(f"{source}, {name}: `{part}` must be a group of keys")
    config = numbers(experiment.get("config") or {})
    env = experiment.get("env", config.get("env"))
    if env is None:
        own = f"; rlrun train algo={RUNS[run]} data.path=DIR needs none" if RUNS[run] in FROM_DATA else ""
        raise UserError(f"{source}, {name}: it names no environment. --env NAME says which one it is{own}")
    envs = options_of(env) or [env]
    names = [name if len(envs) == 1 else f"{name}-{slug(one)}" for one in envs]
    try:
        return [
            experiment_on(named, run, str(one), config, numbers(experiment), source, old_stack).made
            for named, one in zip(names, envs, strict=True)
        ]
    except (TypeError, ValueError, AttributeError, KeyError, ArithmeticError) as error:
        raise UserError(
            f"{source}, {name}: an option has a value that RLlib does not have ({type(error).__name__}: {error})"
        ) from None


def experiment_on(
    name: str, run: str, env: str, config: dict[str, Any], experiment: dict[str, Any], source: str, old_stack: bool
) -> Experiment:
    """Translates an experiment on one environment. Raises UserError if rlrun does not have it, or for policies that
    RLlib would not accept."""
    kwargs = first_values(config.get("env_config"))[0]
    kwargs = kwargs if isinstance(kwargs, dict) else {}
    inside = kwargs.get("config") if set(kwargs) == {"config"} and isinstance(kwargs.get("config"), dict) else kwargs
    several = isinstance(config.get(GROUP), dict) or "policies" in config
    try:
        place = environment(env, inside or {}, several)
        return _accepted(Original(name, run, env, config, experiment, source, place, old_stack))
    except UserError as error:
        raise UserError(f"{source}, {name}: {error}") from None


def _accepted(original: Original) -> Experiment:
    """Translates an experiment until rlrun accepts all that is left of its values.

    A refused option has RLlib's default, and others may be computed from it: the translation begins again without it.
    """
    refused: dict[str, str] = {}
    while True:
        team = team_of(original.config, original.place, original.run)
        made = Experiment(original, team, refused)
        if made.misfits.keys() <= refused.keys():
            return made
        refused |= made.misfits


class Experiment(Translation):
    """The translation of one experiment on one environment."""

    def __init__(self, original: Original, team: Team | None, refused: dict[str, str]):
        super().__init__(original, team, refused)
        env, config, experiment = original.env, original.config, original.experiment
        kwargs, grids = first_values(config.get("env_config"))
        self.grids |= {f"env_config.{path}": values for path, values in grids.items() if path}
        self.one_argument: str | None = None  # that of the environment's class to which RLlib hands env_config
        self._env(env, kwargs if isinstance(kwargs, dict) else {})
        self._env_grids([f"env_config.{path}" for path in grids if path])
        if self.core == "cql" and self.discrete:
            raise UserError(
                f"RLlib's CQL is for continuous actions, and {self.made.env} has choices; algo=discrete_cql learns them"
            )
        steps_of_agents(self)
        self._machinery()
        curiosity(self)
        batches(self)
        q_learning(self)
        continuous(self)
        joint(self)
        maddpg(self)
        dreamer(self)
        alphazero(self)
        slates(self)
        meta(self)
        if self.core not in (*JOINT, *DREAMING, *BANDITS, "maddpg", "slateq"):
            networks(self)
            dense_model(self)
        losses(self)
        self._sampling()
        agents(self, lambda other: _accepted(original._replace(config=other, experiment={})))
        data(self)
        estimates(self)
        evaluation(self)
        self._optimizer()
        self._the_rest()
        self._around({key: value for key, value in experiment.items() if key not in PARTS})
        ends(self)
        self.list_the_rest()
        leave_out(self.made, self.outer, self.core)

    # Environment

    def _env(self, env: str, kwargs: dict[str, Any]) -> None:
        self.made.env = self.env.name
        drawn = self.atari and emulator_frames(env) is None and "frameskip" not in kwargs
        why = "RLlib's game takes an action for 2 to 4 frames, drawn at random; here it is 4" if drawn else self.env.why
        self.made.lines.append(Line("env", env, "mapped", f"env={self.made.env}", why))
        self.taken.add("env")
        self.discrete = True
        if self.atari:
            self._atari(env.removeprefix("ale_py:"), kwargs)
            return
        continuous = continuous_actions(self.env)
        self.discrete = None if continuous is None else not continuous
        self.taken |= {"env_config", *(f"env_config.{key}" for key in kwargs)}
        if self.made.env == TWO_STEP:
            why = "rlrun's game always shows its state one-hot"
            if kwargs:
                self.made.lines.append(Line("env_config", kwargs, "dropped", "", why))
        elif self.env.family == "dmc":
            task_options(self, env, kwargs)
        elif self.made.env in OWN:
            world_options(self, kwargs)
        elif self.made.env == ROCK_PAPER_SCISSORS:
            for key, value in kwargs.items():
                why = "the players have rock, paper and scissors, in 10 rounds"
                self.made.lines.append(Line(f"env_config.{key}", value, "not mapped" if value else "dropped", "", why))
        else:
            self._env_options(kwargs)

    def _env_options(self, kwargs: dict[str, Any]) -> None:
        """Sets the keyword arguments of an environment."""
        nested = set(kwargs) == {"config"} and isinstance(kwargs.get("config"), dict)
        self.one_argument = config_parameter(self.made.env, kwargs)
        nested = nested and self.one_argument is None
        inside = dict(self.env.inside or (kwargs["config"] if nested else kwargs))
        prefix = "env_config.config." if nested else "env_config."
        # gymnasium.make takes the limit for itself, and so does rlrun.
        limited = self.env.family == "gym" and LIMIT in inside and self.one_argument is None
        limit = inside.pop(LIMIT) if limited else None
        if limit is not None and self.set(f"env.{LIMIT}", limit):
            self.made.lines.append(Line(f"{prefix}{LIMIT}", limit, "mapped", f"env.{LIMIT}={limit}", ""))
        if self.one_argument is not None:
            inside = {self.one_argument: inside}
        if inside:
            self.made.values["env.kwargs"] = inside
            self.reasons["env.kwargs"] = "RLlib's default"
        if kwargs and inside:
            self.made.lines.append(Line("env_config", kwargs, "mapped", f"env.kwargs={flow(inside)}", ""))
        for key in [key for key in self.grids if key.startswith("env_config.") and not self.env.inside]:
            name = key.removeprefix(prefix)
            plain = not any(isinstance(one, dict) for one in self.grids[key])
            if plain and re.fullmatch(r"\w+(\.\w+)*", name):
                self.made.grid[f"env.{name}" if limited and name == LIMIT else self._kwarg(name)] = self.grids[key]

    def _kwarg(self, name: str) -> str:
        """The option of a keyword argument, or of a part of the dictionary that is the only one."""
        return f"env.kwargs.{name}" if self.one_argument is None else f"env.kwargs.{self.one_argument}.{name}"

    def _env_grids(self, keys: list[str]) -> None:
        """Lists the grids inside env_config that no other line names."""
        said = {line.key for line in self.made.lines}
        for key in [key for key in keys if key not in said]:
            target = self._kwarg(key.removeprefix("env_config.").removeprefix("config."))
            became, why = f"env.kwargs={flow(self.made.values.get('env.kwargs'))}", self.first_of(key)
            if target in self.made.grid:
                why = f"the first of {len(self.grids[key])}; {SWEPT}"
                self.made.lines.append(Line(key, self._grid_or(key, None), "mapped", became, why))
            else:
                self.made.lines.append(Line(key, self._grid_or(key, None), "not mapped", "", why))

    def _atari(self, name: str, kwargs: dict[str, Any]) -> None:
        """Sets what an Atari game's id and its env_config say of the emulator."""
        if sticky_actions(name) and "repeat_action_probability" not in kwargs:
            self.set("env.sticky_actions", sticky_actions(name), why=f"{name} has them")
        self.emulated = emulator_frames(name)
        if isinstance(kwargs.get("frameskip"), int | float):
            self.emulated = int(kwargs["frameskip"])
        for key in kwargs:
            self._atari_option(f"env_config.{key}", kwargs[key])
        if self.emulated not in (1, 4, None):
            self.set("env.frame_skip", self.emulated, why=f"{name} takes an action for {self.emulated} frames")

    def _atari_option(self, key: str, value: Any) -> None:
        option = key.partition(".")[2]
        if option == "full_action_space":
            self.set("env.full_action_space", bool(value), key)
        elif option == "repeat_action_probability":
            self.set("env.sticky_actions", float(value), key)
        elif option == "frameskip":
            self._frames(key, value)
        else:
            self.say(key, "not mapped", why="Atari games have no such option here")

    def _frames(self, key: str, value: Any) -> None:
        if not isinstance(value, int | float):
            self.say(key, "not mapped", why="every action is taken for the same number of frames: env.frame_skip=4")
        elif value == 1 and self.get("preprocessor_pref", default="deepmind") == "deepmind":
            self.say(key, "dropped", why="RLlib's wrappers then take every action 4 times, as env.frame_skip=4 does")
        else:
            self.set("env.frame_skip", int(value), key)

    def _machinery(self) -> None:
        unseen = machinery()
        if self.discrete:
            self.say("normalize_actions", "dropped", why="actions are choices, which are not scaled")
        if self.offline:
            self.say("no_done_at_end", "dropped", why="nothing is sampled, and the data say where values end")
        for key in [*self.given, *self.defaults]:
            plain = key.rsplit(".", 1)[-1] if key.split(".")[0] in NESTED else key
            if self.offline and plain in SAMPLERS:
                self.say(key, "dropped", why="nothing is sampled; data.readers= says how many threads read the data")
            learns = (plain in ("num_workers", "num_env_runners") and self.core in ("a3c", "ddppo")) or (
                plain in (*SAMPLERS, "num_rollout_workers") and self.core in META
            )
            if plain in SAMPLERS and key in self.grids and not self.offline:
                self.say(key, "not mapped", why="it decides how many environments make a batch")
            if plain in unseen and not learns:
                self.say(key, "dropped", why=unseen[plain], whatever=True)

    # Everything else

    def _sampling(self) -> None:
        """Sets how algorithms explore that draw actions from their policy, and lists what they do not have."""
        at, group = self.inner, "exploration_config"
        if self.core in FROM_DATA and (self.offline or self.core == "marwil"):
            self._without_exploration()
            return
        self._explore()
        if self.core not in (*WITH_VALUE, "pg", *SOFT, "maddpg"):
            return
        kind = str(self.given.get(f"{group}.type") or "StochasticSampling").rsplit(".", 1)[-1]
        ours = {"StochasticSampling": "sampled", "Random": "random"}.get(kind)
        if ours is None:
            lost = f"rlrun has no {kind} here, and explores by sampling from the policy, which is RLlib's default"
            self.say(f"{group}.type", "not mapped", why=lost)
        elif f"{group}.type" in self.given:
            self.set(f"{at}.exploration.kind", ours, f"{group}.type")
        if f"{group}.random_timesteps" in self.given and ours != "random" and self.core not in SOFT:
            self.set(f"{at}.random_steps", int(self.get(f"{group}.random_timesteps")), f"{group}.random_timesteps")
        self.say(f"{group}.random_timesteps", "dropped", why="all actions are random")
        unknown = "it belongs to no exploration of rlrun's that samples from the policy"
        for key in [key for key in self.given if key.split(".")[0] == group]:
            self.say(key, "not mapped", why=unknown)

    def _without_exploration(self) -> None:
        """Lists the options of exploration for an algorithm that samples nothing, or always from its policy."""
        for key in [key for key in self.given if key == "explore" or key.split(".")[0] == "exploration_config"]:
            usual = self.given[key] is True or str(self.given[key]).endswith("StochasticSampling")
            if self.offline:
                self.say(key, "dropped", why="nothing is sampled; eval.greedy concerns evaluation")
            else:
                self.say(key, "dropped" if usual else "not mapped", why=f"{self.core} always samples from its policy")

    def _explore(self) -> None:
        """Sets whether training explores at all."""
        value = self.given.get("explore")
        if self.core in EVOLUTION:
            self.say("explore", "dropped", why="perturbed policies are the only exploration, in RLlib too")
        elif value is False and self.discrete is False and self.core in ("ppo", "ddppo", "impala", "appo"):
            why = f"{self.core} learns from probabilities, and a greedy choice of continuous actions has none"
            self.say("explore", "not mapped", why=why)
        elif isinstance(value, bool):
            self.set(f"{self.inner}.explore", value, "explore")

    def _optimizer(self) -> None:
        """Lists RLlib's optimizer_class (0.5 to 0.8), whose counterpart is the runner that the algorithm chooses."""
        wanted = str(self.given.get("optimizer_class", "")).rsplit(".", 1)[-1]
        ours = (runner_of(self.outer) if self.outer else None) or runner_of(self.core)
        if OPTIMIZERS.get(wanted) == ours:
            self.say("optimizer_class", "mapped", f"runner={ours}", "the algorithm chooses it by itself")
        if wanted == "AsyncGradientsOptimizer" and self.outer is None and self.core in SHARING:
            workers = max(1, int(self.get("num_workers", default=0)))
            self.choose("runner", "async_gradients", "optimizer_class")
            self.set("resources.num_learners", workers, "num_workers", why="processes that apply gradients")
            why = f"each of {workers} workers has a replay of this size in RLlib"
            self.set("replay.capacity", workers * self.made.values["replay.capacity"], why=why)
        why = f"{self.algo} has runner={ours}, which stands for no {wanted}"
        self.say("optimizer_class", "not mapped", why=why)

    def _the_rest(self) -> None:
        special: dict[str, Callable[[Any], Any]] = {
            "observation_filter": lambda value: FILTERS[value],
            "clip_rewards": _bound,
            "max_weight_sync_delay": lambda value: int(value) * max(1, int(self.get(*WORKERS, default=0))),
            "horizon": _plain,
        }
        if self.core in ("ppo", "ddppo"):
            special["vf_loss_coeff"] = lambda value: 2.0 * float(value)
        if self.given.get("lr_schedule") is not None and self.core not in OFF_POLICY:
            if self.convert(f"{self.inner}.lr", "lr_schedule", _plain):
                self.say("lr", "dropped", why="lr_schedule wins")
        if self.given.get("horizon") and self.atari:
            skip = self.made.values.get("env.frame_skip", 4)
            frames = int(self.given["horizon"]) * skip
            why = f"{skip} frames for every env step; {self.table['horizon']['why']}"
            self.set("env.max_frames", frames, "horizon", why=why)
        pending = {**self.given, **{key: value for key, value in self.defaults.items() if key not in self.given}}
        for key, value in pending.items():
            if key in self.taken:
                continue
            plain = key.rsplit(".", 1)[-1] if key.split(".")[0] in NESTED else key
            row = self.table.get(key)
            if row is None and self._belongs(key):
                row = self.table.get(plain)
            if value in ({}, None):
                self.say(key, "dropped", why="{}: nothing is asked for" if value == {} else OFF)
            elif row is not None and row["rlrun"] in self.made.values and key not in self.given:
                self.taken.add(key)  # a default of RLlib's for an option that the file has under another name
            elif row is None:
                near = "" if key in known_kinds() else closest(key, known_kinds(), 1)
                self.say(key, "not mapped", why=f"rlrun knows no such option of {self.run}.{near}".removesuffix("."))
            elif row["rlrun"] is None or row["rlrun"] == "callbacks":
                lost = "same" in row and value != row["same"]
                self.say(key, "not mapped" if lost else "dropped", why=row.get("why", ""), whatever="same" not in row)
            else:
                try:
                    why = row.get("why", "") if plain in CONVERTED and plain in special else ""
                    self.convert(row["rlrun"], key, special.get(plain, _plain), why=why)
                except (KeyError, ValueError, TypeError):
                    self.refuse(f"{row['rlrun']} cannot be {value!r}", key)

    def _belongs(self, key: str) -> bool:
        """Tells whether an option is one that its group has and the algorithm has not, such as model.fcnet_hiddens.

        RLlib reads none of the others inside a group, such as model.lr, but for those of `optimizer`."""
        group, _, plain = key.partition(".")
        return group == "optimizer" or (takes(key) is not None and takes(plain) is None)

    def _around(self, others: dict[str, Any]) -> None:
        """Lists what stands beside `config` in the experiment."""
        known = around()
        for key, value in others.items():
            how, became, why = known.get(key, ("not mapped", "", "rlrun knows no such part of an experiment"))
            if key == "num_samples" and "seed" in self.made.grid:
                why = "the file has a grid of seeds of its own"
            elif key == "num_samples" and isinstance(value, int | float) and value > MOST_SEEDS:
                how, why = "not mapped", f"a sweep lists its seeds, and these are more than {MOST_SEEDS}"
            elif key == "num_samples" and isinstance(value, int | float):
                first = self.made.values.get("seed", 1)
                if value > 1:
                    self.made.grid["seed"] = list(range(first, first + int(value)))
                    became = f"seed={','.join(map(str, self.made.grid['seed']))}"
                how, why = ("mapped", "in the sweep") if value > 1 else ("dropped", "one run")
            elif key == "keep_checkpoints_num" and value is not None:
                if self.set("checkpoint.keep", rounded(value)):
                    how, became, why = "mapped", f"checkpoint.keep={flow(rounded(value))}", ""
            self.made.lines.append(Line(key, value, how, became, why))


def _bound(clip: Any) -> Any:
    """Returns what clip_rewards is here. Bounds that differ on both sides of 0 stay as they are: rlrun refuses them."""
    if clip is True or not clip:
        return "sign" if clip else "none"
    if isinstance(clip, list):
        return float(clip[1]) if clip[0] == -clip[1] else clip
    return float(clip)


def _plain(value: Any) -> Any:
    return rounded(value) if isinstance(value, float) and abs(value) < 1e15 else value
