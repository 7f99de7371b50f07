"""The policies that algorithms share."""

from rlrun.policies.actors import Actor, DeterministicPolicy, StochasticActor
from rlrun.policies.adapted import AdaptedPolicy
from rlrun.policies.distribution import DistributionPolicy, Outputs, without_meaning
from rlrun.policies.exploration import ActingConfig, ActionNoiseConfig, ValueExplorationConfig
from rlrun.policies.joint import JointQPolicy
from rlrun.policies.joint_actors import JointActorPolicy, JointExplorationConfig
from rlrun.policies.perturbed import PerturbedPolicy
from rlrun.policies.q_values import CategoricalPolicy, QPolicy

__all__ = [
    "ActingConfig",
    "ActionNoiseConfig",
    "Actor",
    "AdaptedPolicy",
    "CategoricalPolicy",
    "DeterministicPolicy",
    "DistributionPolicy",
    "JointActorPolicy",
    "JointExplorationConfig",
    "JointQPolicy",
    "Outputs",
    "PerturbedPolicy",
    "QPolicy",
    "StochasticActor",
    "ValueExplorationConfig",
    "without_meaning",
]
