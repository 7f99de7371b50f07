"""Writes files as RLlib does, for tests of their readers."""

import base64
import json
import pickle
import struct

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
    return {name: [value for one in batches for value in one[name]] for name in batches[0]}


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


def message(value) -> bytes:
    """A value as MessagePack, with arrays as msgpack-numpy writes them."""
    if isinstance(value, np.ndarray):
        kind = b"O" if value.dtype == object else b""
        data = value.dumps() if kind else value.tobytes()
        return message(
            {b"nd": True, b"type": value.dtype.str, b"kind": kind, b"shape": list(value.shape), b"data": data}
        )
    if isinstance(value, np.generic):
        return message({b"nd": False, b"type": value.dtype.str, b"data": value.tobytes()})
    if value is None or isinstance(value, bool):
        return {None: b"\xc0", False: b"\xc2", True: b"\xc3"}[value]
    if isinstance(value, int):
        return b"\xd3" + value.to_bytes(8, "big", signed=True)
    if isinstance(value, float):
        return b"\xcb" + struct.pack(">d", value)
    if isinstance(value, bytes):
        return b"\xc6" + len(value).to_bytes(4, "big") + value
    if isinstance(value, str):
        return b"\xdb" + len(value.encode()).to_bytes(4, "big") + value.encode()
    if isinstance(value, list):
        return b"\xdd" + len(value).to_bytes(4, "big") + b"".join(map(message, value))
    return b"\xdf" + len(value).to_bytes(4, "big") + b"".join(message(key) + message(one) for key, one in value.items())


def state(columns, whole=True, lookback=0, lists=False):
    """What RLlib packs of an episode as a whole."""
    obs = np.concatenate([columns["obs"], columns["new_obs"][-1:]])
    extra = np.log(columns["action_prob"]).astype(np.float32)

    def buffer(values):
        values = np.concatenate([np.zeros_like(values[:lookback]), values])
        return {"data": list(values) if lists else values, "lookback": lookback, "finalized": not lists, "space": None}

    return {
        "id_": "abc", "agent_id": None, "module_id": None, "observations": buffer(obs), "actions": buffer(columns["actions"]),
        "rewards": buffer(columns["rewards"]), "infos": {"data": np.array([{"a": 1}, None], dtype=object), "lookback": 0},
        "extra_model_outputs": {"action_logp": buffer(extra)}, "is_terminated": whole, "is_truncated": False, "t_started": 0,
        "t": len(columns["rewards"]), "_start_time": 1.5, "custom_data": {},
    }  # fmt: skip
