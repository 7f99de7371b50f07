"""What a run's processes need of the system: cores, shared memory (/dev/shm), in which they exchange rows and weights,
and open files. Without these checks, a run would end after its processes have been started, or by a bus error when the
memory is written. A container often has 64 MB of shared memory."""

from __future__ import annotations

import multiprocessing
import os
import resource

from rlrun.core.batch import layout_bytes
from rlrun.core.errors import UserError
from rlrun.replay.service import PREFETCHED, drawn_layout
from rlrun.runtime.plan import Plan

NUMBER = 4  # bytes of a float32
SIDES = 2  # WeightBus: one half is written while the other is read
REST = 2**16  # pulses and counters


def elsewhere(plan: Plan) -> bool:
    """Tells whether the samplers are on the machines of a cluster that was there before, each of which checks its own
    room (check_host)."""
    cfg = plan.config.run.resources.ray
    return cfg is not None and cfg.address is not None


def shares_learner(plan: Plan) -> bool:
    """Tells whether several processes change the weights of one learner (SharedLearner)."""
    return plan.config.runner.name == "async_gradients" and plan.resources.num_learners > 1


def shared_parts(plan: Plan, learner: int = 0) -> dict[str, int]:
    """Returns what the run keeps in the shared memory of the learner's machine, in bytes. Learners that work in
    lockstep each have parts of their own; those that do not wait for each other share one, whose size is given
    (shared_bytes). Simulated nodes are on this machine."""
    made, needs = plan.resources, plan.needs
    parts: dict[str, int] = {}
    weights = plan.weight_bytes
    sharded = plan.replay is not None and plan.replay.shards is not None
    if made.inference != "serial":
        learners = _learners_here(plan)
        here = bool(made.learner_nodes) or not elsewhere(plan)  # each of several learners has samplers beside it
        # Rows that come from other processes of Ray are copied to where the shards read them.
        times = here + (sharded and made.nodes != ())
        slots = learners * made.producers_per_learner * plan.fragments_per_producer
        parts["fragments"] = times * slots * plan.fragment_bytes
        if made.inference == "local" and here:
            parts["weights"] = max(learners, len(made.nodes)) * SIDES * weights
    if shares_learner(plan):
        parts["the learner"] = learner
    if evaluators(plan):
        parts["weights for evaluation"] = SIDES * weights
    if plan.replay is not None and plan.replay.shards is not None:
        batch = layout_bytes(drawn_layout(plan.replay.layout, needs.columns))
        parts["batches of the replay"] = plan.replay.shards * PREFETCHED * batch
    if needs.population is not None:
        tables = 1 if elsewhere(plan) else 1 + len(made.nodes)
        parts["the noise table" if tables == 1 else "noise tables"] = tables * NUMBER * needs.population.noise_size
    return {name: size for name, size in parts.items() if size}


def host_parts(plan: Plan, workers: int) -> dict[str, int]:
    """Returns what one machine of a cluster keeps in shared memory for so many samplers or players, in bytes."""
    weights = {"weights": SIDES * plan.weight_bytes}
    if plan.needs.population is not None:
        return weights | {"the noise table": NUMBER * plan.needs.population.noise_size}
    slots = workers * plan.resources.groups * plan.fragments_per_producer
    return weights | {"fragments": slots * plan.fragment_bytes}


def check_host(plan: Plan, workers: int, free: int) -> None:
    """Does for one machine of a cluster what check_shared() and allow_files() do for the learner's."""
    _check_shared(host_parts(plan, workers), free)
    _allow_files(workers)


def _learners_here(plan: Plan) -> int:
    """Learners on this machine: all, unless they are on several, which are not simulated here."""
    cfg, spread = plan.config.run.resources.ray, plan.resources.learner_nodes
    return spread[0] if spread and cfg is not None and not cfg.simulate else plan.resources.num_learners


def check_shared(plan: Plan, free: int, learner: int = 0) -> None:
    """Raises UserError if the run needs more shared memory than is free, which is given in bytes. learner: as in
    shared_parts()."""
    _check_shared(shared_parts(plan, learner), free)


