"""Every option of every algorithm does something: changed to another value it changes parameters, the plan's layout, the
numbers of the first updates, messages or files, or the run is refused. The config's own echo does not count, and a
refusal counts only where `rlrun explain` gives the option's condition; then the option is tried where it holds as well.

The fast part tries what stands in an algorithm's own class for every algorithm, and what algorithms share once."""

import contextlib
import copy
import dataclasses
import functools
import hashlib
import io
import json
import os
import re
import tempfile
import types
import typing
from pathlib import Path

import gymnasium
import pytest
import torch
from conftest import compose, small
from families import DISCRETE, EVOLVING, IMITATING, JOINT, SEARCHING, SEVERAL, SLATES

import rlrun
from rlrun.cli import _dispatch
from rlrun.commands.explain import conditions
from rlrun.commands.train import start
from rlrun.config.automatic import settled
from rlrun.config.paths import inner_algorithm, options, output_of, root, runner_of
from rlrun.config.run import type_config
from rlrun.config.types import parse_assignments
from rlrun.config.unused import conditions_of
from rlrun.core import conditions as kinds
from rlrun.core.algorithm import Inner
from rlrun.core.batch import Batch
from rlrun.core.conditions import OnlyFor, OnlyWith
from rlrun.core.errors import UserError
from rlrun.core.learners import FollowingLearner
from rlrun.core.ranges import Range
from rlrun.core.ranks import ALONE
from rlrun.core.schedule import Schedule
from rlrun.core.specs import MultiDiscrete
from rlrun.families.off_policy import OffPolicyActorCriticConfig
from rlrun.machine.machine import Machine
from rlrun.models.encoders import ImageEncoder, flat_size, flatten
from rlrun.replay.storage import stores
from rlrun.runtime.build import LearnerParts
from rlrun.runtime.plan import plan
from rlrun.runtime.unused import refuse_unused
from rlrun.samplers.evaluator import Evaluator

HERE = Path(__file__).parent
UPDATES = 4  # of a moment
MACHINE = Machine(cores=2, env_step_sec=lambda make_env, count: 1e-6)

# -- options and other values for them ---------------------------------------------------------------------------------

