"""How a run is laid out: learners, columns, inference and samplers. How it computes: compute.py.

Each decision is a function of the request and of the machine. It returns its value and a sentence that says why."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch

from rlrun.core.errors import EnvError, UserError
from rlrun.machine import compute
from rlrun.machine.asked import Asked, Choice, Spread, counted
from rlrun.machine.machine import Machine
from rlrun.machine.resources import BATCHED_GROUPS, Inference, Pace, Resources

MAX_ENVS = 64  # environments of one run that `auto` chooses at most; with more, short runs finish too few games
MAX_GPU_ENVS = 256  # the same with inference on a GPU, where many small messages would cost more than acting
MAX_COLUMNS = 16  # columns of a fragment that `auto` chooses at most; inference on a CPU gains nothing from more
UPDATE_SEC = 2e-3  # the least time that an update of small nets takes
MINOR_SHARE = 0.25  # environments that take less than this share of learning's time get no process of their own
# With a replay, a group that a GPU acts for has at least this many columns: handing over fewer costs more than a step.
GPU_COLUMNS = 4
CHEAP_STEP_SEC = 30e-6  # seconds of one env's step; for cheaper ones, processes cost more than they gain


# -- learners ----------------------------------------------------------------------------------------------------------


def check_own_samplers(asked: Asked, every_process_learns: bool) -> None:
    """Raises UserError if num_samplers is set although every process samples and learns."""
    cfg = asked.cfg
    if every_process_learns and cfg.inference in ("auto", "serial") and cfg.num_samplers not in ("auto", 1):
        raise UserError(
            f"resources.num_samplers={cfg.num_samplers}: every process samples and learns; say how many with"
            " resources.num_learners"
        )
    if every_process_learns and cfg.ray is not None and cfg.ray.samplers_per_node != "auto":
        raise UserError(
            f"resources.ray.samplers_per_node={cfg.ray.samplers_per_node}: every process samples and learns; say how"
            " many with resources.num_learners"
        )


def refuse_samplers(asked: Asked) -> None:
    """Raises UserError if samplers are asked for in a run that has none."""
    cfg = asked.cfg
    for name, wanted, fitting in (
        ("inference", cfg.inference, ("auto", "serial")),
        ("num_samplers", cfg.num_samplers, ("auto", 1, cfg.num_learners)),  # earlier versions saved one for each
        ("envs_per_sampler", cfg.envs_per_sampler, ("auto", 1)),
    ):
        if wanted not in fitting:
            raise UserError(f"resources.{name}={wanted}: a run that learns from data has no samplers")


def learners_in_lockstep(asked: Asked, machine: Machine) -> Choice:
    """Chooses the number of learners that share one train batch.

    Raises UserError if there are fewer devices, or if the columns cannot be divided evenly."""
    cfg, needs = asked.cfg, asked.needs
    on_gpus = cfg.device != "cpu" and bool(machine.gpus) and (needs.every_process_learns or cfg.inference != "serial")
    on_gpus = on_gpus and not machine.nodes  # several learners on several machines learn on CPUs
    devices = len(machine.gpus) if on_gpus else machine.sampling_cores
    if on_gpus and cfg.device != "auto" and torch.device(cfg.device).index is not None:
        devices = 1  # the device that the user named
    there = counted(devices, "GPU" if on_gpus else "core") + _of_nodes(machine)
    fitting = [n for n in range(1, devices + 1) if needs.columns % n == 0]
    if cfg.num_learners == "auto":
        if not needs.every_process_learns or needs.replay is not None or cfg.exact:
            return Choice(1)  # with a replay too, because two learners of 16 rows each were slower than one of 32
        best = max(n for n in fitting if all(count % n == 0 for count in needs.shared))
        return Choice(
            best,
            f"num_learners={best}: every process samples and learns; {there}, {needs.columns} columns of a train batch",
        )
    _check_enough(cfg.num_learners, devices, there, fitting)
    if cfg.num_learners not in fitting:
        of = (
            "columns of a train batch (algo.batch_size / algo.fragment_length)"
            if needs.replay is None
            else "fragments of a train batch (algo.batch_size)"
        )
        raise UserError(
            f"resources.num_learners={cfg.num_learners} must divide the {needs.columns} {of}; {_either(fitting)}"
            " would fit"
        )
    return Choice(cfg.num_learners)


def learners_on_their_own(asked: Asked, machine: Machine) -> Choice:
    """Chooses the number of learners that have train batches of their own and share the weights in memory.

    Raises UserError if there are fewer cores."""
    cfg, there = asked.cfg, counted(machine.cores, "core")
    if cfg.num_learners == "auto":
        return (
            Choice(1)
            if cfg.exact
            else Choice(machine.cores, f"num_learners={machine.cores}: every process samples and learns; {there}")
        )
    _check_enough(cfg.num_learners, machine.cores, there, list(range(1, machine.cores + 1)))
    return Choice(cfg.num_learners)


def _check_enough(wanted: int, devices: int, there: str, fitting: list[int]) -> None:
    if wanted > devices:
        raise UserError(
            f"resources.num_learners={wanted}: there {'is' if devices == 1 else 'are'} {there}; {_either(fitting)}"
            " would fit"
        )


# -- columns -----------------------------------------------------------------------------------------------------------


def batch_columns(asked: Asked, learners: int, shared: bool) -> Spread:
    """Returns the columns of a train batch and each learner's part."""
    total = asked.needs.columns
    over = f" over {learners} learners" if learners > 1 else ""
    return Spread(
        total,
        total // learners,
        shared,
        f"{total} columns of a train batch (algo.batch_size / algo.fragment_length){over}",
    )


