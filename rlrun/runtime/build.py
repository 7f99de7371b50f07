"""build(plan, ranks) makes the parts of a run that one learner needs, as its Plan says.

This file shows which arguments every part is made with.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from rlrun.algos.multi import Multi
from rlrun.cluster.packing import Form
from rlrun.cluster.population import HostPopulation
from rlrun.cluster.sampler import HostSampler
from rlrun.config.run import Typed
from rlrun.core.algorithm import Algorithm, LearnerContext, Needs
from rlrun.core.callbacks import (
    Callback,
    make_callbacks,
    told_before,
    watches_learning,
)
from rlrun.core.checkpoint import Checkpoints
from rlrun.core.errors import UserError
from rlrun.core.evolution import NoiseTable
from rlrun.core.job import Job
from rlrun.core.learners import FollowingLearner
from rlrun.core.policy import Policy
from rlrun.core.ranks import ALONE, Ranks
from rlrun.core.run import Run
from rlrun.core.specs import EnvSpec
from rlrun.core.watchdog import watched
from rlrun.dataflow.cut import Cut, Cuts
from rlrun.dataflow.meeting import StoreCut
from rlrun.dataflow.ranks import company
from rlrun.dataflow.workers import start_within
from rlrun.datasets.recorder import RecordingSampler
from rlrun.datasets.rows import DataRows
from rlrun.machine.graphs import CudaGraphs, GraphRecorder
from rlrun.machine.products import Products
from rlrun.machine.resources import Resources
from rlrun.machine.tapes import Tapes
from rlrun.machine.threads import HelperThread, TunedThreads
from rlrun.models.config import has_own_parts
from rlrun.models.encoders import ImageEncoder
from rlrun.models.model import Model
from rlrun.replay.buffer import Replay
from rlrun.replay.grouped import GroupedReplay
from rlrun.replay.service import ShardedReplay
from rlrun.runners.base import Factories
from rlrun.runtime.cluster import PLAYERS, SAMPLERS, brief, engine_of, learners_elsewhere
from rlrun.runtime.data_plan import recorder
from rlrun.runtime.given_weights import begin_with, give_weights
from rlrun.runtime.plan import Plan, PolicyFactory
from rlrun.runtime.rundir import command_line
from rlrun.samplers.base import Sampler
from rlrun.samplers.batched import BatchedSampler
from rlrun.samplers.local import LocalSampler
from rlrun.samplers.players import Crew
from rlrun.samplers.population import Population, PopulationBase
from rlrun.samplers.processes import ProcessSampler, SamplerPlan
from rlrun.samplers.serial import SerialSampler


class LearnerParts:
    """Makes the parts of a run for one of its learners. Each part is made when it is asked for."""

    def __init__(self, plan: Plan, ranks: Ranks, cut: Cuts | None, recorder: GraphRecorder | None):
        self.plan, self.ranks, self.cut, self.recorder = plan, ranks, cut, recorder
        self.seeds = plan.seeds
        # The job's own in the first learner's process, and instances of its own in every other learner's.
        self.callbacks: Sequence[Callback] | None = None
        self.restarts = plan.restarts()  # the job's, once it learns
        self.goes_on = False  # whether the job's checkpoint has the weights that init= and algo.fixed gave
        self.generation = 0  # that of a learner that does not wait for others: of the run, and of its replacements
        self.beside = HelperThread()

    @property
    def config(self) -> Typed:
        return self.plan.config

    @property
    def spec(self) -> EnvSpec:
        return self.plan.spec

    @property
    def needs(self) -> Needs:
        return self.plan.needs

    @property
    def resources(self) -> Resources:
        return self.plan.resources

    # -- the learner ---------------------------------------------------------------------------------------------------

    @property
    def device(self) -> torch.device:
        """Device of this learner."""
        device = self.resources.device
        return torch.device("cuda", self.ranks.rank) if device.type == "cuda" and self.ranks.world > 1 else device

    @property
    def columns(self) -> int:
        """Number of columns of this learner's part of a train batch."""
        return self.needs.columns // self.ranks.world

    @property
    def records(self) -> bool:
        """Whether repeated GPU work is recorded as CUDA graphs."""
        return self.device.type == "cuda" and self.resources.cuda_graphs

    @property
    def own_networks(self) -> bool:
        """Whether a part of the networks is the user's own. Such a part is never recorded, because it may do on the way
        what no recording shows: count its calls, or read a number back and choose by it."""
        return has_own_parts(self.config.run.model)

    def make_recorder(self, first: bool = False) -> GraphRecorder | None:
        """Returns a new recorder of GPU work, or None if none is recorded. Each thread has its own.

        first: this recorder belongs to the acting thread, whose work goes before the learner's."""
        if self.own_networks:
            return None
        return self.recorder or (CudaGraphs(self.device, first) if self.records else None)

    def learning_recorder(self, policy: Policy) -> GraphRecorder | None:
        """Returns a new recorder of updates. On a CPU, images and memory gain nothing from it. An algorithm of the
        user's is recorded on a GPU alone, where @recorded asks for it."""
        kind = self.config.algorithm
        ours = kind.__module__.startswith("rlrun.") and not self.own_networks
        small = not any(isinstance(part, ImageEncoder) or hasattr(part, "fixed_kernels") for part in policy.modules())
        if self.resources.tapes and ours and small and not kind.side_by_side:
            return self.recorder or Tapes()
        return self.make_recorder()

    def make_products(self) -> Products:
        """Makes a context that chooses the library that multiplies matrices inside updates."""
        return Products(possible=self.resources.device.type == "cpu" and not self.resources.exact)

    @functools.cached_property
    def threads(self) -> TunedThreads:
        """The context in which every update is made."""
        beside = self.beside if self.config.algorithm.side_by_side else None
        return TunedThreads(self.resources.learner_threads, beside=beside, products=self.make_products())

    def policy_factory(self, acting: bool) -> PolicyFactory:
        return self.plan.policy_factory(acting)

    def algorithm(self) -> Algorithm:
        policy = self.policy_factory(acting=False)().to(self.device)
        rng = self.seeds.generator("learner", *self._stream, device=str(self.device))
        # Shapes stay the same for a whole run, so a search for cuDNN's fastest algorithms would pay. But a search makes
        # the recording of another thread fail (machine/graphs.py).
        torch.backends.cudnn.benchmark = not self.records
        # PyTorch lets cuDNN round the factors of convolutions and recurrent layers to 10 bits (TF32), even where
        # products elsewhere are in float32. What is asked for as fp32 is computed in fp32.
        torch.backends.cudnn.allow_tf32 = False
        try:
            with torch.random.fork_rng(devices=[]):  # for critics and other nets that samplers do not have
                torch.manual_seed(self.seeds.integer("init-learner"))
                model = Model(self.config.run.model, self.resources.precision)
                ctx = LearnerContext(
                    self.device,
                    rng,
                    self.beside,
                    self.learning_recorder(policy),
                    self.ranks if self.plan.lockstep else ALONE,  # each of the others makes its updates alone
                    model,
                    sparse=self.plan.whole_after is not None,
                    minibatch_done=self.threads.minibatch_done,
                )
                made = self.config.algorithm(policy, self.spec, self.config.algo, ctx)
        except ValueError as error:
            raise UserError(f"algo={self.config.algo.name}: {error}") from None
        self._compile(policy)
        if self.callbacks is None:
            self.callbacks = make_callbacks(self.config.run.callbacks, Callback)
        watching = [callback for callback in self.callbacks if watches_learning(callback)]
        if watching:
            made.update = told_before(made.update, watching)  # type: ignore[method-assign]
        if self.ranks.apart and self.ranks.rank > 0:
            return made  # the first learner sends what it begins with; its files may not be on this machine
        if self.goes_on:
            return made
        if self.config.run.init is not None:
            begin_with(made, Path(self.config.run.init), self.config.algo.name)
        if isinstance(made, Multi):
            give_weights(made)  # comes last, because init= has policies of these names too
        return made

    @property
    def _stream(self) -> tuple[int, ...]:
        """The numbers of this learner's random stream. Learners in lockstep have the same generator, whose states never
        differ, and a checkpoint holds it. Each of the others has one of its own, which no checkpoint holds, so that it
        is another one in every generation."""
        if self.plan.lockstep:
            return ()
        rank, generation = self.ranks.rank, self.generation
        return (rank, generation) if generation else (rank,) if rank else ()

    def _compile(self, policy: Policy) -> None:
        """Lets the policy's encoders be compiled at their first call, if resources.compile is set."""
        for module in policy.modules() if self.resources.compile else ():
            if isinstance(module, ImageEncoder):
                module.compile(dynamic=False)

    # -- samplers ------------------------------------------------------------------------------------------------------

    def sampler_plan(self, generation: int) -> SamplerPlan:
        plan, made = self.plan, self.resources
        make_env = plan.make_env()
        if made.inference == "serial":  # the emulator may use the learner's threads, which are idle then
            make_env = replace(make_env, threads=max(made.learner_threads))
        return SamplerPlan(
            make_env=make_env,
            make_policy=self.policy_factory(acting=True),
            layout=plan.fragment,
            record=plan.needs.record,
            core_every=plan.needs.core_every,
            return_discount=plan.needs.return_discount,
            envs=made.envs_per_group,
            agents=self.spec.columns_per_env,
            workers=made.samplers_per_learner,
            in_flight=plan.fragments_per_producer,
            seeds=self.seeds,
            generation=generation,
            timeout_sec=self.config.runner.queue_timeout_sec,
            whole_after=plan.whole_after,
            first=self.ranks.rank * made.samplers_per_learner,
            total=made.num_envs,
            callbacks=self.config.run.callbacks,
            limits=plan.limits(),
            tasks=plan.needs.tasks,
        )

    def sampler(self, generation: int) -> Sampler:
        """Makes the sampler, which records what it hands over if the run says so."""
        made = self._sampler(generation)
        if self.config.run.record is None:
            return made
        record = self.policy_factory(acting=True)().record_spec(self.needs.record)
        watched = self.plan.lockstep and self.ranks.rank == 0  # by the run, which other learners' processes do not have
        return RecordingSampler(made, recorder(self.config, self.spec, record, command_line()), watched)

    def _sampler(self, generation: int) -> Sampler:
        plan = self.sampler_plan(generation)
        if self.resources.inference == "serial":
            return SerialSampler(plan, self.device, None if self.cut is None else self.cut.of(self.ranks.rank))
        if self.resources.nodes:
            return self._hosts(plan)
        sampler: LocalSampler | BatchedSampler
        if self.resources.inference == "local":
            sampler = LocalSampler(plan, restarts=self.restarts)
        else:
            sampler = BatchedSampler(
                plan,
                self.device,
                self.make_recorder(first=True),
                newest_only=self.config.runner.synchronous,
                restarts=self.restarts,
            )
        if self.device.type == "cuda":
            sampler.pin()
        return sampler

    def _hosts(self, sampler: SamplerPlan) -> HostSampler:
        """Makes the sampler whose parts are on several machines."""
        plan, cfg = self.plan, self.config.run.resources.ray
        assert cfg is not None
        return HostSampler(
            sampler,
            cfg,
            engine_of(cfg, plan.machine.nodes),
            SAMPLERS,
            brief(plan),
            plan.shares,
            Form(plan.fragment, self.spec.stack, cfg.compress),
            synchronous=self.config.runner.synchronous,
            batch=0 if plan.replay is not None else plan.columns_per_learner // plan.fragment_columns,
            restarts=self.restarts,
            shared=plan.replay is not None and plan.replay.shards is not None,
        )

    # -- replay --------------------------------------------------------------------------------------------------------

    def replay(self, generation: int) -> Replay | GroupedReplay:
        assert self.plan.replay is not None
        return self.plan.replay.replay(self.seeds, generation, self.ranks, self.device, self.make_recorder())

    def sharded_replay(self, generation: int, sampler: ProcessSampler | HostSampler, shards: int) -> ShardedReplay:
        assert self.plan.replay is not None
        made = self.plan.replay.sharded(self.seeds, generation, sampler, shards)
        if self.device.type == "cuda":
            made.pin()
        return made

    def data(self, generation: int) -> DataRows:
        """Makes the memory of recorded data that is drawn from."""
        assert self.plan.data is not None
        return self.plan.data.make(self.seeds, self.ranks, self.device, generation)

    # -- evolution -----------------------------------------------------------------------------------------------------

    def noise(self) -> NoiseTable:
        """Makes the noise table of an algorithm that learns from a population."""
        assert self.needs.population is not None
        return NoiseTable(self.needs.population.noise_size, self.seeds)

    def crew(self, noise: NoiseTable) -> Crew:
        made, asked = self.resources, self.needs.population
        assert asked is not None
        return Crew(
            make_env=self.plan.make_env(),
            make_policy=self.policy_factory(acting=True),
            asked=asked,
            noise=noise,
            seeds=self.seeds,
            envs=made.envs_per_group,
            players=0 if made.inference == "serial" else made.samplers_per_learner,
            timeout_sec=self.config.runner.queue_timeout_sec,
        )

    def population(self, noise: NoiseTable) -> PopulationBase:
        plan, cfg = self.plan, self.config.run.resources.ray
        if cfg is not None:
            crew, nodes = self.crew(noise), plan.machine.nodes
            told, start_sec = brief(plan), plan.limits().start_sec
            return HostPopulation(
                crew, cfg, engine_of(cfg, nodes), PLAYERS, told, plan.shares, start_sec, self.restarts
            )
        return Population(self.crew(noise), self.restarts)

    # -- together ------------------------------------------------------------------------------------------------------

    def factories(self) -> Factories:
        """Returns the functions with which the runner makes its parts."""
        return Factories(
            algorithm=self.algorithm,
            sampler=self.sampler,
            columns=self.columns,
            replay=self.replay,
            sharded_replay=self.sharded_replay,
            data=self.data,
            data_columns=0 if self.plan.data is None else self.plan.data.columns // self.ranks.world,
            noise=self.noise,
            population=self.population,
            rng=lambda generation: self.seeds.generator("replay", generation, self.ranks.rank),
            threads=self.threads,
            limits=self.plan.limits(),
            envs=self.resources.envs_per_group,
            learners=1 if self.plan.lockstep else self.resources.num_learners,
            learns_from_replay=self.needs.replay is not None,
            rounds=1 if self.needs.tasks is None else self.needs.tasks.rounds,
            elsewhere=functools.partial(factories_elsewhere, self.plan),
        )

    def learn(self, job: Job) -> None:
        """Runs the runner in this learner's process."""
        module = importlib.import_module(f"rlrun.runners.{self.config.runner.name}")
        self.callbacks = job.callbacks if isinstance(job, Run) else None
        self.restarts = job.restarts
        self.goes_on = getattr(job, "restored", None) is not None
        make = self.factories()
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        make.threads.take(make.threads.chosen)
        try:
            module.run(make, self.config.runner, job)
        finally:
            self.beside.close()  # a program may train many times


