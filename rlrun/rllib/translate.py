"""Translates RLlib's tuned experiments (0.5 to 2.x) to rlrun's options.

Names come from options/ (the tables of `rlrun explain`) and RLlib's defaults from defaults.yaml. This module and those
that it calls compute what depends on several options at once: fragments, schedules, networks and units.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from rlrun.config.paths import runner_of
from rlrun.core.errors import UserError, closest
from rlrun.rllib.agents import agents, steps_of_agents
from rlrun.rllib.alphazero import alphazero, dense_model
from rlrun.rllib.continuous import continuous
from rlrun.rllib.curiosity import curiosity
from rlrun.rllib.data import data
from rlrun.rllib.dreamer import dreamer, task_options
from rlrun.rllib.environments import ROCK_PAPER_SCISSORS, TWO_STEP, Environment, continuous_actions, environment
from rlrun.rllib.estimates import estimates
from rlrun.rllib.joint import joint, sequence_of
from rlrun.rllib.maddpg import maddpg
from rlrun.rllib.meta import meta, rows_of_iteration
from rlrun.rllib.networks import memories, networks, sequence_length
from rlrun.rllib.q_learning import q_learning, replayed
from rlrun.rllib.slates import BANDITS, OWN, slates, world_options
from rlrun.rllib.team import GROUP, Team, team_of, told
from rlrun.rllib.translation import (
    DREAMING,
    EVOLUTION,
    FROM_DATA,
    IMITATION,
    JOINT,
    META,
    OFF,
    OFF_POLICY,
    RUNS,
    SEARCHING,
    SOFT,
    WITH_VALUE,
    Translation,
)
from rlrun.rllib.vain import leave_out
from rlrun.rllib.yaml_files import (
    NESTED,
    Imported,
    Line,
    around,
    flow,
    machinery,
    numbers,
    options_of,
    rounded,
    slug,
)

PARTS = ("run", "env", "stop", "config", "pass_criteria")  # of an experiment; the others are listed by _around()
FILES_END = 1.0e7  # env steps of a file that names no end; RLlib's Atari tables end there
FILTERS = {"MeanStdFilter": "mean_std", "ConcurrentMeanStdFilter": "mean_std", "NoFilter": "none"}
MEANS = ("episode_reward_mean", "episode_return_mean")
AGENT_STEPS = ("agent_timesteps_total", "num_agent_steps_sampled", "num_agent_steps_sampled_lifetime")
STEPS = ("timesteps_total", "num_env_steps_sampled", "num_env_steps_sampled_lifetime", *AGENT_STEPS)
# RLlib's names of the returns of one policy or agent
PARTIAL = ("policy_reward_", "module_episode_returns_", "agent_episode_returns_")
SHARING = ("dqn", "c51", "rainbow", "ddpg")  # off-policy algorithms whose processes can share weights
LOOK_EVERY = 50000  # env steps between evaluations that a file asks for, where it does not say how often
# RLlib's options of its samplers, which runs that learn from data alone do not have
SAMPLERS = ("num_workers", "num_env_runners", "num_envs_per_worker", "num_envs_per_env_runner")
LENGTHS = ("rollout_fragment_length", "sample_batch_size")
# env steps of an iteration of off-policy algorithms, where a file says no others
ITERATIONS = {"dqn": 1000, "c51": 1000, "rainbow": 1000, "r2d2": 1000, "ddpg": 1000, "td3": 1000, "sac": 100}
# RLlib's optimizer_class and the runner that does the same
OPTIMIZERS = {
    "SyncReplayOptimizer": "replay",
    "AsyncReplayOptimizer": "distributed_replay",
    "AsyncSamplesOptimizer": "actor_learner",
    "AsyncGradientsOptimizer": "async_gradients",
    "SyncSamplesOptimizer": "on_policy",
    "LocalMultiGPUOptimizer": "on_policy",
}


def translate(name: str, experiment: dict[str, Any], source: str) -> list[Imported]:
    """Returns one tuned file for each environment of an experiment.

    Raises UserError if rlrun does not have the algorithm or the environment, or if the experiment names none.
    """
    run = str(experiment["run"])
    if run not in RUNS:
        raise UserError(f"{source}, {name}: rlrun has no {run}.{closest(run, RUNS)}")
    for part in PARTS[2:]:
        if not isinstance(experiment.get(part) or {}, dict):
            raise UserError(f"{source}, {name}: `{part}` must be a group of keys")
    config = numbers(experiment.get("config") or {})
    env = experiment.get("env", config.get("env"))
    if env is None:
        raise UserError(f"{source}, {name}: it names no environment")
    envs = options_of(env) or [env]
    names = [name if len(envs) == 1 else f"{name}-{slug(one)}" for one in envs]
    try:
        return [
            experiment_on(named, run, str(one), config, numbers(experiment), source).made
            for named, one in zip(names, envs, strict=True)
        ]
    except (TypeError, ValueError, AttributeError, KeyError) as error:
        raise UserError(
            f"{source}, {name}: an option has a value that RLlib does not have ({type(error).__name__}: {error})"
        ) from None


def experiment_on(
    name: str, run: str, env: str, config: dict[str, Any], experiment: dict[str, Any], source: str
) -> Experiment:
    """Translates an experiment on one environment. Raises UserError if rlrun does not have it, or for policies that
    RLlib would not accept."""
    kwargs = config.get("env_config")
    kwargs = kwargs if isinstance(kwargs, dict) else {}
    inside = kwargs.get("config") if set(kwargs) == {"config"} and isinstance(kwargs.get("config"), dict) else kwargs
    several = isinstance(config.get(GROUP), dict) or "policies" in config
    try:
        place = environment(env, inside or {}, several)
        return Experiment(name, run, env, config, experiment, source, place, team_of(config, place, run))
    except UserError as error:
        raise UserError(f"{source}, {name}: {error}") from None


class Experiment(Translation):
    """The translation of one experiment on one environment."""

    def __init__(
        self,
        name: str,
        run: str,
        env: str,
        config: dict[str, Any],
        experiment: dict[str, Any],
        source: str,
        place: Environment,
        team: Team | None,
    ):
        """env: RLlib's name of the environment `place`."""
        super().__init__(name, run, config, experiment, source, place, team)
        kwargs = config.get("env_config")
        self._env(env, kwargs if isinstance(kwargs, dict) else {})
        if self.core == "cql" and self.discrete:
            raise UserError(
                f"RLlib's CQL is for continuous actions, and {self.made.env} has choices; algo=discrete_cql learns them"
            )
        steps_of_agents(self)
        self._machinery()
        curiosity(self)
        self._batches()
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
        self._losses()
        self._sampling()
        agents(self, lambda other: Experiment(name, run, env, other, {}, source, place, team_of(other, place, run)))
        data(self)
        estimates(self)
        self._evaluation()
        self._optimizer()
        self._the_rest()
        self._around({key: value for key, value in experiment.items() if key not in PARTS})
        self._end()
        self.list_the_rest()
        leave_out(self.made, self.outer, self.core)

    # Environment

    def _env(self, env: str, kwargs: dict[str, Any]) -> None:
        self.made.env = self.env.name
        self.made.lines.append(Line("env", env, "mapped", f"env={self.made.env}", self.env.why))
        self.taken.add("env")
        self.discrete = True
        if self.atari:
            name = env.removeprefix("ale_py:")
            if name.startswith("ALE/") and name.endswith("-v5") and "repeat_action_probability" not in kwargs:
                self.set("env.sticky_actions", 0.25, why=f"{name} has them")
            for key in kwargs:
                self._atari_option(f"env_config.{key}", kwargs[key])
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
        inside = self.env.inside or (kwargs["config"] if nested else kwargs)
        if inside:
            self.made.values["env.kwargs"] = inside
            self.reasons["env.kwargs"] = "RLlib's default"
        if kwargs and inside:
            self.made.lines.append(Line("env_config", kwargs, "mapped", f"env.kwargs={flow(inside)}", ""))

    def _atari_option(self, key: str, value: Any) -> None:
        option = key.partition(".")[2]
        if option == "full_action_space":
            self.set("env.full_action_space", bool(value), key)
        elif option == "repeat_action_probability":
            self.set("env.sticky_actions", float(value), key)
        elif option == "frameskip":
            self.say(key, "dropped", why="frame skipping is rlrun's own: env.frame_skip=4")
        else:
            self.say(key, "not mapped", why="Atari games have no such option here")

    def _machinery(self) -> None:
        unseen = machinery()
        for key in [*self.given, *self.defaults]:
            plain = key.rsplit(".", 1)[-1] if key.split(".")[0] in NESTED else key
            if self.offline and plain in SAMPLERS:
                self.say(key, "dropped", why="nothing is sampled; data.readers= says how many threads read the data")
            learns = (plain in ("num_workers", "num_env_runners") and self.core in ("a3c", "ddppo")) or (
                plain in (*SAMPLERS, "num_rollout_workers") and self.core in META
            )
            if plain in unseen and not learns:
                self.say(key, "dropped", why=unseen[plain])

    # Numbers of rows and environments

    def _batches(self) -> None:
        at = self.inner
        workers = int(self.get("num_workers", "num_env_runners", default=0))
        per_worker = int(self.get("num_envs_per_worker", "num_envs_per_env_runner", default=1))
        envs = max(workers, 1) * per_worker
        lengths = LENGTHS
        length, batch = self.get(*lengths), self.get("train_batch_size", "train_batch_size_per_learner")
        batches = ("train_batch_size", "train_batch_size_per_learner")
        learners = int(self.get("num_learners", default=0) or 0)
        if "train_batch_size_per_learner" in self.given and learners > 1:
            batch = float(batch) * learners
        if self.core in IMITATION and self.offline:
            self._drawn(int(batch), batches)
        elif self.core in ("pg", "a2c", "ppo", "marwil", *BANDITS):
            rows, columns = self._whole(length, float(batch), envs)
            total = rows * columns
            why = f"of {columns} environments" + (f", where RLlib's {envs} take turns" if columns > envs else "")
            self.set(f"{at}.fragment_length", rows, *lengths, why=why)
            self.set(
                f"{at}.batch_size",
                total,
                *batches,
                why="" if total == batch else f"RLlib rounds {batch} up to whole fragments of all {envs} environments",
            )
            if self.core == "ppo":
                self._minibatch(total, max(learners, 1))
            if self.core == "a2c":
                self._microbatch(rows, total)
        elif self.core == "ddppo":
            workers, rows = max(workers, 1), int(length)
            one = rows * per_worker  # rows of one worker
            rounds = max(1, math.ceil(float(batch) / one))
            self.set(f"{at}.fragment_length", rows * rounds, *lengths)
            self.set(f"{at}.batch_size", one * rounds * workers, *batches, why=f"of all {workers} workers together")
            self._minibatch(one * rounds * workers, workers)
            self.set("resources.num_learners", workers, "num_workers", "num_env_runners", why="every worker learns")
        elif self.core == "a3c":
            self.set(f"{at}.fragment_length", int(length), *lengths)
            self.set(f"{at}.batch_size", int(length) * per_worker, *batches, why="of one gradient")
            self.set(
                "resources.num_learners",
                max(workers, 1),
                "num_workers",
                "num_env_runners",
                why="processes that apply gradients",
            )
        elif self.core in ("impala", "appo"):
            rows = 50 if length == "auto" else int(length)
            total = max(rows, round(float(batch) / rows) * rows)
            self.set(f"{at}.fragment_length", rows, *lengths)
            self.set(
                f"{at}.batch_size", total, *batches, why="" if total == batch else f"whole fragments of {rows} rows"
            )
        elif self.core not in (*EVOLUTION, *DREAMING, *SEARCHING, *META):
            steps = self.get("n_step", default=1)
            automatic = max(steps) if isinstance(steps, list) else steps  # as RLlib's `auto`
            sequence = sequence_of(self) if self.core in JOINT else 1
            rows = int(automatic if length == "auto" else length)
            replayed(self, rows, int(batch), envs, lengths, batches, sequence)
        mode = self.get("batch_mode")
        if self.core in (*DREAMING, *SEARCHING, *META):
            return
        if self.core in EVOLUTION:
            self.say("batch_mode", "dropped", why="whole episodes are played")
        elif self.offline:
            self.say("batch_mode", "dropped", why="data are whole episodes already")
        elif self.core in ("pg", "a2c", "ppo", "ddppo", "marwil", *BANDITS):
            self.set("runner.complete_episodes", mode == "complete_episodes", "batch_mode")
            if self.core == "ddppo" and mode == "complete_episodes":
                self.set(f"{at}.cut_share", 1.0, why="episodes that are cut are not complete")
        elif mode == "complete_episodes" and self.core in ("impala", "appo"):
            self.say(
                "batch_mode",
                "not mapped",
                why=(
                    "fragments that cut an episode bootstrap from the value; only on-policy runners play whole episodes"
                ),
            )
        else:
            self.say("batch_mode", "dropped", why="fragments are cut where they are full, or folded by a replay")

    def _drawn(self, batch: int, batches: tuple[str, ...]) -> None:
        """Sets the rows of a batch that is drawn from data: single rows or, with memory, whole sequences."""
        sequence = int(self.get("model.max_seq_len")) if any(memories(self)) else 1
        total = max(1, round(batch / sequence)) * sequence
        why = "" if total == batch else f"whole sequences of {sequence} rows"
        self.set(f"{self.inner}.batch_size", total, *batches, why=why)
        for key in LENGTHS:
            self.say(key, "dropped", why="rows are drawn one by one from the data, or sequences by model.max_seq_len")

    def _whole(self, length: Any, batch: float, envs: int) -> tuple[int, int]:
        """Returns the rows of a fragment and the number of environments that make a batch.

        RLlib collects rounds of fragments from all its environments until it has enough rows. The length of a fragment
        is the horizon of its returns, so that more rounds become more environments here. Whole episodes have no such
        horizon: for them more rounds become more rows.
        """
        if length == "auto":
            return math.ceil(batch / envs), envs
        rounds = math.ceil(batch / (int(length) * envs))
        if self.get("batch_mode") == "complete_episodes":
            return int(length) * rounds, envs
        return int(length), envs * rounds

    def _minibatch(self, total: int, workers: int) -> None:
        keys = ("sgd_minibatch_size", "minibatch_size")

        self.minibatch_unit = unit = sequence_length(self) * workers

        def fitting(rows: int) -> int:
            """Returns the largest size up to `rows` that divides the batch, that the workers share evenly, and that
            consists of whole sequences where there is a memory; the smallest such size if all are larger."""
            most = min(max(rows, unit), total)
            return next((size for size in range(most, 0, -1) if total % size == 0 and size % unit == 0), total)

        several = next(
            (options_of(self.given[key]) for key in keys if options_of(self.given.get(key)) is not None), None
        )
        target, share = f"{self.inner}.minibatch_size", 1 if self.team is None else self.team.share
        if several is not None:
            self.made.grid[target] = [fitting(max(1, int(one) * workers // share)) for one in several]
        self.minibatch_rows = int(self.get(*reversed(keys))) * workers
        asked = max(1, self.minibatch_rows // share)
        why = "of all workers together" if workers > 1 else ""
        why = f"env steps: RLlib counts rows, of which {share} agents have {share} in an env step" if share > 1 else why
        if fitting(asked) != asked:
            why = f"{asked} does not divide the batch of {total}"
            why = why if total % asked else f"whole sequences of {sequence_length(self)} rows"
        self.set(target, fitting(asked), *keys, why=why)

    def _microbatch(self, rows: int, total: int) -> None:
        asked = self.get("microbatch_size")
        if asked:
            size = next(
                size for size in range(rows * max(1, round(int(asked) / rows)), total + 1, rows) if total % size == 0
            )
            self.set(
                f"{self.inner}.microbatch_size",
                size,
                "microbatch_size",
                why="" if size == asked else "whole fragments that divide the batch",
            )

    # Losses and optimisers

    def _losses(self) -> None:
        """Sets what depends on several options of the losses of policies and values."""
        at = self.inner
        if self.core in ("ppo", "ddppo"):
            self.set(f"{at}.normalize_advantage", "batch", why="as RLlib does")
        if self.core in ("a2c", "a3c", "pg"):
            self.set(f"{at}.normalize_advantage", False, why="as RLlib does")
        if self.core == "pg":
            self.set(f"{at}.baseline", False, why="RLlib's PG has no critic")
            self.set(f"{at}.entropy_coef", 0.0, "entropy_coeff", why="RLlib's PG has no such term")
        if self.core in ("ppo", "ddppo", "a2c", "a3c", "pg"):
            self.set(f"{at}.optimizer.kind", "adam", why="RLlib's optimiser")
            self.set(f"{at}.optimizer.epsilon", 1.0e-8, why="RLlib's optimiser")
        if self.core in IMITATION:
            self._imitation()
        if self.core in WITH_VALUE:
            self._lambda()
            self._entropy()
        self._bound()
        if self.core == "impala":
            self.set(f"{at}.loss_reduction", "sum", why="RLlib sums over the rows of a batch")
        if self.core in ("ppo", "ddppo", "appo"):
            self._divergence()
        if self.core == "appo":
            self._target()
        if self.core in ("impala", "appo"):
            rmsprop = self.get("opt_type", default="adam") == "rmsprop"
            # RLlib's own with framework=torch is PyTorch's; before 2.40 its default was TensorFlow.
            torch = self.era == "new" or self.given.get("framework") == "torch" or self.given.get("use_pytorch") is True
            kind = ("rmsprop" if torch else "rmsprop_tf") if rmsprop else "adam"
            why = "" if torch else "TensorFlow's, which RLlib had where framework is not torch"
            self.set(f"{at}.optimizer.kind", kind, "opt_type", why=why if rmsprop else "RLlib's optimiser")
            for key, default in (("epsilon", 0.1), ("decay", 0.99), ("momentum", 0.0)):
                if rmsprop:
                    why = "" if key in self.given else "RLlib's default for RMSProp"
                    self.set(f"{at}.optimizer.{key}", float(self.get(key, default=default)), key, why=why)
                else:
                    self.say(key, "dropped", why="RLlib's applies to RMSProp alone; the optimiser is Adam")
            if not rmsprop:
                self.set(f"{at}.optimizer.epsilon", 1.0e-8, why="RLlib's optimiser")
        self._value()

    def _imitation(self) -> None:
        """Lists the options of BC and MARWIL that depend on the actions, and on where the rows come from."""
        if self.discrete:
            self.say("bc_logstd_coeff", "dropped", why="actions are choices, which have no standard deviation")
        if self.offline:
            return
        why = "every row is learnt once, when it is new; RLlib up to 1.x drew from the rows that it kept"
        self.say("replay_buffer_size", "not mapped", why=why)
        starts = "dropped" if not self.given.get("learning_starts") else "not mapped"
        self.say("learning_starts", starts, why="the first full batch is learnt")  # type: ignore[arg-type]

    def _lambda(self) -> None:
        keys = ("lambda", "lambda_")
        critic = self.get("use_critic", default=True)
        if self.core in ("ppo", "ddppo", "appo"):
            gae = self.core != "appo" and self.get("use_gae", default=True)
            if critic is False and gae:
                self.say(
                    "use_critic", "not mapped", why="RLlib refuses GAE without a critic: use_gae must be false too"
                )
            elif critic is False and self.core == "appo" and self.get("vtrace", default=True):
                self.say("use_critic", "not mapped", why="V-trace needs values: vtrace must be false too")
            elif "use_critic" in self.given:
                self.set(f"{self.inner}.use_critic", bool(critic), "use_critic")
        if self.get("use_gae", default=True) is False:
            self.set(f"{self.inner}.lambda_", 1.0, "use_gae", *keys, why="without GAE returns run to the last row")
        self.say("use_gae", "dropped", why=f"true: {self.inner}.lambda_ is GAE's")

    def _entropy(self) -> None:
        """Sets the weight of the entropy. Up to RLlib 0.6 it was added to the loss of A3C and IMPALA: -0.01 was a bonus
        there, and since 0.7 RLlib refuses it."""
        keys = [key for key in ("entropy_coeff_schedule", "entropy_coeff") if self.given.get(key) is not None]
        if not keys or options_of(self.given[keys[0]]) is not None:
            return
        value = self.given[keys[0]]
        weights = [point[1] for point in value] if isinstance(value, list) else [value]
        why = ""
        if any(weight < 0 for weight in weights):
            if self.core in ("ppo", "ddppo"):
                why = "a negative weight penalises entropy, as it did in RLlib"
            else:
                value = [[t, -weight] for t, weight in value] if isinstance(value, list) else -value
                why = "up to RLlib 0.6 the weight was added to the loss, so that a negative one was a bonus"
        self.set(f"{self.inner}.entropy_coef", value, keys[0], why=why)
        if len(keys) > 1:
            self.say(keys[1], "dropped", why="entropy_coeff_schedule wins")

    def _bound(self) -> None:
        """Sets the bound on the gradient. RLlib's A3C sums its loss over the rows of a batch and rlrun takes the mean,
        which matters for the bound."""
        if self.core in (*OFF_POLICY, *EVOLUTION):
            return  # continuous.py sets it
        target, keys = f"{self.inner}.max_grad_norm", ("grad_clip", "grad_norm_clipping")
        if any(options_of(self.given.get(key)) is not None for key in keys):
            return
        bound = self.get(*keys)
        by = str(self.given.get("grad_clip_by", "global_norm"))
        if by != "global_norm":
            for key in ("grad_clip_by", *keys):
                self.say(key, "not mapped", why=f"the bound is one on the norm of the whole gradient, not on {by}")
            self.set(target, 0.0, why=f"RLlib's bound by {by} has no counterpart")
        elif self.core in ("a2c", "a3c"):
            mean = float(bound or 0.0) / self.made.values[f"{self.inner}.batch_size"]
            why = (
                "divided by the batch, because RLlib's loss is a sum and rlrun's a mean" if bound else "null: no bound"
            )
            self.set(target, float(f"{mean:.4g}"), *keys, why=why)
        elif bound is None:
            self.set(target, 0.0, *keys, why="RLlib has no bound where grad_clip is null")
        else:
            self.set(target, rounded(float(bound)), *keys)
        self.say("grad_clip_by", "dropped", why="global_norm is the only kind here")

    def _divergence(self) -> None:
        """Sets the weight of the KL divergence, which RLlib's PPO has unless use_kl_loss is false."""
        used = bool(self.get("use_kl_loss", default=True))
        if not used:
            keys = ("use_kl_loss", *(["kl_coeff"] if "kl_coeff" in self.given else []))
            self.set(f"{self.inner}.kl_coef", 0.0, *keys, why="use_kl_loss is false")
            self.taken.add("kl_coeff")
            self.taken.add("kl_coeff")
        elif options_of(self.given.get("kl_coeff")) is None:
            self.set(f"{self.inner}.kl_coef", float(self.get("kl_coeff") or 0.0), "kl_coeff")
        self.say("use_kl_loss", "dropped", why=f"true: {self.inner}.kl_coef is kl_coeff")

    def _target(self) -> None:
        """Sets how often APPO's target policy follows, which rlrun counts in updates.

        RLlib's target_network_update_freq n counts buffers of N batches that are each learnt K times, so that it stands
        for n x N x K updates (Luo et al. 2020, section 4.1.1). The older target_update_frequency counts rounds of
        num_sgd_iter minibatches. Without either, the target follows every update."""
        target = f"{self.inner}.target_update_interval"
        batches = int(self.get("circular_buffer_num_batches", "minibatch_buffer_size", default=1))
        passes = int(self.get("circular_buffer_iterations_per_batch", "num_sgd_iter", "num_epochs", default=1))
        buffers, rounds = self.get("target_network_update_freq"), self.given.get("target_update_frequency")
        if buffers is not None:
            updates = max(1, round(float(buffers) * batches * passes))
            why = f"updates: {buffers:g} x batches of a buffer ({batches}) x passes ({passes})"
            self.set(target, updates, "target_network_update_freq", why=why)
        elif rounds is not None:
            updates = max(1, round(float(rounds) * passes))
            self.set(target, updates, "target_update_frequency", why=f"updates: {rounds:g} x passes ({passes})")
        else:
            self.set(target, 1, why="RLlib's target policy follows after every update")
        self.say("target_update_frequency", "dropped", why="target_network_update_freq wins")

    def _value(self) -> None:
        """Sets the bound on the value's loss of PPO, and IMPALA's own optimiser for the value."""
        if self.core in ("ppo", "ddppo"):
            at, bound = self.inner, self.get("vf_clip_param")
            if self.made.values.get(f"{at}.use_critic") is False:
                self.say("vf_clip_param", "dropped", why="no values are learnt")
                bound = 0.0
            if options_of(self.given.get("vf_clip_param")) is None:
                old = self.era == "old"
                why = "up to RLlib 0.8 it bounds a value's change, later the squared error" if old else ""
                self.set(f"{at}.value_{'clip' if old else 'loss_clip'}", float(bound or 0.0), "vf_clip_param", why=why)
                other = "loss_clip" if old else "clip"
                self.set(f"{at}.value_{other}", 0.0, why="RLlib's PPO has one bound on the value")
        if self.core in ("impala", "appo"):
            if self.get("_separate_vf_optimizer", default=False):
                rate = self.get("_lr_vf", default=0.0005)
                self.set(f"{self.inner}.value_lr", rate, "_separate_vf_optimizer", "_lr_vf")
            self.say("_separate_vf_optimizer", "dropped", why="false: algo.value_lr=null")
            self.say("_lr_vf", "dropped", why="_separate_vf_optimizer is false")

    # Everything else

    def _evaluation(self) -> None:
        """Lists RLlib's options of evaluation, which is counted in iterations there and in env steps here."""
        for key in [key for key in self.given if key.startswith("evaluation_config.")]:
            value = self.given[key]
            if key.endswith(".explore") and isinstance(value, bool):
                self.set("eval.greedy", not value, key)
            else:
                self.say(key, "not mapped", why="evaluation has the options of training; eval.greedy concerns it alone")
        unit = self.given.get("evaluation_duration_unit", "episodes")
        counted = "eval.env_steps" if unit == "timesteps" else "eval.episodes"
        games = 10
        for key in ("evaluation_duration", "evaluation_num_episodes"):
            number = self.given.get(key)
            if isinstance(number, int | float):
                self.set(counted, int(number), key, "evaluation_duration_unit")
                games = int(number)
            elif number is not None:
                self.say(key, "not mapped", why="an evaluation has a number of games or of env steps")
        self.say("evaluation_duration_unit", "dropped", why="evaluation_duration is not given")
        self._evaluators(games if unit == "episodes" else None)
        interval, steps = self.given.get("evaluation_interval"), self._iteration()
        if interval and steps:
            why = f"an iteration of RLlib's loop has {steps} env steps"
            self.set("eval.every", int(interval) * steps, "evaluation_interval", why=why)
        elif interval and self.offline:
            self.set("eval.every", LOOK_EVERY, why="the file asks for evaluations, which alone show what was learnt")
            why = f"an iteration of RLlib's loop has no fixed number of rows here; eval.every={LOOK_EVERY} counts rows"
            self.say("evaluation_interval", "not mapped", why=why)
        elif interval:
            why = "iterations of RLlib's loop last for a time here; eval.every= counts env steps and is off by default"
            self.say("evaluation_interval", "not mapped", why=why)
        if "eval.estimate.methods" in self.made.values and "eval.every" not in self.made.values:
            self.set("eval.every", LOOK_EVERY, why="RLlib estimates in every iteration of its loop")

    def _iteration(self) -> int | None:
        """Returns the env steps of an iteration of RLlib's loop, or None if a clock ends it."""
        if self.core in FROM_DATA:
            return self._iteration_of_data()
        for key in ("timesteps_per_iteration", "min_sample_timesteps_per_iteration"):
            if isinstance(self.given.get(key), int) and self.given[key] > 0:
                return self.given[key]
        if self.outer in (None, "multi") and self.core in ("ppo", "ddppo", "a2c", "pg"):
            batch = self.made.values.get(f"{self.inner}.batch_size")
            return batch if isinstance(batch, int) else None
        return ITERATIONS.get(self.core) if self.outer in (None, "multi") else None

    def _iteration_of_data(self) -> int | None:
        """Returns the rows that RLlib learns in an iteration, or None if a clock or the size of the data ends it.

        RLlib's CQL inherits from SAC that an iteration lasts for a second at least."""
        updates = self.given.get("dataset_num_iters_per_learner", 1 if self.era != "new" else None)
        clock = any(self.given.get(key) for key in ("min_time_s_per_iteration", "min_time_s_per_reporting"))
        if self.core == "cql" or clock or not isinstance(updates, int) or updates < 1:
            return None
        return updates * int(self.made.values[f"{self.inner}.batch_size"])

    def _evaluators(self, games: int | None) -> None:
        """Sets who evaluates. games: those of an evaluation; None: env steps are counted."""
        keys = ("evaluation_num_workers", "evaluation_num_env_runners")
        asked = next((int(self.given[key]) for key in keys if isinstance(self.given.get(key), int | float)), 0)
        workers = asked if games is None else min(asked, games)
        why = f"one for each of {games} games" if workers < asked else ""
        if any(key in self.given for key in keys):
            self.set("eval.workers", workers, *keys, why=why)
        parallel = "evaluation_parallel_to_training"
        if workers:
            self.set("eval.parallel", bool(self.given.get(parallel, False)), parallel, why="RLlib's default is false")
        lost = "not mapped" if self.given.get(parallel) else "dropped"
        self.say(parallel, lost, why="the learner's process evaluates, and training waits for it")  # type: ignore[arg-type]
        self.say("enable_async_evaluation", "dropped", why="eval.parallel=true never waits for an evaluation")
        for key in ("custom_evaluation_function", "custom_eval_function"):
            self.say(key, "not mapped", why="eval.function=my_package.module:Name names a subclass of rlrun.Evaluation")

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
            "clip_rewards": lambda value: "sign" if value is True else "none" if value is False else float(value),
        }
        if self.core in ("ppo", "ddppo"):
            special["vf_loss_coeff"] = lambda value: 2.0 * float(value)
        if self.given.get("lr_schedule") is not None and self.core not in OFF_POLICY:
            self.set(f"{self.inner}.lr", self.given["lr_schedule"], "lr_schedule")
            self.say("lr", "dropped", why="lr_schedule wins")
        if self.given.get("horizon") and self.atari:
            frames = int(self.given["horizon"]) * 4
            self.set("env.max_frames", frames, "horizon", why="4 frames for every env step")
        pending = {**self.given, **{key: value for key, value in self.defaults.items() if key not in self.given}}
        for key, value in pending.items():
            if key in self.taken:
                continue
            plain = key.rsplit(".", 1)[-1] if key.split(".")[0] in NESTED else key
            row = self.table.get(key, self.table.get(plain))
            if value in ({}, None):
                self.say(key, "dropped", why="{}: nothing is asked for" if value == {} else OFF)
            elif row is not None and row["rlrun"] in self.made.values and key not in self.given:
                self.taken.add(key)  # a default of RLlib's for an option that the file has under another name
            elif row is None:
                self.say(key, "not mapped", why=f"rlrun knows no such option of {self.run}")
            elif row["rlrun"] is None or row["rlrun"] == "callbacks":
                lost = "same" in row and value != row["same"]
                self.say(key, "not mapped" if lost else "dropped", why=row.get("why", ""))
            elif options_of(value) is not None:
                self._grid(key, row["rlrun"], [special.get(plain, _plain)(one) for one in options_of(value) or []])
            else:
                try:
                    self.set(row["rlrun"], special.get(plain, _plain)(value), key)
                except (KeyError, ValueError, TypeError):
                    self.say(key, "not mapped", why=f"{row['rlrun']} cannot be {value!r}")

    def _grid(self, key: str, target: str, values: list[Any]) -> None:
        self.made.grid[target] = values
        if not self.set(target, values[0], key, why=f"the first of {len(values)}; the file's head has the sweep"):
            del self.made.grid[target]

    def _around(self, others: dict[str, Any]) -> None:
        """Lists what stands beside `config` in the experiment."""
        known = around()
        for key, value in others.items():
            how, became, why = known.get(key, ("not mapped", "", "rlrun knows no such part of an experiment"))
            if key == "num_samples" and "seed" in self.made.grid:
                why = "the file has a grid of seeds of its own"
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

    def _end(self) -> None:
        """What ends the run, and what it is to reach."""
        reached: float | None = None
        steps: float | None = None
        for where, criteria in (("stop", self.stop), ("pass_criteria", self.passes)):
            for key, value in criteria.items():
                last, name = key.rsplit("/", 1)[-1], f"{where}.{key}"
                how, became, why = "not mapped", "", "rlrun ends at a return, a number of env steps or a time"
                if last in MEANS and key.startswith("evaluation/"):
                    shows = "stop.return_mean looks at training games, so that the run goes on to its env_steps"
                    if "eval.every" not in self.made.values:
                        self.set("eval.every", LOOK_EVERY, why="the file looks at evaluations")
                    why = f"eval.every={self.made.values['eval.every']} shows it; {shows}"
                    if self.offline:
                        why = why.replace("stop.return_mean looks at training games", "training plays no games")
                elif any(part in key for part in PARTIAL):
                    why = "stop.return_mean looks at the sum over all agents; sample/return/AGENT shows each one's"
                elif last in MEANS and self.offline:
                    why = "no games are played in training; eval.every= shows the return of evaluations"
                elif last in MEANS:
                    reached = float(value)
                    self.made.values["stop.return_mean"] = reached
                    why = "" if self.team is None else "the sum over all agents, as in RLlib"
                    how, became = "mapped", f"stop.return_mean={flow(reached)}"
                elif last in STEPS and self._agents_of(last) is None:
                    why = f"rlrun counts env steps, and how many agents {self.env.name} has is unknown here"
                elif last in STEPS:
                    number = self._agents_of(last) or 1
                    steps = float(math.ceil(float(value) / number / self.repeat))
                    why = "" if number == 1 else f"agent steps, of which an env step has {number}"
                    why = why if self.repeat == 1 else f"frames, of which an env step has {self.repeat}"
                    why = self._rows_learnt(steps) if self.offline else why
                    how, became = "mapped", f"env_steps={flow(rounded(steps))}"
                elif last == "time_total_s":
                    self.made.values["stop.wall_sec"] = float(value)
                    how, became, why = "mapped", f"stop.wall_sec={flow(float(value))}", ""
                elif last == "training_iteration" and self.core in META and steps is None:
                    each = rows_of_iteration(self)
                    steps = float(value) * each
                    why = f"iterations of {each:,} env steps, where episodes are as long as a fragment"
                    how, became = "mapped", f"env_steps={flow(rounded(steps))}"
                elif last == "training_iteration":
                    how, why = "dropped", "iterations of RLlib's loop have no fixed number of env steps"
                self.made.lines.append(Line(name, value, how, became, why))  # type: ignore[arg-type]
        why = "" if steps is not None else "the file names no number of env steps; RLlib's Atari tables end there"
        self.set("env_steps", rounded(steps if steps is not None else FILES_END), why=why)
        if reached is not None and steps is not None:
            self.made.values["expected"] = {
                "return": reached,
                "env_steps": rounded(steps),
                "metric": "last100",
                "seeds": 1,
                "source": f"RLlib {self.source}",
            }
            self.reasons["expected"] = "what the file stops at"

    def _rows_learnt(self, rows: float) -> str:
        """Says what a number of env steps means for an algorithm that learns from data alone."""
        updates, clones = rows / self.made.values[f"{self.inner}.batch_size"], self.made.values.get("algo.bc_iters", 0)
        cloned = f"; all of these {updates:g} updates clone, because bc_iters is {clones}" if updates <= clones else ""
        return f"env steps count the rows that are learnt, because nothing is played{cloned}"

    def _agents_of(self, counter: str) -> int | None:
        """Returns the agents whose steps a counter of RLlib's counts: 1 for env steps, None if it is unknown."""
        unit = told(self.config, "count_steps_by")[1]
        agents_counted = counter in AGENT_STEPS or (counter == "timesteps_total" and unit == "agent_steps")
        return self.acting if agents_counted else 1


def _plain(value: Any) -> Any:
    return rounded(value) if isinstance(value, float) and abs(value) < 1e15 else value
