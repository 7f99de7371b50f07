"""Notes on a run that is not learning as it should. Each is given once, with what to look at.

The limits are rules of thumb. They are wide, because a note about a healthy run would teach people to ignore notes.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rlrun.core.specs import Discrete, EnvSpec, MultiBinary, MultiDiscrete

ROWS = 5  # a sign must be seen in this many rows of metrics in a row
EARLY = 0.2  # share of the env steps before which nothing can be said about slow progress
FIRST_STEPS = 5000  # env steps before which nothing can be said about it either: a trial of a command is no training
LOW_ENTROPY = 0.01  # share of the largest entropy below which a policy is almost deterministic
HIGH_ENTROPY = 0.995  # share of the largest entropy above which a policy is still uniform
CONSTANT_VALUE = 0.001  # explained variance below which values are no better than a constant
VALUE_UPDATES = 100  # updates for which they must have been no better: a new value function needs some to learn
IMPROVED = 0.1  # share of the spread of returns by which their mean must grow to say that the run learns all the same
FEW_ROWS = 64  # rows of an update below which its targets may be so alike that explained variance says nothing
LARGE_KL = 0.5  # KL divergence of one update
GRADIENT_GROWTH = 1000.0  # factor on the median gradient norm
LARGE_GRADIENT = 1.0  # gradient norm below which nothing explodes: a first reward makes gradients grow too
MANY_EPISODES = 50  # episodes after which rewards that are all 0 are worth a note
LARGE_VALUE = 4.0  # factor on the largest value that the rewards so far allow
LAG = 1.5  # updates
SHORTER = "a larger algo.batch_size, or fewer environments (resources.num_samplers, envs_per_sampler),"
LARGE_OBSERVATION = 10.0  # absolute value


class Health:
    """Looks at every row of metrics that a run logs."""

    def __init__(
        self,
        total: int,
        spec: EnvSpec | None,
        say: Callable[[str], None],
        update_rows: int | None = None,
        plays: bool = True,
        options: Mapping[str, Any] | None = None,
    ):
        """total: env steps of the run. say: prints a note. update_rows: rows that an update learns from; None: many.
        plays: whether the run plays episodes at all. options: the run's plain config, so that notes name options that
        it has."""
        self.total, self.say, self.options, self.plays = total, say, options or {}, plays
        self.judges_values = update_rows is None or update_rows >= FEW_ROWS
        self.entropy = largest_entropy(spec) if spec is not None else None
        # Where the length of an episode has a limit, all episodes end sooner or later.
        self.limited = not plays or (spec is not None and spec.max_episode_steps is not None)
        self.said: set[str] = set()
        self.seen: dict[str, int] = {}
        self.gradients: dict[str, deque[float]] = {}  # the last norms of each network's gradient
        self.rewarded = False
        self.largest_value = 0.0  # that the rewards so far allow
        # Since when values have been no better than a constant: updates, and the mean return and spread of then.
        self.constant: dict[str, tuple[float, float | None, float]] = {}
        own = spec is not None and ":" in spec.name
        self.check_env = f"; rlrun check-env {spec.name} looks for mistakes in it" if own and spec is not None else ""

    def look(self, row: Mapping[str, Any]) -> None:
        """Gives notes on a row, whose keys are those of progress.jsonl."""
        late = row["env_steps"] >= max(EARLY * self.total, FIRST_STEPS)
        entropy, kl = row.get("learn/entropy"), row.get("learn/approx_kl")
        returns = [row.get(f"sample/return_{name}") for name in ("mean", "max", "min")]
        # What one agent of a zero-sum game wins the other loses, so that the sum is always 0.
        returns += [value for name, value in row.items() if name.startswith("sample/return/")]
        self.rewarded = self.rewarded or any(value not in (None, 0) for value in returns)
        if self.entropy is not None and entropy is not None:
            ways = ("target_entropy", "alpha_lr") if "learn/alpha" in row else ("entropy_coef",)
            tuned = self._named(*ways, "lr", "actor_lr")
            lag = row.get("sample/policy_lag") or 0.0
            old = f"; weights that act are {lag:.1f} updates old, and {SHORTER} shortens that" if lag > LAG else ""
            self._note(
                "deterministic",
                entropy < LOW_ENTROPY * self.entropy,
                f"the policy's entropy is {entropy:.3g}, so that it hardly explores any more; if the return is poor,"
                f" look at {listed(tuned)}{old}",
            )
            self._note(
                "uniform",
                # Data may come from random play, which a policy that learns from them then imitates.
                late and self.plays and entropy > HIGH_ENTROPY * self.entropy,
                f"the policy's entropy is still {entropy:.3f} of at most {self.entropy:.3f}, so that it acts at random;"
                f" look at {listed([*tuned, 'the scale of rewards'])}",
            )
        values = self._named("model.share_value", "value_coef", "lr", "critic_lr", "value_lr", "normalize_value")
        for name, explained in row.items():  # also learn/POLICY/explained_variance, with several policies
            if not (self.judges_values and name.startswith("learn/")):
                continue
            if name.endswith("explained_variance") and explained is not None:
                self._note(
                    name,
                    self._never_learnt(name, explained, row) and late,
                    f"the value function predicts returns no better than their mean would ({name} is"
                    f" {explained:.3f}); look at {listed([*values, 'the scale of rewards'])}",
                )
        if kl is not None:
            self._note(
                "kl",
                kl > LARGE_KL,
                f"one update moves the policy by a KL divergence of {kl:.2g}; look at"
                f" {listed(self._named('lr', 'num_epochs', 'runner.num_sgd_iter', 'clip'))}",
            )
        self._note(
            "endless dreams",
            (row.get("learn/terminated_share") or 0.0) > 0.0,
            "episodes of this environment terminate, and imagined trajectories never end, so that the policy cannot"
            " learn to avoid an end; look at algo.continuation, which should be true here",
        )
        self._look_at_gradients(row)
        self._look_at_values(row)
        self._note(
            "rewards",
            not self.rewarded and row.get("sample/episodes", 0) >= MANY_EPISODES,
            f"the returns of all {row.get('sample/episodes', 0)} episodes are 0; look at the environment's reward, or"
            f" at exploration (algo=icm){self.check_env}",
        )
        self._note(
            "episodes",
            late and not self.limited and row.get("sample/episodes") == 0,
            f"no episode has ended after {row['env_steps']:,} env steps, so that there is no return to report; look at"
            f" env.max_episode_steps{self.check_env}",
        )

    def _never_learnt(self, name: str, explained: float, row: Mapping[str, Any]) -> bool:
        """Whether values have been no better than a constant for many updates, in which returns did not grow either.
        Where they grow, or where a value function is new, its numbers are no reason to change anything."""
        mean, updates = row.get("sample/return_mean"), row["updates"]
        if explained >= CONSTANT_VALUE:
            self.constant.pop(name, None)
            return False
        if name not in self.constant or (mean is not None and self.constant[name][1] is None):
            spread = (row.get("sample/return_max") or 0.0) - (row.get("sample/return_min") or 0.0)
            self.constant[name] = (self.constant.get(name, (updates,))[0], mean, spread)
        since, first, spread = self.constant[name]
        grows = mean is not None and first is not None and mean > first + IMPROVED * spread
        return updates - since >= VALUE_UPDATES and not grows

    def _look_at_gradients(self, row: Mapping[str, Any]) -> None:
        for name, norm in row.items():
            if not name.startswith("learn/") or not name.endswith("grad_norm"):
                continue
            if norm is None:
                self._note(
                    "nan",
                    True,
                    f"{name} is not finite; look at the learning rate and the scale of rewards and observations"
                    f"{self.check_env}",
                )
            elif not name.endswith("alpha_grad_norm"):  # SAC's is almost 0 where the entropy is right
                last = self.gradients.setdefault(name, deque(maxlen=50))
                usual = sorted(last)[len(last) // 2] if len(last) >= 10 else math.inf
                self._note(
                    f"{name} grows",
                    norm > max(LARGE_GRADIENT, GRADIENT_GROWTH * usual),
                    f"{name} is {norm:.3g}, and {usual:.3g} was usual; look at"
                    f" {listed(['the learning rate', *self._named('max_grad_norm')])}",
                )
                last.append(norm)

    def _look_at_values(self, row: Mapping[str, Any]) -> None:
        """Gives a note on action values that the rewards of the games so far cannot explain. Values with a bonus for
        curiosity or entropy can be larger than those."""
        discount = next((option(self.options, name) for name in self._named("discount")), None)
        length = row.get("sample/episode_length_mean")
        extra = "learn/alpha" in row or "learn/intrinsic_reward" in row
        values = [name for name in row if name.startswith("learn/") and name.endswith("/q") and row[name] is not None]
        if discount is None or not length or extra or not row.get("sample/episodes") or not values:
            return
        largest = max(abs(row.get(f"sample/return_{side}") or 0.0) for side in ("min", "max"))
        each = abs(row.get("sample/return_mean") or 0.0) / length  # reward of a step
        if "sign" in [option(self.options, name) for name in self._named("reward_clip")]:
            each = max(each, 1.0)
        self.largest_value = max(self.largest_value, largest, each / max(1.0 - discount, 1e-6))
        for name in values:
            self._note(
                f"{name} diverges",
                self.largest_value > 0 and abs(row[name]) > LARGE_VALUE * self.largest_value,
                f"action values diverge: {name} is {row[name]:.3g}, and the games so far allow about"
                f" {self.largest_value:.3g}; look at"
                f" {listed(self._named('lr', 'critic_lr', 'target_update_interval', 'target_tau', 'model.hidden'))}",
            )

    def _named(self, *names: str) -> list[str]:
        """The full names of those of these options that the run has. Options of an algorithm stand without `algo.`, and
        are those of the algorithm inside where there is one: icm's own lr is that of its curiosity."""
        found = []
        for name in names:
            places = [name] if "." in name else [f"algo.inner.{name}", f"algo.{name}"]
            found += [place for place in places if has(self.options, place)][:1]
        return found

    def _note(self, name: str, sign: bool, text: str) -> None:
        """Gives a note once its sign was seen in ROWS rows in a row."""
        self.seen[name] = self.seen.get(name, 0) + 1 if sign else 0
        if self.seen[name] >= (1 if name == "nan" else ROWS) and name not in self.said:
            self.said.add(name)
            self.say(text)


