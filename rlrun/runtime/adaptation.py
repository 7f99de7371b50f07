"""Plays new tasks with a trained policy before and after it is adapted to each of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from rlrun.core.algorithm import LearnerContext
from rlrun.core.batch import stack_columns
from rlrun.core.schedule import Clock
from rlrun.core.seeding import Seeds
from rlrun.envs.registry import Factory
from rlrun.machine.machine import Machine
from rlrun.policies.adapted import AdaptedPolicy
from rlrun.runtime.build import build
from rlrun.runtime.plan import plan
from rlrun.runtime.trained import Trained
from rlrun.samplers.serial import SerialSampler


def adapted_returns(trained: Trained, count: int, seed: int) -> np.ndarray:
    """The mean returns [rounds, count] of so many tasks, before any adaptation (round 0) and after each step.

    Tasks are adapted to with as many rows as in training, and actions are drawn, as in training. The tasks and their
    environments have seeds that training never used."""
    config = trained.config
    asked = replace(config.run.resources, inference="serial", device="cpu", num_samplers=1, num_learners=1)
    asked = replace(asked, envs_per_sampler="auto", learner_threads=1, precision="fp32")
    machine = Machine(cores=1, env_step_sec=lambda make_env, envs: 0.0)
    made = plan(replace(config, run=replace(config.run, resources=asked, record=None)), machine)
    tasks, seeds = made.needs.tasks, Seeds(seed)
    assert tasks is not None
    factory = Factory(cfg=config.env, spec=made.spec, seeds=seeds, stream="evaluate", learning=False)
    device = torch.device("cpu")
    context = LearnerContext(device, seeds.generator("evaluate-adaptation"))
    policy = trained.policy
    assert isinstance(policy, AdaptedPolicy)
    for name, parameter in policy.named_parameters():  # a loaded policy is frozen, and this one adapts
        parameter.requires_grad_(name not in policy.frozen)
    algorithm = config.algorithm(policy, made.spec, config.algo, context)
    sampler = SerialSampler(replace(build(made).sampler_plan(0), make_env=factory, seeds=seeds, callbacks=()), device)
    found = np.zeros((tasks.rounds, 0))
    try:
        while found.shape[1] < count:
            clock, rounds = Clock(trained.clock.env_steps, found.shape[1]), []
            algorithm.adapt(None)
            for number in range(tasks.rounds):
                sampler.publish(algorithm.policy, clock)
                fragments = sampler.take(1)
                batch = stack_columns([fragment.batch for fragment in fragments]).lived()
                reward = batch.reward.masked_fill(~batch.valid, 0.0).sum(0).view(tasks.count, -1).sum(1)
                games = (batch.is_first[:-1] & batch.valid).sum(0).view(tasks.count, -1).sum(1)
                rounds.append((reward / (games / made.spec.columns_per_env)).numpy())
                if number < tasks.rounds - 1:
                    algorithm.adapt(batch)
                sampler.free(fragments)
            found = np.concatenate([found, np.stack(rounds)], 1)
    finally:
        sampler.close()
    return found[:, :count]