# Choices of groups and names, which are no values to change; tests/test_house.py goes through all choices.
CHOICES = ("name", "family", "inner", "expected", "measured", "runner.name", "replay.name", "memory.kind")
# Tried elsewhere: below, on a machine with a GPU; with environments that hang (tests/runners, tests/samplers/
# test_restarts.py, tests/runtime/test_session.py); with another runner
# (tests/algos/test_offline.py).
ELSEWHERE = ("replay.device", "queue_timeout_sec", "num_shards", "max_weight_sync_delay", "learns_from", "step_timeout_sec", "reset_timeout_sec")
# Other values for options whose type does not say them, or where others would change nothing so soon.
VALUES = {
    "items": ["items"], "algo.click": ["again"], "algo.candidates": ["others"], "algo.slates": ["top_k", "greedy"], "initial_pulls": [7, 0], "noise_shape": [600.0], "noise_scale": [600.0], "memory": [24],
    "policies": [{"a": ["agent_1"], "b": ["agent_*"]}], "fixed": [{"agent_1": "random"}], "algo.options": [{"agent_1": {"lr": 0.1}}],
    "encoder": ["test_every_option:Wide"], "encoder_kwargs": [{"width": 5}], "action_embedding": ["avail_actions"], "n_step": [2, 1], "target_update_interval": [1, 2],
    "policy_delay": [1, 3], "lr_kl_bounds": [[1e-2, 1.0]], "lr_kl_target": [1e-9], "stop_kl": [1e-9], "target_tau": [0.5], "discount": [0.5], "epsilon_min": [0.3],
    "scale_min": [0.01], "learning_starts": [60, 80], "random_steps": [40, 0], "replay_ratio": [2.0, 0.5], "directory": ["rows"], "wrappers": [["test_every_option:Twice"]],
    "kwargs": [{"sutton_barto_reward": True}, {"g": 3.0}, {"max_steps": 9}], "max_episode_steps": [7], "max_frames": [30], "size": [48], "noise_size": [1100000], "huber_delta": [1e-3, None],
    "value_rescaling": [None], "v_min": [-3.0], "v_max": [3.0], "max_grad_norm": [1e-3], "max_grad_value": [1e-4], "checkpoint_max_gb": [0.0], "capacity": [100, 200],
    "reward_clip": [0.25], "value_lr": [1e-2], "observation_clip": [0.1], "report_length": [1], "env_steps_per_batch": [300], "kl_target": [1e-12], "noise_epsilon": [1e-6, 0.5, 0.99], "counted_share": [1.0],
    "rho_clip": [0.5], "c_clip": [0.5], "pg_rho_clip": [0.5], "is_clip": [0.5], "clip": [1e-4], "value_clip": [1e-3], "value_loss_clip": [1e-3],
    "target_noise_clip": [0.01], "target_entropy": [-5.0], "lambda_": [0.5], "eval_share": [0.9], "eval_epsilon": [1.0], "frame_skip": [2],
    "action_distribution": ["beta", "squashed_gaussian"], "value_head": ["test_every_option:Last"], "q_head": ["test_every_option:Last"], "conv_filters": [[[4, 4, 2]]],
    "exploration.kind": ["random", "test_every_option:Lazy"], "exploration.kwargs": [{"greedy": True}], "exploration.temperature": [1e-3], "stack": [2],
    "model.size": ["size12m"], "dynamics.patience": [0.0], "return_of": [["agent_1"]], "noop_max": [0], "sticky_actions": [0.9], "priority_eta": [0.1], "local_agents": [["*_1"]], "n_stack": [2], "temperature": [0.1],
    "max_depth": [1], "puct_base": [1.0], "min_depth": [1, 2], "considered": [1], "value_scale": [10.0, 1e-3], "visit_offset": [0.0, 1e4], "temperature_moves": [1], "eval_simulations": [0], "initial_games": [0], "ranked.best": [0.0], "search.normalize": ["none"],
}  # fmt: skip
# Words without which an option cannot show what it does.
CONTEXT = {
    "items": ["env=rlrun/ParametricItems-v0", "algo.initial_pulls=0"], "algo.slates": ["algo.exploration.epsilon=0.1"], "products": ["env=tests/Displays-v0", "algo.items=candidates"],
    "replay_slots": ["runner.replay_slots=1"], "replay_proportion": ["runner.replay_slots=2"], "advantage_bootstrap": ["algo.lambda_=0.5"], "value_lr": ["model.share_value=false"],
    "random_steps": ["algo.exploration.epsilon=0.1"], "target_tau": ["algo.target_update_interval=1"], "double": ["algo.lr=0.3", "algo.replay_ratio=2"], "exploration.kind": ["algo.exploration.epsilon=0.1", "algo.exploration.scale_min=null"], "return_processing": ["env=Pendulum-v1", "env.max_episode_steps=20"],
    "action_distribution": ["env=Pendulum-v1"], "exploration.kwargs": ["algo.exploration.kind=test_every_option:Lazy"], "use_critic": ["algo.vtrace=false", "algo.value_lr=null"],
    "exploration.temperature": ["algo.exploration.epsilon=0.1"], "noise_std": ["algo.exploration.epsilon=0.1"],
    "model.size": ["model.units=null"], "model.depth": ["++env.kwargs.side=64"], "model.conv_activation": ["++env.kwargs.side=64"],
    "noise_epsilon": ["algo.exploration.noise_std=0.2", "env.max_episode_steps=3"], "action_embedding": ["algo.head.dueling=false"],
    "eval_simulations": ["env=Knapsack-v0"], "symmetries": ["env=TicTacToe-v0", "model=mlp"], "max_depth": ["algo.search.simulations=16"], "min_depth": ["env=Knapsack-v0", "algo.search.puct=0.01", "algo.lr=0.1"], "unvisited": ["env=TicTacToe-v0", "model=mlp", "algo.search.puct=0.3", "algo.lr=0.1"],
    "sample_tasks": ["env=PendulumMass-v0"], "dynamics.patience": ["algo.dynamics.max_epochs=20", "algo.dynamics.lr=0.1"], "return_of": ["env.max_episode_steps=3"], "time_limit": ["env.max_episode_steps=7"], "complete_episodes": ["env.max_episode_steps=20"], "snapshot_win_rate": ["algo.snapshot_every=1"], "opponents": ["algo.snapshot_every=15", "env.max_episode_steps=3"],
}  # fmt: skip
# Options that an algorithm around another one fixes, and what explain says about it.
WRAPPED = {
    ("apex", "input_priorities"): "input_priorities must be true", ("apex_ddpg", "input_priorities"): "input_priorities must be true",
    **{(algo, "normalize_reward"): "normalize_reward must be false" for algo in ("icm", "re3", "rnd")},
}  # fmt: skip
# Options that an algorithm refuses, by how their paths end, and the reason, which explain gives too.
BANDITS = ("lin_ucb", "lin_ts", "neural_linear")
JOINT_REFUSES = (
    "is for one agent",
    "they are for one agent: exploration other than epsilon_greedy, head.noisy, model.observation_filter",
)
REFUSES = {
    **{(algo, option): JOINT_REFUSES for algo in ("qmix", "vdn", "iql") for option in ("exploration.kind", "exploration.kwargs", "exploration.temperature", "exploration.noise_std", "exploration.noise_epsilon", "head.noisy", "head.sigma0")},
    **{(algo, option): ("is for algorithms that learn each agent by itself", JOINT_REFUSES[1] if algo != "maddpg" else "it is for one agent: model.observation_filter")
       for algo in ("qmix", "vdn", "iql", "maddpg") for option in ("observation_filter", "observation_clip")},
    **{(algo, option): ("changes what a feature means from row to row", "Refused: model.observation_filter, whose moments change what features mean")
       for algo in BANDITS for option in ("observation_filter", "observation_clip")},
    **{("pqn", option): ("is for algorithms with a replay", "it is for algorithms with a replay: head.noisy") for option in ("head.noisy", "head.sigma0")},
    ("multi", "normalize_reward"): ("because it scales rewards by the returns of all agents", "it would scale by the returns of all agents: normalize_reward"),
}  # fmt: skip
# What the environments and models of an algorithm cannot be. Options for such ones are tried with other algorithms, and
# here it is enough that a run refuses them with this sentence.
LIMITS = {
    **dict.fromkeys(BANDITS, ("a bandit trains no layers of model.*, which would stay random",)),
    "slateq": ("must hold a row of numbers for each of the", "slateq is for actions that are several choices (MultiDiscrete)", "draws no pictures"),
    "alphazero": ("and a search sees CartPoleSparse-v0 itself", "and its simulator does not know this limit", "draws no pictures", "has no get_state and no set_state", "has no simulator"),
    "dreamer": ("dreamer's convolutions are those of the paper, for images of 64 x 64",),
    "maml": ("does not work with tasks",),
    "mbmpo": ("rewards of imagined steps must be known", "models of the dynamics predict one observation from one", "models of the dynamics are for one agent that sees numbers", "mbmpo is for actions that are one choice (Discrete) or numbers (Box)"),
}  # fmt: skip
# What makes a condition hold.
SET = {
    "kl_coef": 0.5,
    "continuation": True,
    "algo.continuation": True,
    "lr_kl_target": 1e-9,
    "replay_proportion": 1.0,
    "target_noise": 0.2,
    "alpha_lr": 1e-3,
    "every": 50,
    "enabled": True,
    "num_sgd_iter": 2,
    "conv_filters": [[4, 4, 2], [4, 3, 2]],
    "explore": True,
    "..explore": True,
    "scale": 0.5,
    "epsilon": 0.3,
    "alpha": 0.6,
    "dirichlet_share": 0.25,
    "use_critic": True,
    "share": True,
    "min_q_weight": 0.5,
    "items": "candidates",
    "lagrangian": True,
    "hidden": (4,),
    "beta": 0.5,
    ".loss_scales.rew": 1.0,
    ".loss_scales.repval": 0.3,
}
IMAGE = ["env=tests/Pixels-v0"]
# What off-policy actors with memory need.
SEQUENCES = [
    "algo.n_step=1",
    "algo.fragment_length=10",
    "algo.sequence_length=8",
    "algo.sequence_stride=5",
    "algo.burn_in=2",
]
HOLDS = {
    kinds.SEVERAL_AGENTS: ["env=MultiAgentCartPole-v0", "model.share_value=false"],
    kinds.CONTINUOUS: ["env=Pendulum-v1"], kinds.CHOICES: ["env=CartPole-v1"], kinds.LEARNT_VALUES: ["algo.baseline=true"], kinds.PACED: ["runner=distributed_replay"], kinds.IMAGES: IMAGE, kinds.SINGLE_IMAGES: [*IMAGE, "model.hidden=[]", "model/memory=none"], kinds.CONVOLUTIONS: IMAGE, kinds.CONV_LAYERS: IMAGE,
    kinds.OWN_ENCODERS: ["model.encoder=test_every_option:Wide"], kinds.ACTION_PARTS: ["env=rlrun/EverySpace-v0"],
    kinds.SAMPLERS: [], kinds.SEVERAL_ENVS: ["algo.num_envs=3"], kinds.ACTION_EMBEDDINGS: ["env=ParametricActionsCartPole-v0"], kinds.ACTIVATED: ["model.hidden=[8]"],
    kinds.NORMALIZED: ["model.hidden=[8]"], kinds.DRAWN: ["algo.actor.hidden=[4]"],
    kinds.NUMBERS: ["env=CartPole-v1"], kinds.FILTERED: ["env=CartPole-v1"], kinds.SLOW_VALUES: ["algo.slow_reg=1"], kinds.REWARDING_LAYERS: [],
    kinds.SLATES: ["env=tests/Displays-v0", "algo.items=candidates", "algo.initial_pulls=0"],
    kinds.SEARCHED: [], kinds.TEMPERED: [],
    kinds.EXPERIENCE: [],  # the words of tests/small/ have runners that gather it
}  # fmt: skip

