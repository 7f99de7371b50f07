"""One page: configs -> spec -> policy factory -> sampler -> runner. What every component is given is written here."""

from __future__ import annotations

import functools
import importlib
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from rlrun.config.run import Typed
from rlrun.config.types import load_yaml
from rlrun.core.algorithm import Algorithm, LearnerContext, Needs
from rlrun.core.batch import RowSpec, fragment_layout
from rlrun.core.callbacks import Callback
from rlrun.core.checkpoint import Checkpoints
from rlrun.core.errors import UserError
from rlrun.core.evolution import NoiseTable, check_noise
from rlrun.core.learners import FollowingLearner
from rlrun.core.plugins import load_object
from rlrun.core.policy import Policy
from rlrun.core.ranks import ALONE, Ranks
from rlrun.core.run import Job, Run
from rlrun.core.seeding import Seeds
from rlrun.core.specs import EnvSpec
from rlrun.dataflow.cut import Cut
from rlrun.dataflow.ranks import company
from rlrun.envs import registry
from rlrun.machine.graphs import CudaGraphs, GraphRecorder
from rlrun.machine.products import Products
from rlrun.machine.resources import GROUPS, Resources, decide, free_memory, free_shared
from rlrun.machine.threads import HelperThread, TunedThreads
from rlrun.models.encoders import ImageEncoder
from rlrun.models.model import Model, ModelConfig, lower_precision
from rlrun.replay.buffer import Replay
from rlrun.replay.service import ShardedReplay
from rlrun.runners import distributed_replay, on_policy
from rlrun.runners.base import Factories
from rlrun.runtime.replay_plan import ReplayPlan, check_belongs, layout_of
from rlrun.samplers.base import Sampler
from rlrun.samplers.batched import BatchedSampler
from rlrun.samplers.local import LocalSampler
from rlrun.samplers.population import Crew, Population
from rlrun.samplers.processes import ProcessSampler, SamplerPlan
from rlrun.samplers.serial import SerialSampler


def shards_of(runner: Any) -> int | None:
    return runner.num_shards if isinstance(runner, distributed_replay.Config) else None


MAX_WHOLE = 10_000  # rows: the longest episode that complete_episodes makes room for


@dataclass(frozen=True)
class PolicyFactory:
    """Picklable; makes a policy with the run's initial weights. `acting`: convolutions in the precision of inference."""

    algorithm: type[Algorithm]
    algo: Any
    spec: EnvSpec
    model: ModelConfig
    precision: str
    seed: int
    acting: bool

    def __call__(self) -> Policy:
        with torch.random.fork_rng(devices=[]):  # nn.init takes no generator
            torch.manual_seed(self.seed)
            policy = self.algorithm.make_policy(self.spec, Model(self.model, self.precision), self.algo)
        if self.acting:
            lower_precision(policy)
            policy.requires_grad_(False)
        return policy


