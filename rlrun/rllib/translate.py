"""Translates RLlib's tuned experiments (0.5 to 2.x) to rlrun's options.

Names come from options/ (the tables of `rlrun explain`) and RLlib's defaults from defaults.yaml. This module computes
what depends on several options at once: fragments, schedules and units.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from rlrun.core.errors import UserError, closest
from rlrun.envs.names import family_of, resolve
from rlrun.rllib.continuous import continuous
from rlrun.rllib.q_learning import q_learning, replayed
from rlrun.rllib.translation import RUNS, Translation
from rlrun.rllib.yaml_files import NESTED, How, Imported, Line, flow, machinery, numbers, options_of, rounded, slug

LATER = ("QMIX", "MADDPG", "BC", "MARWIL", "CQL", "DREAMER", "DREAMERV3", "MAML", "MBMPO", "ALPHAZERO", "SLATEQ")
NEWER = {
    "Pendulum-v0": "Pendulum-v1",
    **{
        f"{name}-v{old}": f"{name}-v5"
        for name in (
            "HalfCheetah",
            "Hopper",
            "Walker2d",
            "Humanoid",
            "Ant",
            "Swimmer",
            "InvertedPendulum",
            "InvertedDoublePendulum",
            "Reacher",
        )
        for old in (1, 2, 3, 4)
    },
}
EXAMPLES = {
    "StatelessCartPole": "StatelessCartPole-v0",
    "RepeatAfterMeEnv": "rlrun/RepeatAfterMe-v0",
    "ParametricActionsCartPole": "ParametricActionsCartPole-v0",
}
OWN_NETS = ("DDPG", "TD3", "APEX_DDPG", "SAC", "ES", "ARS")  # algorithms whose hidden layers are not the model's
FILES_END = 1.0e7  # env steps of a file that names no end; RLlib's Atari tables end there


def translate(name: str, experiment: dict[str, Any], source: str) -> list[Imported]:
    """Returns one tuned file for each environment of an experiment.

    Raises UserError if rlrun does not have the algorithm or the environment, or if the experiment names none.
    """
    run = str(experiment["run"])
    if run not in RUNS:
        later = (
            f"rlrun is to have {run} in a later release"
            if run.upper() in LATER
            else f"rlrun has no {run}.{closest(run, RUNS)}"
        )
        raise UserError(f"{source}, {name}: {later}")
    config = numbers(experiment.get("config") or {})
    stop = numbers(experiment.get("stop") or {})
    passes = numbers(experiment.get("pass_criteria") or {})
    env = experiment.get("env", config.get("env"))
    if env is None:
        raise UserError(f"{source}, {name}: it names no environment")
    envs = options_of(env) or [env]
    return [
        Experiment(name if len(envs) == 1 else f"{name}-{slug(one)}", run, str(one), config, stop, passes, source).made
        for one in envs
    ]


class Experiment(Translation):
    """The translation of one experiment on one environment."""

    def __init__(self, name: str, run: str, env: str, config: dict, stop: dict, passes: dict, source: str):
        super().__init__(name, run, config, stop, passes, source)
        self._env(env, config.get("env_config") or {})
        self._machinery()
        self._batches()
        q_learning(self)
        continuous(self)
        self._model()
        self._the_rest()
        self._end()

    # Environment

    def _env(self, env: str, kwargs: dict[str, Any]) -> None:
        name = env.removeprefix("ale_py:")
        self.atari = resolve(name) is not None
        self.taken.add("env")
        if self.atari:
            self.made.env = str(resolve(name))
            self.made.lines.append(Line("env", env, "mapped", f"env={self.made.env}", ""))
            if name.startswith("ALE/") and name.endswith("-v5") and "repeat_action_probability" not in kwargs:
                self.made.values["env.sticky_actions"] = 0.25
                self.made.lines.append(
                    Line("env", env, "default", "env.sticky_actions=0.25", "as the Gymnasium id means")
                )
            for key, value in kwargs.items():
                known = {
                    "frameskip": "frame skipping is rlrun's own: env.frame_skip=4",
                    "full_action_space": "",
                    "repeat_action_probability": "",
                }
                if key == "full_action_space":
                    self.set("env.full_action_space", bool(value))
                elif key == "repeat_action_probability":
                    self.set("env.sticky_actions", float(value))
                became = {
                    "full_action_space": "env.full_action_space",
                    "repeat_action_probability": "env.sticky_actions",
                }.get(key, "")
                how: How = "mapped" if became else "dropped" if key in known else "not mapped"
                self.made.lines.append(
                    Line(
                        f"env_config.{key}", value, how, f"{became}={flow(value)}" if became else "", known.get(key, "")
                    )
                )
            self.taken |= {f"env_config.{key}" for key in kwargs}
            return
        short = name.rsplit(".", 1)[-1]
        if short in EXAMPLES:
            self.made.env = EXAMPLES[short]
        elif "." in name and "-v" not in name:
            theirs = (
                f"{env} is an environment of RLlib's own examples, which rlrun does not have (--env names another one)"
            )
            raise UserError(f"{self.source}, {self.made.name}: {theirs}")
        else:
            self.made.env = NEWER.get(name, name)
            try:
                family_of(self.made.env)
            except UserError:
                theirs = f"Gymnasium has no {env} here (--env names another one, or my_package:{env})"
                raise UserError(f"{self.source}, {self.made.name}: {theirs}") from None
        why = (
            "a newer version, whose returns differ a little from the old one's"
            if self.made.env != name and short not in EXAMPLES
            else ""
        )
        self.made.lines.append(Line("env", env, "mapped", f"env={self.made.env}", why))
        inside = (
            kwargs.get("config") if set(kwargs) == {"config"} and isinstance(kwargs.get("config"), dict) else kwargs
        )
        if inside:
            self.made.values["env.kwargs"] = inside
            self.made.lines.append(Line("env_config", kwargs, "mapped", f"env.kwargs={flow(inside)}", ""))
        self.taken |= {"env_config", *(f"env_config.{key}" for key in kwargs)}

    def _machinery(self) -> None:
        unseen = machinery()
        for key in [*self.given, *self.defaults]:
            plain = key.rsplit(".", 1)[-1] if key.split(".")[0] in NESTED else key
            if plain in unseen and not (plain in ("num_workers", "num_env_runners") and self.algo in ("a3c", "ddppo")):
                self.say(key, "dropped", why=unseen[plain])

    # Numbers of rows and environments

    def _batches(self) -> None:
        workers = int(self.get("num_workers", "num_env_runners", default=0))
        per_worker = int(self.get("num_envs_per_worker", "num_envs_per_env_runner", default=1))
        envs = max(workers, 1) * per_worker
        lengths = ("rollout_fragment_length", "sample_batch_size")
        length, batch = self.get(*lengths), self.get("train_batch_size", "train_batch_size_per_learner")
        batches = ("train_batch_size", "train_batch_size_per_learner")
        if (
            self.run == "PPO"
            and not any(key in self.given for key in lengths)
            and {"num_env_runners", "train_batch_size_per_learner"} & self.given.keys()
        ):
            length = "auto"  # RLlib's default since 2.0
        if self.algo in ("pg", "a2c", "ppo"):
            rows, columns = self._whole(length, float(batch), envs)
            total = rows * columns
            why = f"of {columns} environments" + (f", where RLlib's {envs} take turns" if columns > envs else "")
            self.set("algo.fragment_length", rows, *lengths, why=why)
            self.set(
                "algo.batch_size",
                total,
                *batches,
                why="" if total == batch else f"RLlib rounds {batch} up to whole fragments of all {envs} environments",
            )
            if self.algo == "ppo":
                self._minibatch(total, 1)
            self._microbatch(rows, total)
        elif self.algo == "ddppo":
            workers, rows = max(workers, 1), int(length)
            one = rows * per_worker  # rows of one worker
            rounds = max(1, math.ceil(float(batch) / one))
            self.set("algo.fragment_length", rows * rounds, *lengths)
            self.set("algo.batch_size", one * rounds * workers, *batches, why=f"of all {workers} workers together")
            self._minibatch(one * rounds * workers, workers)
            self.set("resources.num_learners", workers, "num_workers", "num_env_runners", why="every worker learns")
        elif self.algo == "a3c":
            self.set("algo.fragment_length", int(length), *lengths)
            self.set("algo.batch_size", int(length) * per_worker, *batches, why="of one gradient")
            self.set(
                "resources.num_learners",
                max(workers, 1),
                "num_workers",
                "num_env_runners",
                why="processes that apply gradients",
            )
        elif self.algo in ("impala", "appo"):
            rows = 50 if length == "auto" else int(length)
            total = max(rows, round(float(batch) / rows) * rows)
            self.set("algo.fragment_length", rows, *lengths)
            self.set(
                "algo.batch_size", total, *batches, why="" if total == batch else f"whole fragments of {rows} rows"
            )
        elif self.algo not in ("es", "ars"):
            replayed(self, int(4 if length == "auto" else length), int(batch), envs, lengths, batches)
        mode = self.get("batch_mode")
        if self.algo in ("es", "ars"):
            self.say("batch_mode", "dropped", why="whole episodes are played")
        elif self.algo in ("pg", "a2c", "ppo", "ddppo"):
            self.set("runner.complete_episodes", mode == "complete_episodes", "batch_mode")
        elif mode == "complete_episodes" and self.algo in ("impala", "appo"):
            self.say(
                "batch_mode",
                "not mapped",
                why=(
                    "fragments that cut an episode bootstrap from the value; only on-policy runners play whole episodes"
                ),
            )
        else:
            self.say("batch_mode", "dropped", why="fragments are cut where they are full, or folded by a replay")

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

        def fitting(rows: int) -> int:
            """Returns the largest size up to `rows` that divides the batch and that the workers share evenly."""
            return next(size for size in range(min(rows, total), 0, -1) if total % size == 0 and size % workers == 0)

        several = next(
            (options_of(self.given[key]) for key in keys if options_of(self.given.get(key)) is not None), None
        )
        if several is not None:
            self.made.grid["algo.minibatch_size"] = [fitting(int(one) * workers) for one in several]
        asked = int(self.get(*reversed(keys))) * workers
        why = "" if fitting(asked) == asked else f"{asked} does not divide the batch of {total}"
        self.set(
            "algo.minibatch_size",
            fitting(asked),
            *keys,
            why="of all workers together" if workers > 1 and not why else why,
        )

    def _microbatch(self, rows: int, total: int) -> None:
        asked = self.get("microbatch_size")
        if asked:
            size = next(
                size for size in range(rows * max(1, round(int(asked) / rows)), total + 1, rows) if total % size == 0
            )
            self.set(
                "algo.microbatch_size",
                size,
                "microbatch_size",
                why="" if size == asked else "whole fragments that divide the batch",
            )

    # Networks and the other options

    def _model(self) -> None:
        if self.atari:
            self.set("env.size", int(self.get("model.dim", "dim")), "model.dim", "dim")
            for key in ("model.fcnet_hiddens", "model.fcnet_activation"):
                self.say(key, "dropped", why="screens go through the Nature CNN")
        elif self.run in OWN_NETS:
            self.say("model.dim", "dropped", why="there are no screens")
            for key in ("model.fcnet_hiddens", "model.fcnet_activation"):
                self.say(key, "dropped", why="actor and critics have nets of their own")
        else:
            self.say("model.dim", "dropped", why="there are no screens")
            hidden, activation = self.get("model.fcnet_hiddens"), str(self.get("model.fcnet_activation"))
            if activation == "linear":
                why = "layers without a nonlinearity are one linear map, which the head is"
                self.set("model.hidden", [], "model.fcnet_hiddens", "model.fcnet_activation", why=why)
            else:
                self.set("model.hidden", [int(width) for width in hidden], "model.fcnet_hiddens")
                self.set("model.activation", {"swish": "silu"}.get(activation, activation), "model.fcnet_activation")
        if self.run in ("A2C", "A3C", "PPO", "DDPPO", "IMPALA", "APPO"):
            shared = bool(self.get("vf_share_layers", "model.vf_share_layers"))
            self.set("model.share_value", shared, "vf_share_layers", "model.vf_share_layers")
        else:
            for key in ("vf_share_layers", "model.vf_share_layers"):
                self.say(key, "dropped", why="there is no value head")
        if self.get("model.use_lstm", "use_lstm") or self.algo == "r2d2":
            self.made.values["model._choice"] = "lstm"
            self.say("model.use_lstm", "mapped", "model=lstm")
            self.set("model.memory.size", int(self.get("model.lstm_cell_size")), "model.lstm_cell_size")
            if self.algo in ("ppo", "ddppo"):
                rows, longest = self.made.values["algo.fragment_length"], int(self.get("model.max_seq_len"))
                size = next(length for length in range(min(longest, rows), 0, -1) if rows % length == 0)
                why = "" if size == longest else f"the longest up to {longest} that divides {rows} rows"
                self.set("algo.sequence_length", size, "model.max_seq_len", why=why)
            else:
                self.say("model.max_seq_len", "dropped", why="memory is trained through the whole fragment")
        else:
            for key in ("use_lstm", "lstm_cell_size", "max_seq_len"):
                self.say(f"model.{key}", "dropped", why="no memory is asked for")
        for key in ("conv_filters", "conv_activation", "post_fcnet_hiddens", "post_fcnet_activation"):
            self.say(
                f"model.{key}",
                "not mapped",
                why="the encoder is the Nature CNN, or one of your own: model.encoder=my_package.module:MyEncoder",
            )
        self.say(
            "model.free_log_std",
            "mapped",
            "model.action_distribution=gaussian",
            "its deviation is always free of the observation",
        )
        if self.run == "PPO" or self.run == "DDPPO":
            self.set("algo.normalize_advantage", "batch")
        if self.run in ("PPO", "DDPPO", "A2C", "A3C", "PG"):
            self.set("algo.optimizer.kind", "adam")
            self.set("algo.optimizer.epsilon", 1.0e-8)
        if self.run in OWN_NETS:
            self.say("model.vf_share_layers", "dropped", why="actor and critics share nothing")
        if self.run == "PG":
            self.set("algo.normalize_advantage", False)

    def _the_rest(self) -> None:
        special: dict[str, Callable[[Any], Any]] = {
            "observation_filter": lambda value: {
                "MeanStdFilter": "mean_std",
                "ConcurrentMeanStdFilter": "mean_std",
                "NoFilter": "none",
            }[value],
            "clip_rewards": lambda value: (
                "sign" if value is True else "none" if value in (False, None) else float(value)
            ),
            "opt_type": str,
            "framestack": lambda value: 4 if value else 1,
        }
        if self.algo in ("ppo", "ddppo"):
            special["vf_loss_coeff"] = lambda value: 2.0 * float(value)
        pending = {**self.given, **{key: value for key, value in self.defaults.items() if key not in self.given}}
        set_by_file: set[str] = set()
        if not self.get("use_kl_loss", default=True):
            self.set("algo.kl_coef", 0.0, "use_kl_loss", "kl_coeff")
        if self.get("use_gae") is False:
            self.set("algo.lambda_", 1.0, "use_gae", "lambda")
        if "grad_clip" not in pending and self.run in ("PPO", "DDPPO", "PG"):
            self.set("algo.max_grad_norm", 0.0)
        # RLlib sums the loss over the rows of a batch and rlrun takes the mean, which matters for the bound on the norm
        if self.algo in ("a2c", "a3c"):
            bound = float(self.get("grad_clip") or 0.0) / self.made.values["algo.batch_size"]
            self.set(
                "algo.max_grad_norm",
                float(f"{bound:.4g}"),
                "grad_clip",
                why="divided by the batch, because RLlib's loss is a sum and rlrun's a mean",
            )
        if self.algo in ("impala", "appo"):
            rmsprop = self.get("opt_type", default="adam") == "rmsprop"
            for key, default in (("epsilon", 0.1), ("decay", 0.99), ("momentum", 0.0)):
                if rmsprop:
                    self.set(f"algo.optimizer.{key}", float(self.get(key, default=default)), key)
                else:
                    self.say(key, "dropped", why="RLlib's applies to RMSProp alone; the optimiser is Adam")
        if self.old and self.algo in ("ppo", "ddppo"):
            why = "up to RLlib 0.8 it bounds a value's change, later the squared error"
            self.set("algo.value_clip", float(self.get("vf_clip_param")), "vf_clip_param", why=why)
        if self.given.get("lr_schedule"):
            self.set(f"{self.inner}.lr", self.given["lr_schedule"], "lr_schedule")
            self.say("lr", "dropped", why="lr_schedule wins")
            pending.pop("lr", None)
        if self.given.get("entropy_coeff_schedule"):
            self.set("algo.entropy_coef", self.given["entropy_coeff_schedule"], "entropy_coeff_schedule")
            self.say("entropy_coeff", "dropped", why="entropy_coeff_schedule wins")
        for key, value in pending.items():
            if key in self.taken or value in ({}, None):
                self.taken.add(key)
                continue
            plain = key.rsplit(".", 1)[-1] if key.split(".")[0] in NESTED else key
            row = self.table.get(plain)
            if plain in ("evaluation_interval", "checkpoint_freq"):
                self.say(
                    key,
                    "dropped",
                    why="counted in iterations of RLlib's loop; eval.every= and checkpoint.every= count env steps",
                )
            elif row is not None and row["rlrun"] in set_by_file and key not in self.given:
                self.taken.add(key)  # a default of RLlib's for an option that the file has under another name
            elif row is None:
                self.say(key, "not mapped", why=f"rlrun knows no such option of {self.run}")
            elif row["rlrun"] is None:
                self.say(key, "dropped", why=row.get("why", ""))
            elif options_of(value) is not None:
                made = [special.get(plain, _plain)(one) for one in options_of(value) or []]
                self.made.grid[row["rlrun"]] = made
                self.set(row["rlrun"], made[0], key, why=f"the first of {len(made)}; the file's head has the sweep")
            else:
                try:
                    self.set(row["rlrun"], special.get(plain, _plain)(value), key)
                    set_by_file |= {row["rlrun"]} if key in self.given else set()
                except (KeyError, ValueError, TypeError):
                    self.say(key, "not mapped", why=f"{row['rlrun']} cannot be {value!r}")

    def _end(self) -> None:
        """What ends the run, and what it is to reach."""
        reached: float | None = None
        steps: float | None = None
        for where, criteria in (("stop", self.stop), ("pass_criteria", self.passes)):
            for key, value in criteria.items():
                last = key.rsplit("/", 1)[-1]
                if last in ("episode_reward_mean", "episode_return_mean"):
                    if key.startswith("evaluation/"):
                        self.made.values["eval.every"] = 50000
                        why = (
                            "eval.every=50000 shows it; stop.return_mean looks at training games, so that the run goes"
                            " on to its env_steps"
                        )
                        self.made.lines.append(Line(f"{where}.{key}", value, "not mapped", "", why))
                        continue
                    reached = float(value)
                    self.made.values["stop.return_mean"] = reached
                    self.made.lines.append(Line(f"{where}.{key}", value, "mapped", f"stop.return_mean={reached:g}", ""))
                elif last in (
                    "timesteps_total",
                    "agent_timesteps_total",
                    "num_env_steps_sampled",
                    "num_env_steps_sampled_lifetime",
                ):
                    steps = float(value)
                    self.made.lines.append(Line(f"{where}.{key}", value, "mapped", f"env_steps={rounded(steps)}", ""))
                elif last == "time_total_s":
                    self.made.values["stop.wall_sec"] = float(value)
                    self.made.lines.append(Line(f"{where}.{key}", value, "mapped", f"stop.wall_sec={value:g}", ""))
                elif last == "training_iteration":
                    self.made.lines.append(
                        Line(
                            f"{where}.{key}",
                            value,
                            "dropped",
                            "",
                            "iterations of RLlib's loop have no fixed number of env steps",
                        )
                    )
                else:
                    self.made.lines.append(
                        Line(
                            f"{where}.{key}",
                            value,
                            "not mapped",
                            "",
                            "rlrun ends at a return, a number of env steps or a time",
                        )
                    )
        if steps is None:
            self.made.lines.append(
                Line(
                    "stop",
                    self.stop,
                    "default",
                    f"env_steps={rounded(FILES_END)}",
                    "the file names no number of env steps",
                )
            )
        self.made.values["env_steps"] = rounded(steps if steps is not None else FILES_END)
        if reached is not None and steps is not None:
            self.made.values["expected"] = {
                "return": reached,
                "env_steps": rounded(steps),
                "metric": "last100",
                "seeds": 1,
                "source": f"RLlib {self.source}",
            }


def _plain(value: Any) -> Any:
    return rounded(value) if isinstance(value, float) and abs(value) < 1e15 else value