# The environments with several agents that stand for these.
AGENTS = {"env=Pendulum-v1": "env=MultiAgentPendulum-v0", "env=CartPole-v1": "env=MultiAgentCartPole-v0"}


class Wide(torch.nn.Module):
    """An encoder of a user's own."""

    def __init__(self, space, width: int = 6):
        super().__init__()
        self.space, self.features = space, width
        self.net = torch.nn.Linear(flat_size(space), width)

    def forward(self, x):
        return self.net(flatten(self.space, x))


class Last(torch.nn.Module):
    """A last layer of a user's own."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(inputs, 3), torch.nn.Tanh(), torch.nn.Linear(3, outputs))

    def forward(self, x):
        return self.net(x)


class Lazy(rlrun.Exploration):
    """An exploration of a user's own, which takes what the policy says or draws from its distribution; values and
    choices of a policy that has none are shifted. A slate is of the best or the worst candidates."""

    def __init__(self, spec, greedy: bool = False):
        super().__init__(spec)
        self.greedy = greedy

    def choose(self, wanted, obs, is_first, state, clock, rng):
        if isinstance(wanted, torch.Tensor):
            if wanted.is_floating_point() and tuple(wanted.shape[1:]) == getattr(
                self.spec.action, "shape", ()
            ):  # actions
                return rlrun.Chosen(wanted if self.greedy else -wanted)
            if isinstance(self.spec.action, MultiDiscrete):  # slates
                return rlrun.Chosen(wanted.topk(len(self.spec.action.sizes), largest=self.greedy).indices)
            best = wanted.argmax(-1)  # of values or logits
            return rlrun.Chosen(best if self.greedy else (best + 1) % wanted.shape[-1])
        action = wanted.mode() if self.greedy else wanted.sample(rng)
        return rlrun.Chosen(action, wanted.log_prob(action))


class Judge(rlrun.Evaluation):
    """An evaluation of a user's own."""

    def evaluate(self, games):
        return {"return_mean": 3.0}


class Twice(gymnasium.RewardWrapper):
    """A wrapper of a user's own."""

    def reward(self, reward):
        return 2.0 * float(reward)


class Pixels(gymnasium.Env):
    """Shows noise and pays for the last action, for 9 steps."""

    def __init__(self, continuous: bool = False, side: int = 36):
        self.observation_space = gymnasium.spaces.Box(0, 255, (side, side, 1), "uint8")
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,)) if continuous else gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = 9
        return self.shown(), {}

    def shown(self):
        return self.np_random.integers(0, 256, self.observation_space.shape, "uint8")

    def step(self, action):
        self.left -= 1
        return (
            self.shown(),
            3.0 * float(sum([*map(float, getattr(action, "flat", [action]))])),
            self.left == 0,
            False,
            {},
        )


gymnasium.register("tests/Pixels-v0", entry_point=Pixels)