def replay_columns(asked: Asked, learners: int) -> Choice:
    """Returns the environments that feed a replay and each learner's part. The value is a Spread."""
    assert asked.needs.replay is not None
    wanted = asked.needs.replay.num_envs
    total = -(-wanted // learners) * learners
    why = f"num_envs={total} in place of {wanted}: every learner has environments of its own" if total > wanted else ""
    return Choice(Spread(total, total // learners, True, f"{total} environments (algo.num_envs)"), why)


# -- inference ---------------------------------------------------------------------------------------------------------


def inference(asked: Asked, machine: Machine, learners: int, spread: Spread) -> Choice:
    """Chooses who acts: the learner (serial), the samplers (local) or a thread beside the learner (batched)."""
    cfg, needs, columns = asked.cfg, asked.needs, spread.per_learner
    if cfg.ray is not None:
        return _inference_on_nodes(asked, machine, learners)
    if cfg.inference != "auto":
        return Choice(cfg.inference)
    if needs.every_process_learns:
        return Choice("serial", "inference=serial: every process samples and learns")
    if needs.simulator and machine.cores > learners:
        return Choice("local", "inference=local: searches are most of the work, and run in processes of their own")
    # A world model's networks are large even where observations are vectors.
    if (asked.image or needs.low_precision) and cfg.device != "cpu" and machine.gpus:
        if spread.shared and columns % BATCHED_GROUPS:
            number = "algo.num_envs" if needs.replay is not None else "batch_size / fragment_length"
            why = f"{counted(columns, 'environment')} cannot take turns on the GPU ({number})"
            return Choice("local", f"inference=local: {why}")
        return Choice("batched", "inference=batched: one thread acts for all samplers on the GPU")
    if cfg.num_samplers != "auto" and cfg.num_samplers > 1:
        return Choice("local", "inference=local: several samplers were asked for")
    if needs.replay is not None and learners == machine.cores > 1:
        return Choice("serial", "inference=serial: every core samples and learns")
    if cfg.device not in ("auto", "cpu"):
        return Choice("local", f"inference=local: device={cfg.device} is for learning")
    if asked.for_samplers:
        return Choice(
            "local",
            f"inference=local: {asked.for_samplers} was set, and only samplers in processes of their own use it",
        )
    if machine.cores == 1:
        return Choice("serial", "inference=serial: there is one core")
    if (
        asked.image
        and needs.replay is not None
        and machine.cores == 2
        and cfg.learner_threads == cfg.num_samplers == "auto"
    ):
        return Choice("serial", "inference=serial: learning is most of the work, and gets both cores")
    return _inference_by_pace(asked, machine, learners, columns)


def _inference_on_nodes(asked: Asked, machine: Machine, learners: int) -> Choice:
    """Samplers on other machines than their learner act with copies of the policy. Several learners have their samplers
    beside them."""
    cfg = asked.cfg
    if learners > 1 and cfg.inference != "auto":
        return Choice(cfg.inference)
    if learners > 1 and asked.needs.every_process_learns:
        return Choice("serial", "inference=serial: every process samples and learns")
    if learners > 1:
        return Choice("local", "inference=local: each learner has samplers beside it, with copies of the policy")
    if asked.needs.every_process_learns:
        raise UserError(
            "resources=ray spreads the processes of a run over machines, and here one process samples and learns: take"
            " more with resources.num_learners"
        )
    if cfg.inference not in ("auto", "local"):
        raise UserError(f"resources.inference={cfg.inference}: the samplers of resources=ray act with copies (local)")
    nodes = counted(len(machine.nodes), "node")
    return Choice("local", f"inference=local: samplers act with copies of the policy on {nodes}")


def _inference_by_pace(asked: Asked, machine: Machine, learners: int, columns: int) -> Choice:
    """Measures an env step and decides whether environments get processes of their own."""
    cfg, needs = asked.cfg, asked.needs
    try:
        seconds = machine.env_step_sec(asked.make_env, min(columns, 16))
    except EnvError as error:
        raise UserError(f"the environment fails when it is tried: {error}") from None
    # Seconds of learning for one env step.
    learning = UPDATE_SEC * needs.replay.ratio / asked.update_rows if needs.replay is not None else 0.0
    on_cpu = cfg.device == "cpu" or not machine.gpus
    takes_all_cores = (
        on_cpu and len(compute.replay_threads(asked, machine, "serial", torch.device("cpu"), learners).value) > 1
    )
    serial_below = max(CHEAP_STEP_SEC, MINOR_SHARE * learning if takes_all_cores else 0.0)
    chosen: Literal["serial", "local"] = "serial" if seconds < serial_below else "local"
    if seconds < CHEAP_STEP_SEC:
        reason = "too little to pay for handing rows between processes"
    elif chosen == "serial":
        reason = f"little beside the {learning * 1e3:.1g} ms and more of learning, which gets all cores"
    else:
        reason = "enough to pay for processes of their own"
    fixed = f"resources.inference={chosen} fixes this choice"
    why = f"inference={chosen}: an env step took {seconds * 1e6:.0f} us when tried, {reason}; {fixed}"
    return Choice(chosen, why, Pace(inference=chosen, env_step_sec=seconds, serial_below_sec=serial_below))


def inference_of_separate_samplers(asked: Asked, machine: Machine, learners: int, spread: Spread) -> Choice:
    """Does the same as inference() for a runner whose samplers are always processes of their own."""
    cfg = asked.cfg
    if cfg.inference == "serial" or cfg.exact:
        raise UserError(
            "resources.inference=serial: this runner has samplers in processes of their own (local or batched);"
            " runner=replay has one process"
        )
    if cfg.ray is None and cfg.inference == "auto" and not (asked.image and cfg.device != "cpu" and machine.gpus):
        return Choice("local", "inference=local: samplers are processes of their own")
    return inference(asked, machine, learners, spread)


# -- samplers ----------------------------------------------------------------------------------------------------------


def samplers_per_learner(
    asked: Asked, machine: Machine, learners: int, inference: Inference, where: torch.device, spread: Spread
) -> Choice:
    """Chooses the number of processes that step environments for one learner.

    On one or two cores, samplers use all cores, and back-pressure makes them take turns with the learner. On more, the
    learner gets a core of its own, which is one of the first of several machines (nodes.sampler_shares). Samplers that
    divide the columns among them, because they wait for the learner or feed one replay, use as many cores as divide the
    columns evenly. A replay in shards gets a producer for each."""
    cfg, groups = asked.cfg, _groups(inference)
    available = max(1, machine.sampling_cores // learners)
    wanted = cfg.num_samplers
    if cfg.ray is not None and cfg.ray.samplers_per_node != "auto":
        wanted = cfg.ray.samplers_per_node * len(machine.nodes)
    if wanted != "auto":
        if wanted % learners:
            raise UserError(f"resources.num_samplers={wanted} must be a multiple of num_learners={learners}")
        chosen = Choice(wanted // learners)
    elif inference == "serial":
        chosen = Choice(1)
    else:
        if spread.shared:
            on_gpu = inference == "batched" and where.type == "cuda"
            least = GPU_COLUMNS if on_gpu and asked.needs.replay is not None else 1
            most = max(1, available - on_gpu)  # the acting thread keeps a core
            fitting = [n for n in range(1, most + 1) if spread.per_learner % (n * groups) == 0]
            count = max(
                (n for n in fitting if spread.per_learner // (n * groups) >= least), default=min(fitting, default=1)
            )
        else:
            count = available if available <= 2 else available - 1
        what = (
            f" for the {counted(spread.per_learner, 'column')} of its batch (batch_size / fragment_length)"
            if asked.needs.replay is None
            else f", algo.num_envs={spread.total}"
        )
        each = " for each learner" if learners > 1 else ""
        on = _of_nodes(machine)
        why = f"num_samplers={count * learners}: {counted(available, 'core')}{on}{each}{what if spread.shared else ''}"
        if spread.shared and count * groups < asked.num_shards:
            more = range(count + 1, spread.per_learner // groups + 1)
            enough = [n for n in more if n * groups >= asked.num_shards and spread.per_learner % (n * groups) == 0]
            count = min(enough, default=count)
            why = f"num_samplers={count}: runner.num_shards={asked.num_shards}{what}"
        chosen = Choice(count, why)
    if spread.shared and spread.per_learner % (chosen.value * groups):
        into = f" into {groups} groups each" if groups > 1 else ""
        raise UserError(f"resources.num_samplers={chosen.value * learners} must divide the {spread.name}{into}")
    return chosen


def envs_per_group(
    asked: Asked, learners: int, samplers: int, inference: Inference, most: int, spread: Spread
) -> Choice:
    """Chooses the number of columns of one fragment. It divides the columns of a sampler's group.

    `most` bounds the choice of `auto`."""
    groups, wanted = _groups(inference), asked.cfg.envs_per_sampler
    share = spread.per_learner // (samplers * groups) if spread.shared else spread.per_learner
    if wanted == "auto":
        envs = max(count for count in range(1, share + 1) if share % count == 0 and count <= most)
        whose = f" for the {counted(spread.total, 'column')} of the batch" if asked.needs.replay is None else ""
        total = counted(envs * samplers * groups * learners, "environment")
        return Choice(envs, f"envs_per_sampler={envs}: {total} in all{whose}")
    if share % wanted:
        part = f"{share}, each sampler's part of the {spread.name}" if spread.shared else f"the {spread.name}"
        raise UserError(f"resources.envs_per_sampler={wanted} must divide {part}")
    made = wanted * samplers * groups * learners
    if asked.needs.replay is not None and spread.shared and made != spread.total:
        whose = f"{counted(made, 'environment')} in all, instead of num_envs={spread.total}"
        return Choice(wanted, f"envs_per_sampler={wanted}: {whose}")
    return Choice(wanted)


def most_envs(learners: int, samplers: int, inference: Inference, where: torch.device) -> int:
    """Returns the most columns of a fragment that keep a run within MAX_ENVS or MAX_GPU_ENVS environments."""
    of_run = MAX_GPU_ENVS if where.type == "cuda" and inference == "batched" else MAX_ENVS
    return max(1, of_run // (samplers * _groups(inference) * learners))


# -- all together ------------------------------------------------------------------------------------------------------


def resources(
    asked: Asked,
    machine: Machine,
    *,
    learners: Choice,
    inference: Choice,
    where: Choice,
    samplers: Choice,
    envs: Choice,
    threads: Choice,
    before: tuple[Choice, ...] = (),
) -> Resources:
    """Makes the remaining decisions, which are the same for every runner, and puts all of them together."""
    kind, place = inference.value, where.value
    tasks = asked.needs.tasks is not None
    digits = compute.precision(
        asked.cfg.precision, place, asked.convolutions, machine, asked.needs.low_precision, tasks
    )
    graphs = compute.cuda_graphs(asked, place, learners.value)
    chosen = (learners, *before, inference, where, digits, samplers, envs, threads, graphs)
    return Resources(
        inference=kind,
        num_learners=learners.value,
        samplers_per_learner=samplers.value,
        envs_per_group=envs.value,
        device=place,
        precision=digits.value,
        acting_precision=compute.acting_precision(asked, machine, kind, place, digits.value),
        learner_threads=threads.value,
        cuda_graphs=graphs.value,
        tapes=asked.cfg.tapes and place.type == "cpu" and learners.value == 1,
        compile=asked.cfg.compile,
        exact=asked.cfg.exact,
        why=tuple(choice.why for choice in chosen if choice.why),
        pace=inference.pace,
    )


def _groups(inference: Inference) -> int:
    return BATCHED_GROUPS if inference == "batched" else 1


def _of_nodes(machine: Machine) -> str:
    return f" of {counted(len(machine.nodes), 'node')}" if machine.nodes else ""


def _either(numbers: list[int]) -> str:
    return " or ".join(map(str, numbers))


def every_process_learns(asked: Asked) -> Asked:
    """Returns the same request for a runner in which every process samples and learns."""
    return replace(asked, needs=replace(asked.needs, every_process_learns=True))
