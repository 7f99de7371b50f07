"""Writes files as RLlib does, for tests of their readers."""

import base64
import json
import pickle

import lz4.frame
import numpy as np


def pack(array, protocol=5):
    """An array as RLlib packs it: base64 of LZ4 of a pickle."""
    return base64.b64encode(lz4.frame.compress(pickle.dumps(array, protocol=protocol))).decode()


def packed_program(program: bytes) -> str:
    """Text that RLlib would unpickle."""
    return base64.b64encode(lz4.frame.compress(program)).decode()


def episode(length=56, eps_id=241561760, seed=0, start=0, whole=True, width=4, actions=None):
    """Columns of an episode of a CartPole-like game, of which only the last row has an end."""
    rng = np.random.default_rng(seed)
    obs = rng.normal(size=(length + 1, width)).astype(np.float32)
    actions = rng.integers(2, size=length) if actions is None else actions
    done = np.zeros(length, dtype=bool)
    done[-1] = whole
    return {
        "t": np.arange(start, start + length), "eps_id": np.full(length, eps_id), "agent_index": np.zeros(length, dtype=int),
        "unroll_id": np.zeros(length, dtype=int), "obs": obs[:-1], "new_obs": obs[1:], "actions": actions,
        "rewards": np.ones(length, dtype=np.float32), "dones": done, "action_prob": rng.uniform(0.4, 0.7, length),
        "infos": [{}] * length, "weights": np.ones(length),
    }  # fmt: skip


def part(columns, start, stop):
    return {name: value[start:stop] for name, value in columns.items()}


def joined(*batches):
    return {name: sum((list(one[name]) for one in batches), []) for name in batches[0]}


def plain(columns, packed=()):
    """Columns as they stand in a line of JSON."""
    return {
        name: pack(np.asarray(value)) if name in packed else value.tolist() if isinstance(value, np.ndarray) else [one.tolist() if hasattr(one, "tolist") else one for one in value]
        for name, value in columns.items()
    }  # fmt: skip


def line(columns, packed=()):
    return json.dumps({"type": "SampleBatch", **plain(columns, packed)}) + "\n"


def several(policies, packed=()):
    """A line of a game with several policies."""
    return json.dumps({
        "type": "MultiAgentBatch", "count": 1, "policy_batches": {name: plain(one, packed) for name, one in policies.items()},
    }) + "\n"  # fmt: skip