class Displays(gymnasium.Env):
    """Shows two sets of candidates, of which a slate of two may be made, and what was chosen last of both."""

    def __init__(self, g: float = 1.0):
        spaces = gymnasium.spaces
        self.g = g
        items = {name: spaces.Box(-1.0, 1.0, (4, 3), "float32") for name in ("candidates", "others")}
        clicks = {name: spaces.Discrete(3) for name in ("click", "again")}
        self.observation_space = spaces.Dict({**items, **clicks, "user": spaces.Box(-1.0, 1.0, (3,), "float32")})
        self.action_space = spaces.MultiDiscrete([4, 4])

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = 9
        return self.shown(), {}

    def shown(self):
        drawn = self.np_random.uniform
        numbers = {name: drawn(-1, 1, (4, 3)).astype("float32") for name in ("candidates", "others")}
        places = {name: int(self.np_random.integers(3)) for name in ("click", "again")}
        return {**numbers, **places, "user": drawn(-1, 1, 3).astype("float32")}

    def step(self, action):
        self.left -= 1
        return self.shown(), self.g * float(action[0]), self.left == 0, False, {}


gymnasium.register("tests/Displays-v0", entry_point=Displays)


class Option(typing.NamedTuple):
    path: str
    group: str  # path of its group
    owner: tuple[type, str]  # the class that declares it, and its name
    kind: typing.Any  # its type
    conditions: tuple[OnlyWith | OnlyFor, ...]

    @property
    def name(self) -> str:
        return self.path.rpartition(".")[2]


def options_of(node, path: str) -> list[Option]:
    """All options below a dataclass of options."""
    found = []
    hints = typing.get_type_hints(type(node), include_extras=True)
    for field in dataclasses.fields(node):
        place, value = f"{path}.{field.name}".lstrip("."), getattr(node, field.name)
        value = value.cfg if isinstance(value, Inner) else value
        if dataclasses.is_dataclass(value) and not isinstance(value, Schedule):
            found += options_of(value, place)
        elif not place.endswith((*CHOICES, *ELSEWHERE)):
            owner = next(one for one in type(node).__mro__ if field.name in vars(one).get("__annotations__", {}))
            found.append(
                Option(
                    place, path, (owner, field.name), hints[field.name], tuple(conditions_of(type(node), field.name))
                )
            )
    return found


def everything(config) -> list[Option]:
    parts = {"algo": config.algo, "env": config.env, "runner": config.runner, "model": config.run.model}
    parts |= {"replay": config.run.replay} if config.run.replay is not None else {}
    return [*options_of(config.run, "")[:1], *(one for path, node in parts.items() for one in options_of(node, path))]


