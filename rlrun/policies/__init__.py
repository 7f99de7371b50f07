"""How to act: the policies that algorithms share, and what their algorithms share."""

from rlrun.policies.actors import DeterministicActorCritic, DeterministicPolicy, OffPolicyActorCritic, StochasticActor, target_entropy_of
from rlrun.policies.distribution import ActorCritic, DistributionPolicy, Outputs, without_meaning
from rlrun.policies.perturbed import Evolution, EvolutionConfig, PerturbedPolicy
from rlrun.policies.q_values import CategoricalPolicy, QLearning, QPolicy

__all__ = ["ActorCritic", "CategoricalPolicy", "DeterministicActorCritic", "DeterministicPolicy", "DistributionPolicy", "Evolution", "EvolutionConfig",
           "OffPolicyActorCritic", "Outputs", "PerturbedPolicy", "QLearning", "QPolicy", "StochasticActor", "target_entropy_of", "without_meaning"]  # fmt: skip
