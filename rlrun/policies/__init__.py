"""The policies that algorithms share."""

from rlrun.policies.actors import Actor, DeterministicPolicy, StochasticActor
from rlrun.policies.distribution import DistributionPolicy, Outputs, without_meaning
from rlrun.policies.exploration import ActionNoiseConfig, ExplorationConfig
from rlrun.policies.perturbed import PerturbedPolicy
from rlrun.policies.q_values import CategoricalPolicy, QPolicy

__all__ = [
    "ActionNoiseConfig",
    "Actor",
    "CategoricalPolicy",
    "DeterministicPolicy",
    "DistributionPolicy",
    "ExplorationConfig",
    "Outputs",
    "PerturbedPolicy",
    "QPolicy",
    "StochasticActor",
    "without_meaning",
]
