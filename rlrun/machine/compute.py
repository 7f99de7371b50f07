"""How a run computes: its devices, number formats, threads and CUDA graphs.

Each decision is a function of the request and of the machine. It returns its value and a sentence that says why."""

from __future__ import annotations

import torch

from rlrun.core.errors import UserError
from rlrun.machine.asked import Asked, Choice
from rlrun.machine.machine import Machine
from rlrun.machine.resources import Inference, Precision

MAX_THREADS = 8  # threads of a learner that `auto` chooses at most
THREADED_ROWS = 128  # an update of at least this many vectors may gain from threads


# -- devices -----------------------------------------------------------------------------------------------------------


def check_device(asked: Asked, machine: Machine) -> None:
    """Raises UserError for a device that does not exist, before other errors can be raised."""
    device(asked.cfg.device, machine)


def device(wanted: str, machine: Machine) -> Choice:
    """Chooses a torch.device. Raises UserError for one that does not exist."""
    if wanted == "auto":
        if machine.gpus:
            return Choice(torch.device("cuda", 0), f"device=cuda: {machine.gpus[0]}")
        return Choice(torch.device("cpu"), "device=cpu: no CUDA GPU is visible")
    try:
        made = torch.device(wanted)
    except RuntimeError:
        raise UserError(f"resources.device={wanted} is not a device; auto, cpu, cuda or cuda:N") from None
    if made.type == "cuda" and (made.index or 0) >= len(machine.gpus):
        raise UserError(f"resources.device={wanted}: {len(machine.gpus)} CUDA devices are visible")
    if made.type not in ("cpu", "cuda"):
        raise UserError(f"resources.device={wanted}: rlrun runs on cpu and cuda")
    return Choice(torch.device("cuda", made.index or 0) if made.type == "cuda" else made)


def learner_device(asked: Asked, machine: Machine, inference: Inference, learners: int = 1) -> Choice:
    """Chooses the learner's torch.device.

    With serial inference the learner's policy acts on the CPU, unless every process learns. Several learners on several
    machines learn on CPUs."""
    cfg, on_cpu = asked.cfg, inference == "serial" and not asked.needs.every_process_learns
    if on_cpu and cfg.device not in ("auto", "cpu"):
        raise UserError(
            f"resources.device={cfg.device}: serial inference acts with the learner's policy on the CPU; use"
            " inference=local or batched"
        )
    if learners > 1 and machine.nodes and machine.gpus and cfg.device == "auto":
        return on_cpu_despite("several learners on the machines of a cluster learn on CPUs", asked, machine)
    if on_cpu:
        why = "serial inference acts with the learner's policy; inference=local learns on the GPU"
        return on_cpu_despite(why, asked, machine)
    return device(cfg.device, machine)


def on_cpu_despite(why: str, asked: Asked, machine: Machine) -> Choice:
    """Chooses the CPU, and says why where the machine has a GPU that the user did not rule out."""
    told = f"device=cpu: {why}" if machine.gpus and asked.cfg.device == "auto" else ""
    return Choice(torch.device("cpu"), told)


def precision(
    wanted: str,
    where: torch.device,
    convolutions: bool,
    machine: Machine,
    everything: bool = False,
    tasks: bool = False,
) -> Choice:
    """Chooses fp32 or bf16. Only rlrun's convolutions and the layers behind them use bf16, unless all of an algorithm's
    networks can (everything). Gradients of adapted policies (tasks) are made in fp32."""
    if wanted == "bf16" and tasks:
        raise UserError("resources.precision=bf16 is for algorithms without tasks: policies are adapted in fp32")
    if tasks:
        return Choice("fp32")
    if wanted == "bf16" and not convolutions and not everything:
        raise UserError("resources.precision=bf16 is for encoders with convolutions: only convolutions use bf16")
    if wanted != "auto" or not (convolutions or everything):
        return Choice("bf16" if wanted == "bf16" else "fp32")
    if where.type == "cuda":
        return Choice("bf16", f"precision=bf16: {'products' if everything else 'convolutions'} on a GPU")
    fast = machine.fast_bf16
    chosen = "bf16" if fast else "fp32"
    return Choice(
        chosen, f"precision={chosen}: the CPU has {'/'.join(sorted(fast)) if fast else 'neither AVX512-BF16 nor AMX'}"
    )


def acting_precision(
    asked: Asked, machine: Machine, inference: Inference, where: torch.device, learning: Precision
) -> Precision:
    """Returns fp32 if samplers act on a CPU without bf16 for a learner on a GPU, otherwise the learner's precision."""
    on_slow_cpu = (
        inference == "local" and where.type != "cpu" and asked.cfg.precision == "auto" and not machine.fast_bf16
    )
    return "fp32" if on_slow_cpu else learning


# -- threads and graphs ------------------------------------------------------------------------------------------------


def replay_threads(asked: Asked, machine: Machine, inference: Inference, where: torch.device, learners: int) -> Choice:
    """Chooses the numbers of threads that a learner with a replay tries. Only large updates gain from threads."""
    free = machine.cores if inference == "serial" or machine.cores == 2 else machine.cores - 1
    return _threads(asked, where, learners, free if asked.image or asked.update_rows >= THREADED_ROWS else 1)


def waited_for_threads(
    asked: Asked, machine: Machine, where: torch.device, learners: int, large: bool = False
) -> Choice:
    """Chooses the numbers of threads to try for a learner that samplers wait for.

    All other cores are idle while it learns from images, or makes products that are as large (`large`)."""
    gains = (asked.image or large) and not asked.needs.every_process_learns
    return _threads(asked, where, learners, machine.cores if gains else 1)


def one_thread(asked: Asked) -> Choice:
    """Chooses one thread, for a learner whose samplers do not wait.

    Two threads lose far more beside busy processes than they win."""
    return Choice((1,) if asked.cfg.learner_threads == "auto" else (asked.cfg.learner_threads,))


def _threads(asked: Asked, where: torch.device, learners: int, free: int) -> Choice:
    cfg = asked.cfg
    if cfg.learner_threads != "auto":
        if where.type == "cuda" and cfg.learner_threads > 1:  # CUDA graphs record the work of one thread
            raise UserError(
                f"resources.learner_threads={cfg.learner_threads} is for a learner on the CPU, not on a GPU"
            )
        return Choice((cfg.learner_threads,))
    if where.type != "cpu" or learners > 1 or cfg.exact or free < 2:
        return Choice((1,))
    numbers = tuple(2**power for power in range(min(free, MAX_THREADS).bit_length()))
    return Choice(numbers, f"learner_threads={' or '.join(map(str, numbers))}: the fastest, re-tuned while running")


def cuda_graphs(asked: Asked, where: torch.device, learners: int) -> Choice:
    """Decides whether GPU work is recorded as CUDA graphs (machine/graphs.py)."""
    if where.type != "cuda" or not asked.cfg.cuda_graphs:
        return Choice(False)
    if asked.own_networks:
        return Choice(
            False, "cuda_graphs=false: a recording leaves out what your own part of the networks does in Python"
        )
    return Choice(
        True,
        "cuda_graphs=true: " + ("acting is" if learners > 1 else "updates and acting are") + " recorded and replayed",
    )