class Wiring:
    """All parts of one run, made on demand from a typed config."""

    def __init__(self, config: Typed, decided: Resources | None = None):
        """`decided`: by the first learner, so that all use the same."""
        self.config = config
        self.ranks = ALONE
        self.beside = HelperThread()
        self.recorder: GraphRecorder | None = None  # in place of the GPU's own
        self.gpu_memory: int | None = None  # bytes that were free on the learner's GPU
        self.cut: Cut | None = None
        self.seeds = Seeds(config.run.seed)
        self.spec = registry.make_spec(config.env, config.run.model.memory.prev_action, config.run.model.memory.prev_reward)
        self.needs: Needs = config.algorithm.needs(config.algo)
        self.make_env = registry.Factory(cfg=config.env, spec=self.spec, seeds=self.seeds, stream="env", learning=True)
        if self.spec.action.kind not in self.needs.actions:
            raise UserError(f"{config.algo.name} needs {' or '.join(self.needs.actions)} actions; {self.spec.name} has {self.spec.action}")
        if self.needs.on_policy and not config.runner.synchronous:
            raise UserError(f"{config.algo.name} learns from the newest policy's rows alone; runner={config.runner.name} would hand it older ones")
        if not config.runner.lockstep and not self.needs.only_weights:
            raise UserError(f"runner={config.runner.name} shares weights alone, and an update of {config.algo.name} changes more; it is for a3c, a2c and pg")
        if (self.needs.population is not None) != (config.runner.name == "evolution"):
            fitting = "runner=evolution" if self.needs.population is not None else "another runner than evolution"
            raise UserError(f"{config.algo.name} runs with {fitting}, not with runner={config.runner.name}")
        check_belongs(self.needs.replay, self.needs.columns, config.run.replay, config.algo.name, config.runner.name)
        whole = isinstance(config.runner, on_policy.Config) and config.runner.complete_episodes
        self.whole_after = self.needs.rows if whole else None  # rows after which a column's last episode ends its fragment
        if whole:
            self.needs = replace(self.needs, shared=(1,))  # learners would have unequal numbers of minibatches
        self.resources: Resources = decided or decide(
            config.run.resources, self.needs, self.make_env, self.spec.image, config.runner.synchronous, config.runner.lockstep, config.runner.apart
        )
        self.rows = self.needs.rows if self.needs.replay is None else self.needs.replay.fragment_length  # of a fragment
        if self.whole_after is not None:
            self.rows += self._room_for_episodes()
        if self.needs.cut_share < 1 and self.resources.inference != "serial":
            raise UserError(f"a straggler cut needs samplers that learn: resources.inference=serial, or algo.cut_share=1 with {self.resources.inference}")

    def replay_plan(self) -> ReplayPlan:
        """Of an algorithm that learns from a replay."""
        cfg, needs, made = self.config.run.replay, self.needs, self.resources
        assert cfg is not None and needs.replay is not None
        layout = layout_of(cfg, needs, self.spec, self.policy_factory(acting=False)(), made)
        first = functools.partial(self.config.algorithm.first_priority, self.config.algo) if needs.replay.first_priority else None
        plan = ReplayPlan(cfg, layout, made.num_learners, needs.columns, self.seeds, self.config.runner.queue_timeout_sec, first)
        if self.gpu_memory is None:  # asked once: a replay that is there takes of it
            self.gpu_memory = torch.cuda.mem_get_info(self.device)[0] if self.device.type == "cuda" else 0
        return plan.placed(self.device, shards_of(self.config.runner), self.gpu_memory)

    def check_memory(self) -> None:
        """UserError before the start where a replay cannot fit."""
        if self.needs.replay is not None:
            self.replay_plan().check(free_memory(), self.device, shards_of(self.config.runner))
        if self.needs.population is not None:
            check_noise(
                self.needs.population.noise_size, sum(p.numel() for p in self.policy_factory(acting=False)().parameters()), free_memory(), free_shared()
            )

    def check_saved(self, folder: Path) -> None:
        """UserError where what this checkpoint holds does not fit."""
        if self.needs.replay is not None:
            self.replay_plan().check_saved(folder, shards_of(self.config.runner))

    def replay(self, generation: int) -> Replay:
        return self.replay_plan().replay(generation, self.ranks, self.device)

    def sharded_replay(self, generation: int, sampler: ProcessSampler, shards: int) -> ShardedReplay:
        made = self.replay_plan().sharded(generation, sampler, shards)
        if self.device.type == "cuda":
            made.pin()
        return made

    def noise(self) -> NoiseTable:
        """Of an algorithm that learns from a population; made once, by the learner."""
        assert self.needs.population is not None
        return NoiseTable(self.needs.population.noise_size, self.seeds)

    def crew(self, noise: NoiseTable) -> Crew:
        made, asked = self.resources, self.needs.population
        assert asked is not None
        players = 0 if made.inference == "serial" else made.num_samplers
        return Crew(
            self.make_env, self.policy_factory(acting=True), asked, noise, self.seeds, made.envs_per_sampler, players, self.config.runner.queue_timeout_sec
        )

    def population(self, noise: NoiseTable) -> Population:
        return Population(self.crew(noise))

    def layout_decided(self) -> dict[str, Any]:
        """What `auto` became, as options of resources."""
        made = self.resources
        samplers = "auto" if self.needs.every_process_learns or not self.config.runner.lockstep else made.num_samplers * made.num_learners
        return {"inference": made.inference, "num_learners": made.num_learners, "num_samplers": samplers, "envs_per_sampler": made.envs_per_sampler}

    def _room_for_episodes(self) -> int:
        """Rows that a fragment needs beyond its length so that its last episode can end. Raises UserError where that is unknown or too much."""
        limit, every = self.spec.max_episode_steps, self.needs.core_every or 1
        if self.resources.num_learners > 1:
            raise UserError("runner.complete_episodes=true needs one learner: resources.num_learners=1")
        if limit is None or limit > MAX_WHOLE:
            known = "has no limit" if limit is None else f"may last {limit} steps"
            raise UserError(f"runner.complete_episodes=true makes room for the longest episode, and one of {self.spec.name} {known}; "
                            f"set {self.spec.limit_option}, for {MAX_WHOLE} steps or less")  # fmt: skip
        return -(-(limit + 1) // every) * every

    def eval_env(self) -> registry.Factory:
        """Full games with seeds that training never uses."""
        return registry.Factory(cfg=self.config.env, spec=self.spec, seeds=self.seeds, stream="eval", learning=False)

    def policy_factory(self, acting: bool) -> PolicyFactory:
        config, precision = self.config, self.resources.acting_precision if acting else self.resources.precision
        return PolicyFactory(config.algorithm, config.algo, self.spec, config.run.model, precision, self.seeds.integer("init"), acting)

    def _compile(self, policy: Policy) -> None:
        """Has the policy's encoders compiled at their first call, where that was asked for."""
        for module in policy.modules() if self.resources.compile else ():
            if isinstance(module, ImageEncoder):
                module.compile(dynamic=False)

    @property
    def records(self) -> bool:
        """Whether what is done again and again is recorded as CUDA graphs."""
        return self.device.type == "cuda" and self.resources.cuda_graphs

    def make_recorder(self, first: bool = False) -> GraphRecorder | None:
        """Of this learner, or (first) of what acts on its GPU: one for each thread."""
        return self.recorder or (CudaGraphs(self.device, first) if self.records else None)

    def algorithm(self) -> Algorithm:
        policy = self.policy_factory(acting=False)().to(self.device)
        rng = self.seeds.generator("learner", device=str(self.device))  # the same for every learner: their states never differ
        # Shapes are the same for a whole run, so the fastest algorithms might be searched for; a search ends what another thread records (machine/graphs.py).
        torch.backends.cudnn.benchmark = not self.records
        try:
            with torch.random.fork_rng(devices=[]):  # critics and other nets that never travel
                torch.manual_seed(self.seeds.integer("init-learner"))
                model = Model(self.config.run.model, self.resources.precision)
                ctx = LearnerContext(self.device, rng, self.beside, self.make_recorder(), self.ranks, model, sparse=self.whole_after is not None)
                made = self.config.algorithm(policy, self.spec, self.config.algo, ctx)
        except ValueError as error:
            raise UserError(f"algo={self.config.algo.name}: {error}") from None
        self._compile(policy)
        if self.config.run.init is not None:
            begin_with(made, Path(self.config.run.init), self.config.algo.name)
        return made

    def layout(self, policy: Policy) -> RowSpec:
        return fragment_layout(
            self.spec.obs_rows, self.spec.action_row, policy.record_spec(self.needs.record), policy.core_spec(), self.rows,
            self.resources.envs_per_sampler, self.needs.core_every,
        )  # fmt: skip

    def sampler(self, generation: int) -> Sampler:
        made, needs = self.resources, self.needs
        acting = self.policy_factory(acting=True)
        producers = made.num_samplers * GROUPS[made.inference]
        held = self.columns // made.envs_per_sampler  # fragments that one train batch holds before it gives them back
        if self.config.runner.synchronous:
            in_flight = held // producers
        elif needs.replay is not None:
            in_flight = 2  # one is filled while another is stored
        else:
            in_flight = max(self.config.runner.requests_in_flight, -(-(held + 1) // producers))
        make_env = replace(self.make_env, threads=max(made.learner_threads)) if made.inference == "serial" else self.make_env  # which learn at other times
        plan = SamplerPlan(
            make_env, acting, self.layout(acting()), needs.record, needs.core_every, needs.return_discount, made.envs_per_sampler, made.num_samplers,
            in_flight, self.seeds, generation, self.config.runner.queue_timeout_sec, self.whole_after,
            self.ranks.rank * made.num_samplers, made.envs_per_sampler * producers * made.num_learners,
        )  # fmt: skip
        if made.inference == "serial":
            return SerialSampler(plan, self.device, None if self.cut is None else self.cut.of(self.ranks.rank))
        sampler: LocalSampler | BatchedSampler
        if made.inference == "local":
            sampler = LocalSampler(plan)
        else:
            sampler = BatchedSampler(plan, self.device, self.make_recorder(first=True), newest_only=self.config.runner.synchronous)
        if self.device.type == "cuda":
            sampler.pin()
        return sampler

    @property
    def threads(self) -> TunedThreads:
        """Of a learner's updates."""
        beside = self.beside if self.config.algorithm.side_by_side else None
        return TunedThreads(self.resources.learner_threads, beside=beside, products=self.products)

    @property
    def products(self) -> Products:
        """Of a learner's updates."""
        return Products(possible=self.resources.device.type == "cpu" and not self.resources.exact)

    @property
    def device(self) -> torch.device:
        """Of this learner."""
        device = self.resources.device
        return torch.device("cuda", self.ranks.rank) if device.type == "cuda" and self.ranks.world > 1 else device

    @property
    def columns(self) -> int:
        """Of this learner's part of a train batch."""
        return self.needs.columns // self.ranks.world

    def factories(self, ranks: Ranks = ALONE) -> Factories:
        """What the runner of one of these learners is given."""
        self.ranks = ranks
        return Factories(
            algorithm=self.algorithm,
            sampler=self.sampler,
            columns=self.columns,
            replay=self.replay,
            sharded_replay=self.sharded_replay,
            noise=self.noise,
            population=self.population,
            rng=lambda generation: self.seeds.generator("replay", generation, ranks.rank),
            threads=self.threads,
            learners=1 if self.config.runner.lockstep else self.resources.num_learners,
            elsewhere=Elsewhere(self.config, self.resources),
        )

    def learn(self, job: Job, ranks: Ranks = ALONE) -> None:
        """Runs the runner, as one of these learners."""
        module = importlib.import_module(f"rlrun.runners.{self.config.runner.name}")
        make = self.factories(ranks)
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        make.threads.take(make.threads.chosen)
        module.run(make, self.config.runner, job)

    def train(self, job: Run, saved: Path | None = None) -> None:
        """learn() with as many learners as were decided. `saved`: the checkpoint that a resumed job begins with."""
        learners = self.resources.num_learners if self.config.runner.lockstep else 1
        if self.needs.cut_share < 1 and learners > 1:
            self.cut = Cut(learners, self.needs.cut_share)
        follower = FollowingLearnerFactory(self.config, self.resources, self.cut, saved)
        timeout = self.config.runner.queue_timeout_sec
        with company(learners, follower, timeout, self.resources.learner_threads[0]) as ranks:
            job.ranks = ranks
            columns = self.resources.envs_per_sampler * self.resources.num_samplers * GROUPS[self.resources.inference] * self.resources.num_learners
            job.first_counted = min(columns - 1, math.ceil(self.needs.counted_from * columns))
            self.learn(job, ranks)


def begin_with(algorithm: Algorithm, path: Path, name: str) -> None:
    """Gives an algorithm the weights (and filters) of another run: all of them where that run's algorithm is the same, else the policy's. `path`: a run
    directory, whose last checkpoint is meant, or one of its checkpoints. Counters, optimisers, schedules and
    coefficients that adapt begin anew."""
    run_dir, checkpoint = (path.parent.parent, path.name) if path.parent.name == "checkpoints" else (path, None)
    if not (run_dir / "config.yaml").is_file():
        raise UserError(f"init={path} is neither a run directory nor one of its checkpoints")
    tensors, _ = checkpoints_of(run_dir).load(checkpoint, parts=("policy", "algorithm"))
    try:
        if load_yaml(run_dir / "config.yaml")["algo"]["name"] == name:
            saved, anew = tensors["algorithm"]["module"], algorithm.state_dict()
            own = {f"{prefix}.{key}".lstrip(".") for prefix, module in algorithm.named_modules() if isinstance(module, Algorithm)
                   for key, _ in module.named_buffers(recurse=False)}  # fmt: skip
            own |= {key for key in anew.keys() ^ saved.keys() if "reward_scale." in key}  # one run scales rewards, the other does not
            algorithm.load_state_dict({key: value for key, value in saved.items() if key not in own} | {key: anew[key] for key in own & anew.keys()})
        else:
            algorithm.policy.load_state_dict(tensors["policy"])
            for part in [m for m in algorithm.modules() if isinstance(m, Algorithm)]:
                part.renew_targets()
    except RuntimeError as error:
        said = str(error).splitlines()
        raise UserError(f"init={path}: its weights do not fit this run's env and model: {said[1].strip() if len(said) > 1 else said[0]}") from None


def callbacks_of(names: tuple[str, ...]) -> list[Callback]:
    """One of each class. Raises UserError for what is none."""
    made = []
    for name in names:
        kind = load_object(name, "callbacks")
        if not (isinstance(kind, type) and issubclass(kind, Callback)):
            raise UserError(f"callbacks={name} is no subclass of rlrun.Callback")
        try:
            made.append(kind())
        except Exception as error:  # the user's own
            raise UserError(f"callbacks={name} cannot be made: {type(error).__name__}: {error}") from None
    return made


@dataclass(frozen=True)
class Elsewhere:
    """Picklable; called in the process of one of several learners that do not go in lockstep."""

    config: Typed
    resources: Resources

    def __call__(self, number: int) -> Factories:
        return Wiring(self.config, self.resources).factories(Ranks(rank=number))


@dataclass(frozen=True)
class FollowingLearnerFactory:
    """Picklable; called in the process of a learner other than the first."""

    config: Typed
    resources: Resources
    cut: Cut | None
    saved: Path | None

    def __call__(self, ranks: Ranks) -> None:
        restored = None if self.saved is None else Checkpoints(self.saved.parent, keep=1).load(self.saved.name, parts=("algorithm",))
        wiring = Wiring(self.config, self.resources)
        wiring.cut = self.cut
        wiring.learn(FollowingLearner(ranks, restored, self.saved), ranks)


def preflight(config: Typed) -> Wiring:
    """Builds every part but the sampler once, so that what cannot work is said before a directory or a worker exists."""
    wiring = Wiring(config)
    wiring.ranks = Ranks(world=wiring.resources.num_learners if config.runner.lockstep else 1)
    wiring.algorithm()
    wiring.ranks = ALONE
    wiring.check_memory()
    callbacks_of(config.run.callbacks)
    return wiring


def checkpoints_of(run_dir: Any, keep: int = 3) -> Checkpoints:
    return Checkpoints(run_dir / "checkpoints", keep)