class CutEpisodes:
    """Looks at the saves of a bit-exact run, each of which cuts all episodes off."""

    def __init__(self, say: Callable[[str], None]):
        self.say, self.ended, self.said = say, -1, False

    def look(self, ended: int) -> None:
        """Gives a note, once, if no episode has ended since the last save. ended: how many have ended in the run."""
        if ended == self.ended and not self.said:
            self.said = True
            self.say(
                "no episode has ended since the last checkpoint, and checkpoints of a bit-exact run cut episodes off;"
                " save less often (checkpoint.every, eval.every) or set resources.exact=false"
            )
        self.ended = ended


def has(options: Mapping[str, Any], path: str) -> bool:
    """Whether a plain config has an option that is set, by its path such as algo.lr."""
    return option(options, path) is not None


def option(options: Mapping[str, Any], path: str) -> Any:
    """The value of an option of a plain config, by its path such as algo.lr; None if it has no such option."""
    value: Any = options
    for part in path.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def listed(things: Sequence[str]) -> str:
    return " and ".join([", ".join(things[:-1]), things[-1]] if len(things) > 1 else things)


def largest_entropy(spec: EnvSpec) -> float | None:
    """Returns the entropy of the uniform policy in nats, or None if an action has continuous parts."""
    action = spec.action
    if isinstance(action, Discrete):
        return math.log(action.n)
    if isinstance(action, MultiDiscrete):
        return sum(math.log(size) for size in action.sizes)
    if isinstance(action, MultiBinary):
        return math.prod(action.shape) * math.log(2)
    return None