def others(kind, value) -> list[list]:
    """Other values that a type allows, in groups: of each group at least one must change something."""
    ranges = []
    while typing.get_origin(kind) is typing.Annotated:
        ranges += [one for one in typing.get_args(kind)[1:] if isinstance(one, Range)]
        kind = typing.get_args(kind)[0]
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        found = [one for part in args if part is not type(None) for group in others(part, value) for one in group]
        return [[*found, *([None] if type(None) in args and value is not None else [])]]
    if origin is typing.Literal:
        return [[one] for one in args if one != value]
    if kind is bool:
        return [[not value]]
    if origin is tuple:
        return [[[6], [6, 5]]]
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else 1
    if kind is int:
        made = [2 * number, number // 2, number + 1, number - 1, 1, 2, 3, 5, 10]
    elif kind in (float, Schedule):
        made = [0.5 * number, number + 0.25, 0.01, 2.0]
    else:
        raise AssertionError(f"VALUES must say other values for {kind}")
    return [[one for one in dict.fromkeys(made) if one != value and all(one in range_ for range_ in ranges)]]


# -- a moment of a run -------------------------------------------------------------------------------------------------


class Moment(FollowingLearner):
    """A job that ends after a few updates and remembers what they said, or as soon as it differs from another one,
    whose `marks` are given."""

    def __init__(self, like: list[str] | None = None):
        super().__init__(ALONE, None)
        self.said: list = []
        self.like, self.marks = like, []  # digests of what was said and learnt, after every update and every fragment
        self.other = False

    def begin(self, algorithm):
        self.algorithm = algorithm
        return super().begin(algorithm)

    def collected(self, headers):
        self.said += [(header.env_steps, [tuple(episode)[1:3] for episode in header.episodes]) for header in headers]
        return sum(header.env_steps for header in headers)

    def sampler_ready(self, sampler):
        self.sampler, publish = sampler, sampler.publish if hasattr(sampler, "publish") else None
        if publish is not None:
            sampler.publish = lambda policy, clock: (self.said.append(policy is not None), publish(policy, clock))[1]

    def tick(self, clock, update):
        self.clock = clock
        if update is not None:
            echoes = ("lr", "epsilon", "noise_scale")  # schedules' values
            self.said += [(name, float(value)) for name, value in update.metrics.items() if not name.endswith(echoes)]
        self.mark()
        return clock.updates < UPDATES and clock.env_steps < 3000 and not self.other

    def mark(self):
        self.marks.append(digest([repr(self.said), self.algorithm.state()]))
        if self.like is not None:
            self.other = self.marks[-1:] != self.like[len(self.marks) - 1 : len(self.marks)]


def digest(thing) -> str:
    """A number for everything in a tree of tensors, but not for the options that an optimiser's state repeats."""
    hashed = hashlib.sha1()

    def add(part):
        if isinstance(part, torch.Tensor):
            hashed.update(repr((part.dtype, tuple(part.shape))).encode())
            hashed.update(
                part.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes() if part.numel() else b""
            )
        elif isinstance(part, dict | Batch):
            for name, value in part.items():
                if name != "param_groups":
                    hashed.update(str(name).encode())
                    add(value)
        elif isinstance(part, list | tuple):
            for value in part:
                add(value)
        else:
            hashed.update(repr(part).encode())

    add(thing)
    return hashed.hexdigest()


def seen(config, games: bool, like: list[str] | None = None) -> dict[str, typing.Any]:
    """What a run is made of and what it does in a moment. games: how its greedy policy plays is looked at, too. like:
    the marks of another run; what comes behind the first difference is left out."""
    made = plan(config, MACHINE)
    parts, job = LearnerParts(made, ALONE, None, None), Moment(like)
    parts.callbacks = []
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        parts.learn(job)
        files = sorted(os.listdir())
    if job.other:
        return {"marks": job.marks}
    algorithm = job.algorithm
    layout = dataclasses.replace(made.resources, why=(), compile=False, exact=False)
    found = {
        "marks": job.marks,
        "layout": repr((layout, made.fragment, made.fragment_rows, made.fragments_per_producer, made.whole_after, made.columns_per_learner)),
        "counted": (made.first_counted, made.parameters, made.fragment_bytes),
        "replay": None if made.replay is None else repr((made.replay.layout, made.replay.shards, made.replay.cfg.device)),
        "said": repr(job.said), "state": digest(algorithm.state()), "clock": tuple(job.clock),
        "kept": digest({name: thing.state() for name, thing in job.kept.items()}),
        "saved": [getattr(thing, "saved", None) for thing in job.kept.values()],
        "stores": [type(store).__name__ for _, store in stores(job.kept["replay"].tree)] if "replay" in job.kept else [], "files": files,
        "modules": repr(algorithm), "columns": digest(job.sampler.save()) if hasattr(job.sampler, "save") else "",
    }  # fmt: skip
    if games:
        evaluator = Evaluator(made.eval_env(), 2, made.seeds)
        try:
            found["games"] = evaluator.play(algorithm.policy, 2, "greedy", job.clock)
        finally:
            evaluator.close()
    return found


def with_value(values: dict, path: str, value) -> dict:
    """The config with another value of an option."""
    values = copy.deepcopy(values)
    *groups, last = path.split(".")
    node = values
    for group in groups:
        node = node[group]
    if path == "env.reward_clip":  # algo.reward_clip follows it
        core = values["algo"].get("inner", values["algo"])
        if core.get("reward_clip") == node[last]:
            core["reward_clip"] = value
    node[last] = value
    return values


def value_in(values: dict, path: str):
    for name in path.split("."):
        values = values[name]
    return values


# -- one option --------------------------------------------------------------------------------------------------------


BOX_ONLY = [algo for algo in options("algo") if algo not in DISCRETE + EVOLVING + JOINT + SEVERAL + SEARCHING + SLATES]


def env_of(algo: str) -> str:
    if algo in JOINT + SEVERAL:
        return "MultiAgentCartPole-v0"
    if algo in SEARCHING:
        return "CartPoleSparse-v0"
    if algo in SLATES:
        return "tests/Displays-v0"
    return "CartPole-v1" if algo in DISCRETE or algo in EVOLVING else "Pendulum-v1"


def base_words(algo: str) -> list[str]:
    more = ["algo.noise_size=1000000"] if algo in EVOLVING else []  # enough for convolutions
    return [*small(algo, "tiny"), f"env={env_of(algo)}", "resources=debug", "logger=[]", *more]


def inside(algo: str, word: str) -> str:
    return word.replace("algo.", "algo.inner.", 1) if inner_algorithm(algo) and word.startswith("algo.") else word


@functools.cache
def seen_with(words: tuple[str, ...], games: bool) -> dict:
    return seen(type_config(values_of(words)), games)


def values_of(words: tuple[str, ...]) -> dict:
    """The config of these words. Hydra composes the choices of groups, and options are set here, which is faster."""
    groups = {word.partition("=")[0]: word for word in words if "." not in word.partition("=")[0]}
    values = compose(*groups.values())
    for word in words:
        if "." in word.partition("=")[0]:
            ((path, value),) = parse_assignments([word.lstrip("+")]).items()
            values = with_value(values, path, value)
    return settled(values)[0]


def context(option: Option) -> list[str]:
    return named(CONTEXT, option.path) or []


def named(table: dict, path: str):
    """The entry for an option, by its name or the end of its path; None if there is none."""
    found = [name for name in table if f".{path}".endswith(f".{name}")]
    return table[max(found, key=len)] if found else None


def other_values(option: Option, given) -> list[list]:
    said = named(VALUES, option.path)
    return [said] if said is not None else others(option.kind, given)


def holding(algo: str, option: Option) -> list[str]:
    """The words with which an option's conditions hold, and others that it needs to show what it does."""
    words = [AGENTS.get(word, word) if algo in JOINT + SEVERAL else word for word in context(option)]
    for one in option.conditions:
        if isinstance(one, OnlyFor) and one.kind == kinds.LEARNT_VALUES and algo in ("maml", "mbmpo"):
            words.append("algo.baseline=value")
        elif isinstance(one, OnlyFor):
            words += [AGENTS.get(word, word) if algo in JOINT + SEVERAL else word for word in HOLDS[one.kind]]
            if HOLDS[one.kind][:1] == IMAGE and algo in BOX_ONLY:
                words.append("env.kwargs.continuous=true")
        elif one.path("") == "model.memory.kind":
            words += ["model=lstm", "model.memory.size=4"]
            if issubclass(option.owner[0], OffPolicyActorCriticConfig):
                words += [inside(algo, word) for word in SEQUENCES]
            words += ["algo.sequence_length=5"] if algo in IMITATING else []
        elif one.option == "replay.name":
            words.append("replay=prioritized")
        else:
            value = one.wanted[0] if one.wanted and not isinstance(one.wanted[0], Range) else SET[one.option]
            words.append(f"{one.path(option.group)}={kinds.shown(value)}")
            words += ["runner=replay"] if one.option == "learns_from" and value == "data" else []
    known, made = compose(*(word for word in base_words(algo) if "." not in word)), []
    for word in words:
        own = (
            word.startswith("algo.inner.")
            or word.removeprefix("algo.").partition("=")[0].partition(".")[0] in known["algo"]
        )
        word = word if own else inside(algo, word)
        path = word.partition("=")[0]
        with contextlib.suppress(KeyError):  # other algorithms may not have the option that it sets
            if path.startswith("algo.") or path == "model.share_value":
                value_in(known, path)
            made.append(word)
    return made


def limited(algo: str, problems: list[str]) -> bool:
    """Tells whether all problems are about what the environments and models of an algorithm cannot be."""
    return bool(problems) and all(any(limit in one for limit in LIMITS.get(algo, ())) for one in problems)


def changes_something(words: tuple[str, ...], option: Option, algo: str) -> None:
    """Fails if no other value of an option changes what is seen."""
    games = option.name.startswith("eval_")
    values, before = values_of(words), seen_with(words, games)
    given = value_in(values, option.path)
    groups = other_values(option, given)
    for group in groups:
        problems = []
        for value in group:
            try:
                after = seen(type_config(with_value(values, option.path, value)), games, before["marks"])
            except (UserError, ValueError) as error:  # a value that does not fit the others
                if "networks without memory" in str(error):
                    break
                problems.append(str(error))
                continue
            if after != before:
                break
            problems.append(f"{value} changes nothing")
        else:
            if limited(algo, problems):
                continue
            raise AssertionError(
                f"{option.path}={given}: {'; '.join(problems) or 'no other value'} (with {' '.join(words)})"
            )


def is_refused(words: tuple[str, ...], option: Option) -> bool:
    """Tells whether a run refuses all other values of an option."""
    values = values_of(words)
    groups = other_values(option, value_in(values, option.path))
    for value in (one for group in groups for one in group):
        try:
            made = plan(type_config(with_value(values, option.path, value)), MACHINE)
            refuse_unused(made, {option.path: value})
            LearnerParts(made, ALONE, None, None).algorithm()
        except (UserError, ValueError):
            continue
        return False
    return True


def explained(algo: str) -> set[str]:
    """The options of which `rlrun explain` says that they are used only under a condition."""
    inner = inner_algorithm(algo)
    return {path for path, _ in conditions(algo, inner, runner_of(algo) or (inner and runner_of(inner)))}


@functools.cache
def text_of_explain(algo: str) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as said:
        assert _dispatch(["explain", algo]) == 0
    return said.getvalue()


def memory_forbids(algo: str, option: Option) -> bool:
    """Tells whether an option is for parameter noise, which networks with memory do not have."""
    noise = any(isinstance(one, OnlyWith) and "parameter_noise" in one.wanted for one in option.conditions)
    if algo != "r2d2" or not noise:
        return False
    with pytest.raises(UserError, match="perturbs networks without memory"):
        plan(type_config(values_of((*base_words(algo), "algo.exploration.kind=parameter_noise"))), MACHINE)
    return True


def refusal(words: tuple[str, ...], option: Option) -> str:
    """The sentence with which a run refuses another value of an option, or a word that it needs."""
    with pytest.raises((UserError, ValueError)) as refused:
        for value in (one for group in other_values(option, value_in(values_of(words), option.path)) for one in group):
            made = plan(type_config(with_value(values_of(words), option.path, value)), MACHINE)
            LearnerParts(made, ALONE, None, None).algorithm()
    return str(refused.value)


def never_holds(algo: str, option: Option) -> bool:
    """Tells whether an option is for environments or models that an algorithm does not take."""
    for one in option.conditions:
        if not isinstance(one, OnlyFor) or one.kind not in HOLDS:
            continue
        envs = [AGENTS.get(word, word) for word in HOLDS[one.kind] if word.startswith("env=")]
        if algo in JOINT + SEVERAL and any("MultiAgent" not in word for word in envs):
            return True
        if algo in BANDITS and one.kind == kinds.DRAWN:
            return True
        if (algo in BOX_ONLY and one.kind == kinds.CHOICES) or (algo == "r2d2" and one.kind == kinds.SINGLE_IMAGES):
            return True
    return False


def check(algo: str, option: Option) -> None:
    words = tuple(base_words(algo))
    refused = [REFUSES[algo, end] for end in (option.name, option.path.split(".", 1)[-1]) if (algo, end) in REFUSES]
    if refused:
        said, reason = refused[0]
        words = (*words, *(word for word in holding(algo, option) if not word.startswith("env")))
        assert said in refusal(words, option) and reason in " ".join(text_of_explain(algo).split())
        return
    if (algo, option.name) in WRAPPED:
        text = text_of_explain(algo.removesuffix("_ddpg"))
        assert is_refused(words, option) and WRAPPED[algo, option.name] in " ".join(text.split())
        return
    if option.conditions and is_refused(words, option):
        assert option.path in explained(algo), f"explain {algo} does not say when {option.path} is used"
        if never_holds(algo, option) or any(
            isinstance(one, OnlyFor) and one.kind not in HOLDS for one in option.conditions
        ):
            return  # several processes, another kind of environment, or an algorithm that the option is for
        words = (*words, *holding(algo, option))
    elif context(option):
        words = (*words, *holding(algo, option))
    if algo == "apex_ddpg" and any(isinstance(one, OnlyWith) and "memory" in one.option for one in option.conditions):
        assert is_refused(words, option) and "Models have no memory" in text_of_explain(algo)
        return
    if "model/memory=none" in words:
        words = tuple(word for word in words if not word.startswith("model.memory."))
    if memory_forbids(algo, option):
        assert "of models without memory" in text_of_explain(algo)
        return
    changes_something(words, option, algo)


@functools.cache
def first_to_have() -> dict[tuple, str]:
    """The algorithm that tries an option in the fast part. What stands in a class of an algorithm's own is tried with
    that algorithm; of the groups that algorithms share, each option is tried with one."""
    found: dict[tuple, str] = {}
    for algo in sorted(options("algo"), key=lambda algo: (algo in JOINT + SEVERAL + SEARCHING, inner_algorithm(algo) is not None)):
        for option in everything(type_config(compose(*base_words(algo)))):
            found.setdefault(key(algo, option), algo)
    return found


def key(algo: str, option: Option) -> tuple:
    shared = output_of(algo) if option.path.startswith("model.") else ""
    return (*option.owner, algo if option.group == "algo" else shared)


def tried(algo: str, fast: bool) -> list[str]:
    made = everything(type_config(compose(*base_words(algo))))
    failed = []
    for option in made:
        if (first_to_have()[key(algo, option)] == algo) == fast:
            try:
                check(algo, option)
            except UserError as error:
                if not limited(algo, [str(error)]):
                    failed.append(str(error).splitlines()[0])
            except Exception as error:
                failed.append(str(error).splitlines()[0])
    return failed


LONG = ("mbmpo", "maml")  # a minute each


@pytest.mark.parametrize(
    "algo", [pytest.param(name, marks=pytest.mark.slow) if name in LONG else name for name in options("algo")]
)
def test_every_option_changes_something(algo):
    assert tried(algo, fast=True) == []


@pytest.mark.slow
@pytest.mark.parametrize("algo", options("algo"))
def test_shared_options_change_something_in_every_algorithm(algo):
    assert tried(algo, fast=False) == []


# -- options of a whole run --------------------------------------------------------------------------------------------

# Another value for each, and the words without which it cannot show what it does.
SESSION = {
    "env_steps": (400, []), "run_dir": ("runs/elsewhere", []), "runs_root": ("others", []), "log_every_sec": (1e-9, []), "log_every_steps": (150, []),
    "episode_window": (1, []), "init": ("first", []), "callbacks": (["test_every_option:Loud"], []), "resources.exact": (False, ["checkpoint.every=20"]), "stop.return_mean": (1.0, ["episode_window=2"]), "stop.wall_sec": (1e-6, []),
    "stop.no_improvement_steps": (20, ["episode_window=2"]), "eval.every": (20, []), "eval.episodes": (2, ["eval.every=20"]), "eval.greedy": (False, ["eval.every=20"]), "eval.env_steps": (30, ["eval.every=20"]), "eval.function": ("test_every_option:Judge", ["eval.every=20"]),
    "checkpoint.every": (20, []), "checkpoint.every_sec": (1e-9, []), "checkpoint.best_every_sec": (1e-9, ["episode_window=2"]), "checkpoint.keep": (1, ["checkpoint.every=20"]),
    "logger.console.enabled": (False, ["logger=[console]"]), "logger.tensorboard.enabled": (True, ["logger=[tensorboard]", "logger.tensorboard.enabled=false"]),
    "logger.tensorboard.histograms": (True, ["logger=[tensorboard]"]), "replay.checkpoint_max_gb": (0.0, []),
}  # fmt: skip
MLFLOW = {"enabled": False, "uri": "sqlite:///store.db", "experiment": "mine", "parent": "0123456789abcdef", "wait_sec": 9.0}
TIMES = ("time", "sample/env_steps_per_sec", "sample/queued_fragments")


class Loud(rlrun.Callback):
    def on_end(self, run):
        print("the end")


def session(words: tuple[str, ...], option: str, value, folder: Path) -> dict:
    """What one sees of a run in this folder: its files, rows, messages and summary."""
    values = compose(*words)
    values = with_value(values, option, value) if option else values
    folder.mkdir()
    wide = pytest.MonkeyPatch.context()  # a line must not be folded where a number has one digit more
    with contextlib.chdir(folder), contextlib.redirect_stdout(io.StringIO()) as said, wide as patch:
        patch.setenv("COLUMNS", "1000")
        if option == "init":
            assert start(copy.deepcopy({**values, "init": None, "run_dir": "first", "seed": 5}), {}) == 0
        assert start(values, {}) == 0
    found = {"files": sorted(shown(path.relative_to(folder)) for path in folder.rglob("*"))}
    for path in sorted(folder.rglob("progress.jsonl")):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        found[shown(path.relative_to(folder))] = [
            {k: v for k, v in row.items() if not k.startswith(TIMES)} for row in rows
        ]
    for path in folder.rglob("*tfevents*"):
        found["events"] = path.stat().st_size
    texts = re.sub(r"\d[\d,]*(\.\d+)?", "", said.getvalue()).splitlines()  # numbers may be times
    # The console's lines and its table say how fast the run was, and there are more of them in a slow one, so only
    # their presence counts.
    paced = [line for line in texts if " lag " in line or "/ steps" in line]
    found["said"] = [line for line in texts if "runs/" not in line and line not in paced]
    found["table"] = bool(paced)
    return found


def shown(path: Path) -> str:
    """A path without dates and the names of processes."""
    return re.sub(r"tfevents.*", "tfevents", re.sub(r"[\d-]+seed\d+", "#", str(path)))


def test_a_run_looks_the_same_twice(tmp_path):
    words = (
        *small("pg", "tiny"),
        "env=CartPole-v1",
        "resources=debug",
        "logger=[console,tensorboard]",
        "env_steps=300",
    )
    assert session(words, "", None, tmp_path / "first") == session(words, "", None, tmp_path / "second")


@pytest.mark.parametrize("option", [one for one in SESSION if not one.startswith("replay")])
def test_options_of_a_run_change_what_is_seen_of_it(option, tmp_path):
    value, more = SESSION[option]
    words = (*small("pg", "tiny"), "env=CartPole-v1", "resources=debug", "logger=[]", "env_steps=300", *more)
    assert session(words, option, value, tmp_path / "changed") != session(words, "", None, tmp_path / "base")


def test_no_option_of_a_run_is_left_out():
    values = compose("algo=pg", "env=CartPole-v1")
    paths = {name for name, value in values.items() if not isinstance(value, dict)}
    paths |= {f"{group}.{name}" for group in ("stop", "eval", "checkpoint") for name in values[group]}
    paths |= {f"logger.{name}.{one}" for name, node in values["logger"].items() for one in node}
    paths |= {f"resources.{name}" for name in values["resources"]} - {f"resources.{name}" for name in MACHINES}
    paths -= {"resources.start_timeout_sec"}  # tests/dataflow/test_workers.py
    paths -= {"resources.max_processes_per_core"}  # tests/faults/test_little_room.py
    paths -= {"resources.ray"}  # tests/cluster
    paths -= {"resources.restarts", "resources.restart_window_sec"}  # tests/samplers/test_restarts.py
    paths -= {"checkpoint.first_sec"}  # tests/runtime/test_session.py
    paths -= {"expected", "measured", "seed", "replay"}  # texts of a tuned file; the others are tried above
    paths -= {"eval.workers", "eval.parallel"}  # tests/runtime/test_evaluation.py has runs of several processes
    paths -= {"eval.estimate"}  # tests/runtime/test_training_estimates.py
    paths -= {"record"}  # tests/datasets
    assert paths == {one for one in SESSION if not one.startswith("replay")} | {
        f"logger.mlflow.{name}" for name in MLFLOW
    }


# -- options of the machine --------------------------------------------------------------------------------------------

# A machine with a GPU, which a plan can be made for anywhere.
WITH_GPU = Machine(cores=2, gpus=("H100", "H100"), gpu_free=lambda index: 2**36, env_step_sec=lambda make_env, count: 1e-3)
RUNNERS = {
    "on_policy": "ppo",
    "actor_learner": "impala",
    "replay": "dqn",
    "distributed_replay": "apex",
    "async_gradients": "a3c",
    "evolution": "es",
}
MACHINES = {
    "inference": ["serial", "local", "batched"], "num_learners": [1, 2], "num_samplers": [1, 2, 4], "envs_per_sampler": [1, 2], "device": ["cpu", "cuda"], "precision": ["fp32", "bf16"],
    "learner_threads": [3], "cuda_graphs": [False], "tapes": [False], "compile": [True],
}  # fmt: skip


def laid_out(values: dict, machine: Machine) -> tuple:
    """What a plan uses of a machine, and which convolutions of the learner would be compiled."""
    made = plan(type_config(values), machine)
    if made.resources.device.type == "cuda":
        parts = None  # its networks would be made on the GPU
    else:
        parts = LearnerParts(made, ALONE, None, None)
        parts.callbacks = []
    encoders = [part for part in parts.algorithm().modules() if isinstance(part, ImageEncoder)] if parts else []
    used = dataclasses.replace(made.resources, why=(), compile=False, exact=False, pace=None)
    return (
        repr(used),
        made.replay and made.replay.cfg.device,
        [part._compiled_call_impl is not None for part in encoders],
    )


@pytest.mark.parametrize("runner", RUNNERS)
def test_options_of_the_machine_change_the_layout(runner):
    algo = RUNNERS[runner]
    words = [word for word in small(algo, "tiny") if word != "runner=replay" and "num_envs" not in word]
    words += [inside(algo, "algo.num_envs=8")] if runner in ("replay", "distributed_replay") else []
    values = compose(*words, "env=tests/Pixels-v0", "logger=[]")
    text = (root() / "conf" / "runner" / f"{runner}.yaml").read_text()
    for option, others_ in MACHINES.items():
        if option == "cuda_graphs" and runner in ("async_gradients", "evolution"):
            continue  # there is nothing on a GPU that could be recorded
        if option == "tapes" and runner in ("async_gradients", "evolution"):
            continue  # several learners have plain updates, and evolution has no gradients
        machine = WITH_GPU
        if option in ("compile", "learner_threads", "precision", "tapes"):
            machine = dataclasses.replace(WITH_GPU, gpus=())
        before, refused = laid_out(values, machine), []
        for value in others_:
            try:
                if laid_out(with_value(values, f"resources.{option}", value), machine) != before:
                    break
            except (UserError, ValueError) as error:
                refused.append(str(error))
        else:
            # What is not refused is what `auto` has chosen.
            assert refused and option in text, (option, refused)


def test_a_replay_is_where_it_should_be():
    values = compose(*small("dqn", "tiny"), "env=CartPole-v1", "logger=[]", "resources.inference=local")
    places = [
        plan(type_config(with_value(values, "replay.device", value)), WITH_GPU).replay.cfg.device
        for value in ("auto", "cpu", "learner")
    ]
    assert places == ["learner", "cpu", "learner"]
    sharded = compose(
        *[word for word in small("apex", "tiny") if word != "runner=replay"], "env=CartPole-v1", "logger=[]"
    )
    layouts = [
        plan(type_config(with_value(sharded, "runner.num_shards", number)), WITH_GPU).replay.shards for number in (1, 2)
    ]
    assert layouts == [1, 2]
