"""Conditions under which an option is used at all, for use in types:

theta: Annotated[float, NotNegative, OnlyWith("kind", "ou")]
log_std: Annotated[float, OnlyFor(CONTINUOUS)]

runtime/unused.py refuses a run that sets an option whose condition does not hold, and `rlrun explain` lists the options
with conditions. Where a condition follows from a choice of a group, such as replay=prioritized, the option belongs into
the file of that choice instead."""

from __future__ import annotations

from typing import Any

from rlrun.core.ranges import Range
from rlrun.core.schedule import Schedule


class OnlyWith:
    """An option is used only with certain values of another one.

    option: its name in the same group, its name in the group around it (..explore), its path in a group inside the same
    one (.loss_scales.rew), or its whole path (model.memory.kind). wanted: its values, or Ranges of numbers.
    Without any, all values but null, false and 0 are meant."""

    def __init__(self, option: str, *wanted: Any):
        self.option, self.wanted = option, wanted

    def holds(self, value: Any) -> bool:
        """Tells whether the condition holds for a value of the other option."""
        if not self.wanted:
            return any(value.values) if isinstance(value, Schedule) else bool(value)
        return any(value in one if isinstance(one, Range) else value == one for one in self.wanted)

    def path(self, group: str) -> str:
        """The path of the other option for an option in this group; "" for the options of a command."""
        if self.option.startswith(".."):
            return f"{group.rpartition('.')[0]}.{self.option[2:]}"
        if self.option.startswith("."):
            return f"{group}{self.option}"
        return self.option if "." in self.option or not group else f"{group}.{self.option}"

    def told(self, group: str) -> str:
        """The condition in words, for an option in this group, such as "where algo.exploration.kind=ou"."""
        name = self.path(group)
        if not self.wanted:
            return f"where {name} is set (not null, false or 0)"
        if isinstance(self.wanted[0], Range):
            return f"where {name} is {' or '.join(map(str, self.wanted))}"
        values = [shown(one) for one in self.wanted]
        return f"where {name}={', '.join(values[:-1])}{' or ' if len(values) > 1 else ''}{values[-1]}"


class OnlyFor:
    """An option is used only in runs of a kind that is known once the run is planned, such as CONTINUOUS."""

    def __init__(self, kind: str):
        self.kind = kind


def shown(value: Any) -> str:
    """A value as it is written in YAML."""
    if isinstance(value, Schedule) and len(value.points) == 1:
        value = value.points[0][1]
    if isinstance(value, tuple):
        return f"[{', '.join(map(shown, value))}]"
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


CONTINUOUS = "environments with continuous actions"
CHOICES = "environments whose actions are choices"
IMAGES = "environments that show images"
VECTORS = "environments that show something other than images"
NUMBERS = "environments that show numbers other than those of images"
FILTERED = "environments that show numbers or images, and not choices alone"
IMAGE_ENCODERS = "encoders with convolutions, and algorithms without a world model"
SINGLE_IMAGES = "observations that are one image, read by convolutions, without memory and model.hidden"
CONVOLUTIONS = "encoders with convolutions"
CONV_LAYERS = "encoders with convolutions, and layers behind them that algo.head.hidden does not replace"
OWN_ENCODERS = "an encoder of your own (model.encoder=my_package.module:MyEncoder)"
ACTION_PARTS = "environments whose actions are a Tuple or a Dict"
ACTION_EMBEDDINGS = "environments with one choice of action and a Dict observation that describes the actions"
ACTIVATED = "networks with model.hidden, or with convolutions whose model.conv_activation is auto"
NORMALIZED = "networks with model.hidden, or with the convolutions of nature_cnn or model.conv_filters"
DRAWN = "networks with initial weights; a linear policy begins with zeros, and a bandit uses no layers of model.*"
SAMPLERS = "runs with samplers in processes of their own (resources.inference=local or batched)"
SEVERAL_ENVS = "runs with several environments (algo.num_envs)"
TRAVELLING = "runs with one learner, to which rows come from other machines"
AHEAD = "runs whose samplers do not wait for new weights, and send rows from other machines to one learner"
LEARNERS = "runs with several learners (resources.num_learners)"
REWARDS = "algorithms with algo.reward_clip, which takes its default from it"
FIRST_PRIORITIES = (
    "algorithms whose samplers can compute first priorities (all but sac, tqc, cql, implicit_q, crr and maddpg)"
)
EACH_AGENT = "algorithms that learn each agent by itself (not qmix, vdn, iql or maddpg)"
SEVERAL_AGENTS = "environments with several agents"
LEARNT_VALUES = "algorithms that learn values with a network (not algo.use_critic=false, algo.baseline=false or linear)"
SLOW_VALUES = "runs that read the slow value (algo.slow_reg above 0, or algo.slow_target=true)"
REWARDING_LAYERS = "networks with hidden layers (algo.*_hidden), and observations that are one image"
EXPERIENCE = "runs that gather experience (not runner=offline)"
REPLAYS = "runs that keep a replay (not runner=on_policy or offline)"
SLATES = "environments that take slates (MultiDiscrete actions)"
WORLD_MODELS = "algorithms with a world model"
MODELLED = "estimates that fit a model (dm, dr or wdr among eval.estimate.methods)"
REWARDED = "algorithms that learn from rewards (all but bc)"
UNITS = "RLlib's files in which actions are numbers with bounds, and not whole ones that begin at 0"
DRAWING = "policies that draw actions from a distribution or add noise to them (not es or ars)"
ROWS = "algorithms that learn from single steps (not es or ars)"
SEARCHED = "searches with simulations (algo.search.simulations or algo.eval_simulations above 0)"
TEMPERED = "runs that explore by the search's visits (not algo.exploration.kind=random)"
SAVED_WHEN_BETTER = "runs that training games or a rating judge (with eval.every, better weights are saved at once)"
PLAYED = "runs that have an environment to play in"
COUNTED = "runs whose training plays games that count (not runner=offline or algo.eval_share=0)"
JUDGED = "runs that are judged, by training games that count (not runner=offline or algo.eval_share=0) or by eval.every"
PACED = "runs in which samplers wait for the learner (not runner.pace=free)"