def build(
    plan: Plan, ranks: Ranks = ALONE, cut: Cuts | None = None, recorder: GraphRecorder | None = None
) -> LearnerParts:
    """Returns the parts of one learner. Processes that this one starts from now on may take as long as the plan says.

    ranks: this learner's place among those of the run. recorder: used in place of CUDA graphs, for tests."""
    start_within(plan.config.run.resources.start_timeout_sec)
    return LearnerParts(plan, ranks, cut, recorder)


def factories_elsewhere(plan: Plan, number: int, generation: int) -> Factories:
    """Makes the factories of one of several learners that do not wait for each other, in its process. generation: one
    that no process of this number had before."""
    parts = build(plan, Ranks(rank=number))
    parts.generation = generation
    return parts.factories()


def train(
    plan: Plan, job: Run, saved: Path | None = None, build: Callable[[Plan, Ranks, Cuts | None], LearnerParts] = build
) -> None:
    """Runs all learners of a plan.

    saved: the checkpoint from which a resumed job begins. build: makes the parts of the first learner."""
    start_within(plan.config.run.resources.start_timeout_sec)
    learners = plan.learners_in_lockstep
    if plan.resources.learner_nodes:
        with learners_elsewhere(plan, job.stops.stopping_sec) as apart:
            job.join(apart, plan.first_counted)
            counted = StoreCut(apart.store, learners, plan.needs.cut_share) if plan.needs.cut_share < 1 else None
            build(plan, apart, counted).learn(job)
        return
    cut = Cut(learners, plan.needs.cut_share) if plan.needs.cut_share < 1 and learners > 1 else None
    others = functools.partial(learn_elsewhere, plan, cut, saved)
    timeout_sec, threads = plan.config.runner.queue_timeout_sec, plan.resources.learner_threads[0]
    with company(learners, others, timeout_sec, threads, job.stops.stopping_sec, plan.limits()) as ranks:
        job.join(ranks, plan.first_counted)
        build(plan, ranks, cut).learn(job)


def learn_elsewhere(plan: Plan, cut: Cut | None, saved: Path | None, ranks: Ranks) -> None:
    """Runs one of the other learners, in its own process."""
    restored = None if saved is None else Checkpoints(saved.parent, keep=1).load(saved.name, parts=("algorithm",))
    with watching(plan):
        build(plan, ranks, cut).learn(FollowingLearner(ranks, restored, saved, plan.told_restarts()))


def watching(plan: Plan) -> contextlib.AbstractContextManager[None]:
    """Returns a context in which the environments of a learner other than the first are watched, if it steps them in
    its own process. One that cannot be interrupted ends that process, so that the first learner notices."""
    return watched(plan.limits()) if plan.resources.inference == "serial" else contextlib.nullcontext()
