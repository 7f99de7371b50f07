"""What is checked before a run begins: that its parts can be made, and that the machine has room for them."""

from __future__ import annotations

import contextlib
from pathlib import Path

from rlrun.core.callbacks import Callback, EnvCallback, callback_class, make_callbacks
from rlrun.core.errors import UserError
from rlrun.core.evaluation import make_evaluation
from rlrun.core.evolution import check_noise
from rlrun.core.ranks import Ranks
from rlrun.dataflow.shared import shared_bytes
from rlrun.datasets.open import would_read
from rlrun.machine.machine import Machine
from rlrun.runtime.build import build
from rlrun.runtime.data_plan import recorder
from rlrun.runtime.plan import Plan
from rlrun.runtime.room import allow_files, check_processes, check_shared, shares_learner
from rlrun.runtime.rundir import command_line
from rlrun.runtime.training_estimates import check_estimates


def preflight(plan: Plan, machine: Machine) -> list[Callback]:
    """Builds the algorithm once and checks cores, memory and the user's parts, before the run directory or a worker
    exists. Returns the user's callbacks, which the run takes over.

    Raises UserError if the run cannot work."""
    check_processes(plan, machine.sampling_cores)
    parts = build(plan, Ranks(world=plan.learners_in_lockstep))
    parts.callbacks = []
    algorithm = parts.algorithm()
    if plan.replay is not None:
        plan.replay.check(machine.free_memory, plan.resources.device)
    if plan.data is not None:
        plan.data.check(machine.free_memory)
    if plan.config.run.record is not None:
        check_record(plan)
    if plan.needs.population is not None:
        check_noise(plan.needs.population.noise_size, plan.parameters, machine.free_memory, machine.free_shared)
    check_shared(plan, machine.free_shared, shared_bytes(algorithm) if shares_learner(plan) else 0)
    allow_files(plan)
    check_estimates(plan, machine.free_memory)
    if plan.config.run.eval.function is not None:
        make_evaluation(plan.config.run.eval.function)
    return checked_callbacks(plan)


def check_record(plan: Plan) -> None:
    """Raises UserError if a run that should be recorded gathers no rows, if it would add them to the data that it
    learns from, or if its folder cannot take them."""
    if plan.config.runner.name in ("offline", "evolution"):
        raise UserError(
            f"record= writes the rows that samplers hand over, and runner={plan.config.runner.name} has none;"
            " rlrun record RUN_DIR records the trained policy"
        )
    record = plan.policy_factory(acting=True)().record_spec(plan.needs.record)
    assert plan.config.run.record is not None
    folder = Path(plan.config.run.record)
    for source, _ in plan.data.sources() if plan.data is not None else ():
        if would_read(source, folder):
            raise UserError(
                f"record={folder} would add to data.path={source.name}, which this run learns from, and it could not be"
                " resumed with other data; record into a folder outside of it"
            )
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        recorder(plan.config, plan.spec, record, command_line())
    finally:
        for path in missing:  # the run makes them again; --plan should leave nothing behind
            with contextlib.suppress(OSError):  # another run may have begun there
                path.rmdir()


def checked_callbacks(plan: Plan) -> list[Callback]:
    """Makes every callback. Raises UserError if one cannot be made, or would never be called."""
    names = plan.config.run.callbacks
    if make_callbacks(names, EnvCallback) and plan.needs.population is not None:
        watching = next(name for name in names if issubclass(callback_class(name), EnvCallback))
        raise UserError(
            f"callbacks={watching} watches env steps, but samplers of runner={plan.config.runner.name} report returns"
            " only; a subclass of rlrun.Callback is told about these"
        )
    return make_callbacks(names, Callback)
