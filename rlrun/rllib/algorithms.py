"""RLlib's algorithms, the algorithms of rlrun's that they become, and which of these can be around which."""

from __future__ import annotations

from rlrun.config.algorithms import algorithm_class

# The algorithm of rlrun's that learns the policy, for every algorithm of RLlib's
RUNS = {
    "PG": "pg",
    "A2C": "a2c",
    "A3C": "a3c",
    "PPO": "ppo",
    "DDPPO": "ddppo",
    "APPO": "appo",
    "IMPALA": "impala",
    "DQN": "dqn",
    "SimpleQ": "dqn",
    "SIMPLEQ": "dqn",
    "APEX": "apex",
    "APEX_DQN": "apex",
    "R2D2": "r2d2",
    "RAINBOW": "rainbow",
    "DDPG": "ddpg",
    "TD3": "td3",
    "SAC": "sac",
    "APEX_DDPG": "apex_ddpg",
    "QMIX": "qmix",
    "APEX_QMIX": "apex",
    "MADDPG": "maddpg",
    "contrib/MADDPG": "maddpg",
    "ES": "es",
    "ARS": "ars",
    "BC": "bc",
    "MARWIL": "marwil",
    "CQL": "cql",
    "CRR": "crr",
    "MAML": "maml",
    "MBMPO": "mbmpo",
    "Dreamer": "dreamer",
    "DREAMER": "dreamer",
    "DreamerV3": "dreamerv3",
    "DREAMERV3": "dreamerv3",
    "AlphaZero": "alphazero",
    "ALPHAZERO": "alphazero",
    "contrib/AlphaZero": "alphazero",
    "LeelaChessZero": "alphazero",
    "SlateQ": "slateq",
    "SLATEQ": "slateq",
    "BanditLinUCB": "lin_ucb",
    "BanditLinTS": "lin_ts",
    "contrib/LinUCB": "lin_ucb",
    "contrib/LinTS": "lin_ts",
}
# RLlib's algorithms that rlrun does not have, and what comes nearest
LACKING = {
    "AlphaStar": "it plays a league with exploiters; algo=self_play plays against its own past",
    "DT": "it is the Decision Transformer; algo=bc, crr, cql and implicit_q learn from data too",
    "IQL": "RLlib has it in Python alone; it is algo=implicit_q here",
    "RNNSAC": "it is SAC with a memory; algo=sac has one with model/memory=lstm and algo.sequence_length",
    "RandomAgent": "it learns nothing; an algorithm with algo.exploration.kind=random acts as it does",
}
DEFAULTS_OF = {
    "contrib/MADDPG": "MADDPG",
    "SIMPLEQ": "SimpleQ",
    "APEX_DQN": "APEX",
    "RAINBOW": "DQN",
    "DREAMER": "Dreamer",
    "DREAMERV3": "DreamerV3",
    "ALPHAZERO": "AlphaZero",
    "contrib/AlphaZero": "AlphaZero",
    "LeelaChessZero": "AlphaZero",
    "SLATEQ": "SlateQ",
    "contrib/LinUCB": "BanditLinUCB",
    "contrib/LinTS": "BanditLinTS",
}
APEX = {"dqn": "apex", "ddpg": "apex_ddpg", "qmix": "apex"}  # Ape-X around them
DREAMING = ("dreamer", "dreamerv3")  # learn in the dreams of a world model
SEARCHING = ("alphazero",)  # search in a simulator
JOINT = ("qmix", "vdn", "iql")  # learn several agents together
Q_LEARNING = ("dqn", "c51", "rainbow", "r2d2")
SOFT = ("sac", "cql")  # actors that are drawn from, with a temperature
OFF_POLICY = ("ddpg", "td3", "crr", *SOFT)
IMITATION = ("bc", "marwil")
FROM_DATA = (*IMITATION, "cql", "crr")  # learn from data unless the experiment says otherwise
EVOLUTION = ("es", "ars")
CURIOUS = {"Curiosity": "icm", "RE3": "re3"}  # types of exploration_config that are algorithms around another one here
META = ("maml", "mbmpo")  # adapt to tasks
WITH_VALUE = ("a2c", "a3c", "ppo", "ddppo", "impala", "appo", *META)  # a policy and a value of states


def cannot_hold(outer: str, inner: str) -> str | None:
    """Returns the reason why an algorithm of rlrun's cannot be around another one; None if it can."""
    return algorithm_class({"name": outer}).can_hold(algorithm_class({"name": inner}))


def alone_in_policy(outer: str | None, core: str) -> str | None:
    """Returns the reason why an algorithm cannot learn several policies; None if it can."""
    if outer is not None and outer not in CURIOUS.values():
        return f"algo={outer} learns one policy"
    if core in JOINT:
        return f"{core} learns all agents together in one policy"
    if core in ("a3c", "ddppo"):
        return f"{core} learns one policy; {'a2c' if core == 'a3c' else 'ppo'} learns several"
    return f"{core} learns one policy" if core in (*EVOLUTION, *FROM_DATA) else None


def curious_problem(core: str, outer: str = "icm") -> str | None:
    """Returns the reason why algo=icm or algo=re3 cannot be around an algorithm; None if it can."""
    if core == "a3c":
        return f"algo={outer} cannot be around a3c; a2c is its synchronous form"
    if core in EVOLUTION:
        return f"algo={outer} cannot be around {core}, which learns from returns alone"
    if core in (*JOINT, "maddpg"):
        return f"algo={outer} cannot be around {core}, which learns all agents together"
    if core in META:
        return f"algo={outer} cannot be around {core}, which adapts to tasks"
    if core in FROM_DATA:
        return f"algo={outer} rewards what is played, and {core} learns from data"
    return None
