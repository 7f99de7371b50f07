"""Translates RLlib's options of QMIX and of Ape-X around it (APEX_QMIX) to rlrun's, as a part of translate.py."""

from __future__ import annotations

from rlrun.rllib.algorithms import JOINT
from rlrun.rllib.q_learning import exploration, from_replay
from rlrun.rllib.translation import Translation

WHOLE = 1000  # rows; a longer max_seq_len asks for whole episodes
PARTS = 10  # rows of a sequence, where RLlib's are whole episodes


def sequence_of(one: Translation) -> int:
    """Sets the rows of a sequence and returns their number."""
    at, asked = one.inner, int(one.get("model.max_seq_len"))
    rows = asked if asked <= WHOLE else PARTS
    why = "" if rows == asked else "RLlib's are whole episodes; here a longer one is several, and memory goes on"
    one.set(f"{at}.sequence_length", rows, "model.max_seq_len", why=why)
    one.set(f"{at}.sequence_stride", rows, why="RLlib's sequences do not overlap")
    return rows


def joint(one: Translation) -> None:
    """Sets what QMIX, VDN and independent Q-learning have."""
    if one.core not in JOINT:
        return
    at = one.inner
    chosen = f"algo@algo.inner={one.core}" if one.outer else f"algo={one.core}"
    one.say("mixer", "mapped" if one.outer is None or one.made.inner else "dropped", chosen)
    from_replay(one)
    exploration(one)
    one.set(f"{at}.double", bool(one.get("double_q")), "double_q")
    one.set(f"{at}.n_step", 1, why="RLlib's QMIX learns from single steps")
    one.set(f"{at}.huber_delta", None, why="RLlib's loss is the squared error")
    one.set(f"{at}.target_tau", 1.0, why="RLlib copies the whole network")
    one.set(f"{at}.agent_id", False, why="RLlib's network is not told which agent it acts for")
    one.set(f"{at}.head.dueling", False, why="RLlib's QMIX has no dueling head")
    one.set(f"{at}.head.hidden", [], why="the network has one hidden layer and a GRU")
    one.set(f"{at}.optimizer.kind", "rmsprop", why="RLlib's optimiser")
    if one.core == "iql":
        one.set(f"{at}.reward_of", "agent", why="RLlib pays each agent of a group by itself")
    if one.core != "qmix":
        one.say("mixing_embed_dim", "dropped", why="there is no mixing network")
    width = int(one.get("model.lstm_cell_size"))
    one.set("model.hidden", [width], why="the layer before the GRU is as wide as it")
    one.set("model.activation", "relu", why="RLlib's activation of this layer")
    one.set("model.memory.size", width, "model.lstm_cell_size")
    one.set("model.memory.prev_action", False, why="RLlib's network is not told the last action")
    for key in [*one.given, *one.defaults]:
        if key.startswith("model.") or key in ("use_lstm", "vf_share_layers"):
            lost = key.startswith("model.custom_model") and one.given.get(key) not in (None, {})
            why = "it is Python" if lost else "QMIX has one hidden layer and a GRU, both as wide as lstm_cell_size"
            one.say(key, "not mapped" if lost else "dropped", why=why)
