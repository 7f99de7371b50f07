"""evolution: samplers try out perturbations of one policy, and the learner moves it towards those that did well.

Sources: Salimans et al. 2017, arXiv:1703.03864, algorithm 2; Mania et al. 2018, arXiv:1803.07055.

samplers --returns of numbered perturbations--> learner.update
    ^                                              |
    '-------------- weights, once an update -------'
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from rlrun.core.algorithm import Update
from rlrun.core.batch import Batch
from rlrun.core.errors import UserError
from rlrun.core.evolution import Report
from rlrun.core.job import Job
from rlrun.core.schedule import Clock
from rlrun.dataflow.slots import Episode, Header
from rlrun.machine import choices, compute
from rlrun.machine.asked import Asked, Choice
from rlrun.machine.machine import Machine
from rlrun.machine.resources import Inference, Precision, Resources
from rlrun.runners.base import Factories, RunnerConfig
from rlrun.samplers.population import PopulationBase

CPU = torch.device("cpu")


@dataclass(frozen=True, kw_only=True)
class Config(RunnerConfig):
    synchronous: ClassVar[bool] = True  # all episodes of an update perturb the same weights


def layout(asked: Asked, machine: Machine) -> Resources:
    """Samplers play whole episodes, as many at a time as they have columns. The learner waits for them, because it has
    little work."""
    cfg, population = asked.cfg, asked.needs.population
    assert population is not None
    compute.check_device(asked, machine)
    choices.check_own_samplers(asked, asked.needs.every_process_learns)
    if cfg.num_learners not in ("auto", 1):
        raise UserError(
            f"resources.num_learners={cfg.num_learners}: evolution has one learner, whose work is small; its samplers"
            " take the cores"
        )
    if cfg.inference == "batched":
        raise UserError(
            "resources.inference=batched: every episode of evolution has weights of its own, which samplers act with"
            " themselves (local or serial)"
        )
    if cfg.device not in ("auto", "cpu"):
        raise UserError(
            f"resources.device={cfg.device}: evolution learns on the CPU; an update is one weighted sum of noise"
        )
    if cfg.learner_threads not in ("auto", 1):
        raise UserError(
            f"resources.learner_threads={cfg.learner_threads}: evolution's update is one weighted sum of noise, which"
            " one thread makes"
        )
    cores = f"{machine.cores} core{'s' * (machine.cores > 1)}"
    spread = cfg.ray is not None
    if spread and (cfg.exact or cfg.inference == "serial"):
        raise UserError("resources.inference=serial: the samplers of resources=ray are on other machines (local)")
    alone = cfg.inference == "auto" and machine.cores == 1 and not spread
    serial = cfg.exact or cfg.inference == "serial" or alone
    kind: Inference = "serial" if serial else "local"
    inference = Choice(kind, f"inference={kind}: {cores}" if cfg.inference == "auto" else "")
    if serial and cfg.num_samplers not in ("auto", 1):
        raise UserError(f"resources.num_samplers={cfg.num_samplers}: serial inference has one")
    samplers = Choice(1) if serial else Choice(cfg.num_samplers)
    if cfg.ray is not None and cfg.ray.samplers_per_node != "auto":
        samplers = Choice(cfg.ray.samplers_per_node * len(machine.nodes))
    elif cfg.num_samplers == "auto" and not serial:
        count, on = machine.sampling_cores, f" of {len(machine.nodes)} nodes" if spread else ""
        samplers = Choice(count, f"num_samplers={count}: {count} cores{on}")
    envs = Choice(cfg.envs_per_sampler)
    if cfg.envs_per_sampler == "auto":
        count = max(1, min(choices.MAX_COLUMNS, -(-2 * population.pairs // samplers.value)))
        over = f"{samplers.value} sampler{'s' * (samplers.value > 1)}"
        envs = Choice(count, f"envs_per_sampler={count}: {2 * population.pairs} episodes an update over {over}")
    where = compute.on_cpu_despite("an update is one weighted sum of noise", asked, machine)
    precision: Precision = (
        "fp32" if cfg.precision == "auto" else compute.precision(cfg.precision, CPU, asked.convolutions, machine).value
    )
    return Resources(
        inference=kind,
        num_learners=1,
        samplers_per_learner=samplers.value,
        envs_per_group=envs.value,
        device=CPU,
        precision=precision,
        acting_precision=precision,
        learner_threads=(1,),
        cuda_graphs=False,
        tapes=False,
        compile=cfg.compile,
        exact=cfg.exact,
        why=tuple(choice.why for choice in (inference, where, samplers, envs) if choice.why),
    )


def run(make: Factories, cfg: Config, job: Job) -> None:
    """Runs until job.tick() ends it. Raises RunFailed when a sampler was lost that the budget of restarts does not
    replace."""
    algorithm = make.algorithm()
    clock = job.begin(algorithm)
    noise = make.noise()
    algorithm.attach_noise(noise)
    population: PopulationBase = make.population(noise)
    try:
        job.sampler_ready(population)
        reports: list[Report] = []
        population.begin(algorithm.policy, clock)
        update: Update | None = None
        while job.tick(clock, update):
            update = None
            with job.timers("wait"):
                new = population.take()
            reports += new
            job.ahead += sum(report.env_steps for report in new)
            if not population.done:
                continue
            # Steps are counted with their update, because a run that ends before it plays the same episodes again.
            clock, job.ahead = clock.after(env_steps=job.collected([header(report, clock) for report in reports])), 0
            with job.timers("learn"):
                update = algorithm.update(gathered(reports), clock)
            clock = clock.after(updates=1)
            with job.timers("publish"):
                algorithm.absorb_rows([report.moments for report in reports])
                reports = []
                population.begin(algorithm.policy, clock)
    finally:
        population.close()


def header(report: Report, clock: Clock) -> Header:
    """Makes the header of a report. Only episodes of the unperturbed policy count in statistics."""
    episodes = tuple(Episode(0, one.ret, one.length) for one in report.evaluations)
    return Header(
        worker=report.worker,
        slot=0,
        first_row=0,
        version=clock.updates,
        updates=clock.updates,
        env_steps=report.env_steps,
        episodes=episodes,
        seconds=report.seconds,
        failures=report.failures,
    )


def gathered(reports: list[Report]) -> Batch:
    """Collects offset [N] int64, fitness and ret [N, 2] (for both signs), and evaluation [M]."""
    # The sort makes the result independent of which sampler was faster.
    rollouts = sorted(
        (rollout for report in reports for rollout in report.rollouts), key=lambda rollout: rollout.offset
    )
    pairs = [(rollout.plus, rollout.minus) for rollout in rollouts]
    return Batch(
        offset=torch.tensor([rollout.offset for rollout in rollouts], dtype=torch.int64),
        fitness=torch.tensor([[one.fitness for one in pair] for pair in pairs], dtype=torch.float32).view(-1, 2),
        ret=torch.tensor([[one.ret for one in pair] for pair in pairs], dtype=torch.float32).view(-1, 2),
        evaluation=torch.tensor(
            [one.ret for report in sorted(reports, key=lambda r: r.order) for one in report.evaluations],
            dtype=torch.float32,
        ),
    )