def _check_shared(parts: dict[str, int], free: int) -> None:
    needed = sum(parts.values()) + REST
    if not parts or needed <= free:
        return
    each = ", ".join(f"{size / 1e6:.1f} MB for {name}" for name, size in parts.items())
    fewer = {
        "fragments": "fewer samplers (resources.num_samplers), smaller batches",
        "weights": "a smaller network",
        "the learner": "a smaller network",
        "weights for evaluation": "eval.workers=0 or a smaller network",
        "batches of the replay": "smaller batches (algo.inner.batch_size)",
        "the noise table": "a smaller algo.noise_size",
        "noise tables": "a smaller algo.noise_size",
    }[max(parts, key=lambda name: parts[name])]
    needs = f"this run needs {needed / 1e6:.1f} MB of shared memory ({each})"
    if os.path.isdir("/dev/shm") and not os.access("/dev/shm", os.W_OK | os.X_OK):
        raise UserError(
            f"{needs}, and this user may not write to /dev/shm: make it writable (mount -o remount,rw,mode=1777"
            " /dev/shm), or run all in one process with resources.inference=serial"
        )
    raise UserError(
        f"{needs}, and {free / 1e6:.1f} MB of /dev/shm are free:"
        f" start the container with --shm-size={max(1, round(2 * needed / 2**20))}m or more, or take {fewer}"
    )


FILES, FILES_PER_PROCESS = 16, 4  # of the run's own process, and in it for each other process: two pipes, memory
MANY_FILES = 4096


def evaluators(plan: Plan) -> int:
    """Returns how many processes evaluate beside the run's own. In a bit-exact run none do, because when they are done
    would depend on the clock."""
    return plan.config.run.eval.workers if plan.evaluates and not plan.resources.exact else 0


def processes_of(plan: Plan) -> dict[str, int]:
    """Returns how many processes the run starts beside its own, for each option that asks for them."""
    made = plan.resources
    parts = {
        "resources.num_samplers": made.num_samplers if made.inference != "serial" else 0,
        "resources.num_learners": made.num_learners - 1 if plan.lockstep or made.exact else made.num_learners,
        "runner.num_shards": (plan.replay.shards or 0) if plan.replay is not None else 0,
        "eval.workers": evaluators(plan),
    }
    return {option: count for option, count in parts.items() if count}


def check_processes(plan: Plan, cores: int) -> None:
    """Raises UserError if the run would start far more processes than there are cores, or if it may start none.

    They would take memory and turns from each other, and a mistyped number could stop the whole machine. Python lets no
    daemon process start others, such as one of multiprocessing.Pool."""
    if processes_of(plan) and multiprocessing.current_process().daemon:
        raise UserError(
            "this run starts processes, and Python forbids that in a process of multiprocessing.Pool: use"
            " concurrent.futures.ProcessPoolExecutor or rlrun.sweep, or resources.inference=serial with eval.workers=0"
        )
    parts, most = processes_of(plan), plan.config.run.resources.max_processes_per_core
    count = sum(parts.values())
    if count <= most * cores:
        return
    each = " and ".join(f"{option}={number}" for option, number in parts.items())
    raise UserError(
        f"{each}: this run would start {count} processes, and at most {most * cores} are started on"
        f" {cores} core{'s' * (cores > 1)}; take fewer, or force it with"
        f" resources.max_processes_per_core={-(-count // cores)}"
    )


def allow_files(plan: Plan) -> None:
    """Raises this process's limit of open files where it is too small. Raises UserError where that is not allowed."""
    parts = processes_of(plan)
    if plan.resources.nodes:  # samplers have their pipes in their hosts' processes
        parts.pop("resources.num_samplers", None)
    _allow_files(sum(parts.values()))


def _allow_files(processes: int) -> None:
    needed = FILES + FILES_PER_PROCESS * processes
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if now == resource.RLIM_INFINITY or needed <= now:
        return
    if most != resource.RLIM_INFINITY and most < needed:
        raise UserError(
            f"this run needs about {needed} open files for {processes} processes, and {most} are allowed: raise"
            f" the limit (ulimit -n {MANY_FILES}) or take fewer processes (resources.num_samplers)"
        )
    wanted = MANY_FILES if most == resource.RLIM_INFINITY else min(most, MANY_FILES)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(wanted, needed), most))
