"""Translates RLlib's options of networks (`model`) to rlrun's, as a part of translate.py."""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any, NamedTuple

from rlrun.rllib.translation import EVOLUTION, OFF_POLICY, WITH_VALUE, Translation

ACTIVATIONS = {"swish": "silu"}
# [filters, kernel, stride] of the convolutions of the Nature CNN (Mnih et al. 2015), which has a layer of 512 behind
NATURE = [[32, [8, 8], 4], [64, [4, 4], 2], [64, [3, 3], 1]]
NATURE_LAYER = 512
# What RLlib's own network has for screens of these sizes, where a file does not say `conv_filters`
RLLIBS = {84: "16 8x8/4, 32 4x4/2 and 256 11x11 filters", 42: "16 4x4/2, 32 4x4/2 and 256 11x11 filters"}
CONVOLUTIONS = ("conv_filters", "conv_activation", "post_fcnet_hiddens", "post_fcnet_activation")


def networks(one: Translation) -> None:
    size = one.get("model.dim", "dim")
    if one.atari:
        if not one.set("env.size", int(size), "model.dim", "dim"):
            one.set("env.size", 84, why="RLlib's default, because rlrun has no screens of the file's size")
            size = 84
        _frames(one)
        for key in ("model.fcnet_hiddens", "model.fcnet_activation"):
            one.say(key, "dropped", why="screens go through the Nature CNN")
        convolutions(one, int(size))
    else:
        for key in ("model.dim", "dim"):
            one.say(key, "dropped", why="there are no screens")
        for key in ("model.framestack", "framestack"):
            one.say(key, "dropped", why="RLlib stacks the frames of Atari games only")
        for key in ("model.num_framestacks", "num_framestacks"):
            why = "only the frames of Atari games are stacked here; env.wrappers= takes a wrapper for others"
            one.say(key, "not mapped" if _several(one.given.get(key)) else "dropped", why=why)
        _no_screens(one)
        _layers(one)
    if one.core in WITH_VALUE:
        keys = ("vf_share_layers", "model.vf_share_layers")
        shared = bool(one.get(*keys))
        if shared and one.core == "impala" and one.get("_separate_vf_optimizer", default=False):
            why = "a value with an optimiser of its own has a network of its own"
            one.set("model.share_value", False, why=why)
            for key in keys:
                one.say(key, "not mapped", why=why)
        else:
            one.set("model.share_value", shared, *keys)
    else:
        nets = "actor and critics share nothing" if one.core in OFF_POLICY else "there is no value head"
        for key in ("vf_share_layers", "model.vf_share_layers"):
            one.say(key, "dropped", why=nets)
    if one.core in (*WITH_VALUE, "pg"):
        _deviation(one)
    else:
        one.say("model.free_log_std", "dropped", why="no option of its networks")
    _memory(one)
    for key in ("model.custom_model", "model.custom_model_config"):
        lost = one.given.get(key) not in (None, {})
        why = "it is Python; model.encoder=my_package.module:MyEncoder takes a torch module of your own"
        one.say(key, "not mapped" if lost else "dropped", why=why if lost else "nothing is asked for")


def _several(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 1


def _frames(one: Translation) -> None:
    stacks = ("model.num_framestacks", "num_framestacks")
    number = one.given.get(stacks[0], one.given.get(stacks[1]))
    on = one.get("model.framestack", "framestack", default=True)
    frames = int(number) if isinstance(number, int | float) and not isinstance(number, bool) else 4 if on else 1
    one.set("env.stack", max(frames, 1), "model.framestack", "framestack", *stacks)


def convolutions(one: Translation, size: int) -> None:
    """Sets the network for images and lists the fate of RLlib's options of it: the only place to extend for others.

    size: width and height of the screens in pixels. Filters other than the Nature CNN's have no counterpart yet."""
    filters, activation = one.get("model.conv_filters"), one.get("model.conv_activation", default="relu")
    after = [int(width) for width in one.get("model.post_fcnet_hiddens", default=None) or []]
    own = "model.encoder=my_package.module:MyEncoder takes a torch module of your own"
    net = f"the encoder is the Nature CNN: 32 8x8/4, 64 4x4/2 and 64 3x3/1 filters and {NATURE_LAYER} units"
    if filters is None:
        theirs = RLLIBS.get(size)
        lost = f"{net}; RLlib's own network has {theirs}" if theirs else net
        one.defaults["model.conv_filters"] = None  # RLlib's default
        one.say("model.conv_filters", "not mapped", why=lost)
    elif is_nature(filters, after):
        why = "the Nature CNN without padding, where RLlib pads all but the last convolution"
        if not after and len(filters) == len(NATURE):
            why += f"; a layer of {NATURE_LAYER} units follows"
        one.set("model.encoder", "nature_cnn", "model.conv_filters", why=why)
        if after:
            one.say("model.post_fcnet_hiddens", "mapped", "model.encoder=nature_cnn")
    else:
        one.say("model.conv_filters", "not mapped", why=f"{net}, or {own}")
    same = str(activation).lower() == "relu"
    one.say(
        "model.conv_activation", "dropped" if same else "not mapped", why="the encoder's activation function is relu"
    )
    one.say("model.post_fcnet_hiddens", "not mapped" if after else "dropped", why=net if after else "[] adds no layer")
    post = str(one.get("model.post_fcnet_activation", default="relu")).lower() == "relu" or not after
    one.say("model.post_fcnet_activation", "dropped" if post else "not mapped", why="relu follows the encoder's layers")


def is_nature(filters: Any, after: list[int]) -> bool:
    """Tells whether RLlib's conv_filters and the layers after them are those of the Nature CNN.

    The layer of 512 units may be missing, be in `after`, or be a fourth convolution over everything that is left."""
    if not isinstance(filters, list) or not all(isinstance(row, list) and len(row) == 3 for row in filters):
        return False

    def square(kernel: Any) -> Any:
        return kernel if isinstance(kernel, list) else [kernel, kernel]

    rows = [[row[0], square(row[1]), row[2]] for row in filters]
    dense = rows[len(NATURE) :]
    whole = len(dense) == 1 and dense[0][0] == NATURE_LAYER and dense[0][1][0] >= 7
    if rows[: len(NATURE)] != NATURE or (dense and not whole):
        return False
    return after == [] if whole else after in ([], [NATURE_LAYER])


def _no_screens(one: Translation) -> None:
    filters = one.given.get("model.conv_filters")
    if filters and is_nature(
        filters, [int(width) for width in one.get("model.post_fcnet_hiddens", default=None) or []]
    ):
        why = "the encoder of images is the Nature CNN"
        one.set("model.encoder", "auto", "model.conv_filters", "model.post_fcnet_hiddens", why=why)
    why = "the encoder of images is the Nature CNN, with relu"
    one.say(
        "model.conv_filters", "not mapped" if filters else "dropped", why=why if filters else "nothing is asked for"
    )
    same = str(one.get("model.conv_activation", default="relu")).lower() == "relu"
    one.say("model.conv_activation", "dropped" if same else "not mapped", why=why)


def _layers(one: Translation) -> None:
    """Sets the hidden layers for vectors."""
    keys = ("model.fcnet_hiddens", "model.fcnet_activation")
    after = [int(width) for width in one.get("model.post_fcnet_hiddens", default=None) or []]
    if one.core in OFF_POLICY:
        for key in (*keys, "model.post_fcnet_hiddens", "model.post_fcnet_activation"):
            if not one.given.get("use_state_preprocessor"):
                one.say(key, "dropped", why="actor and critics have nets of their own, as in RLlib")
    if one.core in OFF_POLICY and not one.given.get("use_state_preprocessor"):
        one.say("use_state_preprocessor", "dropped", why="no layers come before actor and critics")
        return
    if one.core in EVOLUTION:
        return  # continuous.py sets them
    after_kind = one.get("model.post_fcnet_activation", default="relu")
    made = stacked(one.get(keys[0]), one.get(keys[1]), after, after_kind)
    posts = ("model.post_fcnet_hiddens", "model.post_fcnet_activation")
    joined = posts if after and made.joined else ()
    if one.core in OFF_POLICY:
        joined = (*joined, "use_state_preprocessor")
    one.set("model.hidden", made.widths, keys[0], *joined, why=made.why)
    if made.activation is None:
        one.say(keys[1], "mapped", "model.hidden=[]", made.why)
    else:
        one.set("model.activation", made.activation, keys[1])
    for key in posts:
        why = "all layers have the activation function of fcnet_activation" if after else "[] adds no layer"
        one.say(key, "not mapped" if after else "dropped", why=why)


class Stack(NamedTuple):
    """Hidden layers with one activation function."""

    widths: list[int]
    activation: str | None  # None: no layer has one
    joined: bool  # whether they include the layers of post_fcnet_hiddens
    why: str


def stacked(hidden: Any, kind: Any, after: Any, after_kind: Any) -> Stack:
    """Joins RLlib's fcnet_hiddens and post_fcnet_hiddens, which may have an activation function each."""
    widths, more = [int(width) for width in hidden or []], [int(width) for width in after or []]
    first, second = activated(kind), activated(after_kind)
    why = ""
    if first == "linear":
        widths, first = [], second if more else first
        why = "layers without a nonlinearity are one linear map, which the next layer is"
    if first == "linear" or (more and second == "linear" and not widths):
        return Stack([], None, True, why)
    if more and first == second:
        return Stack([*widths, *more], first, True, why or "the layers of fcnet_hiddens, then of post_fcnet_hiddens")
    return Stack(widths, first, False, why)


def activated(name: Any) -> str:
    return ACTIVATIONS.get(str(name).lower(), str(name).lower()) if name is not None else "linear"


def _deviation(one: Translation) -> None:
    """The deviation of continuous actions, which depends on the observation unless RLlib's free_log_std is set."""
    free = bool(one.get("model.free_log_std"))
    if one.discrete:
        one.say("model.free_log_std", "dropped", why="actions are discrete")
    elif free:
        why = "its deviation is a parameter that does not depend on the observation"
        one.set("model.action_distribution", "gaussian", "model.free_log_std", why=why)
    else:
        why = "the deviation of a gaussian is a parameter here, and depends on the observation in RLlib"
        one.say(
            "model.free_log_std", "not mapped", why=why if one.discrete is False else f"for continuous actions, {why}"
        )


def _memory(one: Translation) -> None:
    recurrent = one.core in (*WITH_VALUE, "pg", "r2d2")
    attention = bool(one.get("model.use_attention", default=False))
    lstm = bool(one.get("model.use_lstm", "use_lstm", default=False)) or (one.core == "r2d2" and not attention)
    names = [name for name in one.defaults if name.startswith(("model.attention_", "model.lstm_"))]
    names += [name for name in one.given if name.startswith(("model.attention_", "model.lstm_"))]
    if recurrent and (lstm or attention):
        (_attention if attention else _lstm)(one)
        _lengths(one)
    elif lstm or attention:
        reason = one.table.get("use_lstm", {}).get("why", "")
        for key in ("model.use_lstm", "use_lstm", "model.use_attention"):
            if one.given.get(key):
                one.say(key, "not mapped", why=reason)
    for name in ("model.use_lstm", "use_lstm", "model.use_attention", "model.max_seq_len", *names):
        one.say(name, "dropped", why="the memory has no such part" if lstm or attention else "no memory is asked for")


def _lstm(one: Translation) -> None:
    for key in ("model.use_lstm", "use_lstm"):
        if one.given.get(key) is False:
            one.say(key, "not mapped", why="R2D2 always has a memory here")
    one.choose("model", "lstm", "model.use_lstm", "use_lstm", why="R2D2 always has it" if one.core == "r2d2" else "")
    one.set("model.memory.size", int(one.get("model.lstm_cell_size")), "model.lstm_cell_size")
    both = one.given.get("model.lstm_use_prev_action_reward")
    for what in ("action", "reward"):
        key = f"model.lstm_use_prev_{what}"
        value = bool(one.get(key, default=False) or both)
        if key in one.given or both:
            one.set(f"model.memory.prev_{what}", value, key, "model.lstm_use_prev_action_reward")


def _attention(one: Translation) -> None:
    def asked(name: str) -> Any:
        return one.get(f"model.attention_{name}")

    one.choose("model", "gtrxl", "model.use_attention")
    size, wanted = int(asked("dim")), int(asked("num_heads"))
    heads = next(number for number in range(min(wanted, size), 0, -1) if size % number == 0)
    one.set("model.memory.size", size, "model.attention_dim")
    why = "" if heads == wanted else f"{wanted} does not divide {size}"
    one.set("model.memory.heads", heads, "model.attention_num_heads", why=why)
    one.set("model.memory.layers", int(asked("num_transformer_units")), "model.attention_num_transformer_units")
    rows = int(asked("memory_inference"))
    one.set("model.memory.length", rows, "model.attention_memory_inference")
    if int(asked("memory_training")) == rows:
        one.set("model.memory.length", rows, "model.attention_memory_training")
    one.say("model.attention_memory_training", "not mapped", why="learning looks back as far as acting does")
    fixed = (
        ("head_dim", size // heads, f"a head has dim / num_heads units, here {size // heads}"),
        ("position_wise_mlp_dim", 4 * size, f"it is four times attention_dim, here {4 * size}, as in the paper"),
        ("init_gru_gate_bias", 2.0, "it is 2, as in the paper"),
    )
    for name, ours, why in fixed:
        one.say(f"model.attention_{name}", "dropped" if float(asked(name)) == ours else "not mapped", why=why)
    for what in ("action", "reward"):
        key = f"model.attention_use_n_prev_{what}s"
        number = int(one.get(key))
        if number <= 1:
            one.set(f"model.memory.prev_{what}", number == 1, key)
        one.say(key, "not mapped", why=f"the memory sees one previous {what} at most")


def _lengths(one: Translation) -> None:
    """Sets the rows of backpropagation through time."""
    if one.core in ("ppo", "ddppo"):
        rows, longest = one.made.values[f"{one.inner}.fragment_length"], int(one.get("model.max_seq_len"))
        size = next(length for length in range(min(longest, rows), 0, -1) if rows % length == 0)
        why = "" if size == longest else f"the longest up to {longest} that divides {rows} rows"
        one.set(f"{one.inner}.sequence_length", size, "model.max_seq_len", why=why)
    elif one.core != "r2d2":
        one.say("model.max_seq_len", "dropped", why="memory is trained through the whole fragment")


def own_net(one: Translation, net: str, groups: tuple[str, ...], widths: list[int], activation: str) -> None:
    """Sets one of the networks that an off-policy algorithm has of its own, from a group such as q_model_config.

    net: actor or critic. groups: the group's names. widths, activation: what RLlib has where the group does not say it.
    """
    place = f"{one.inner}.{net}"

    def named(*names: str) -> tuple[str, ...]:
        return tuple(f"{group}.{name}" for group in groups for name in names)

    wide, kind = named("fcnet_hiddens", "hidden_layer_sizes"), named("fcnet_activation", "hidden_activation")
    after, after_kind = named("post_fcnet_hiddens"), named("post_fcnet_activation")
    more = one.get(*after, default=None)
    made = stacked(
        one.get(*wide, default=widths), one.get(*kind, default=activation), more, one.get(*after_kind, default="relu")
    )
    joined = (*after, *after_kind) if more and made.joined else ()
    one.set(f"{place}.hidden", made.widths, *wide, *joined, why=made.why)
    if made.activation is not None:
        one.set(f"{place}.activation", made.activation, *kind)
    for key in (*after, *after_kind):
        why = "all layers have one activation function" if more else "[] adds no layer"
        one.say(key, "not mapped" if more else "dropped", why=why)
    for group in groups:
        for key in [key for key in one.given if key.startswith(f"{group}.") and key not in one.taken]:
            why = f"the {net} has hidden layers with one activation function ({place}.hidden and .activation)"
            one.say(key, "not mapped" if one.given[key] not in (None, [], {}, False) else "dropped", why=why)
        one.say(group, "dropped", why="nothing is asked for")


@cache
def continuous_actions(env: str) -> bool | None:
    """Tells whether actions of one of Gymnasium's own environments are continuous; None if that is unknown.

    No other environment is made, because that would run its code."""
    import gymnasium

    if ":" in env or not str(getattr(gymnasium.registry.get(env), "entry_point", "")).startswith("gymnasium.envs."):
        return None
    try:
        with warnings.catch_warnings():  # of ids that have newer versions
            warnings.simplefilter("ignore")
            made = gymnasium.make(env, disable_env_checker=True)
    except (gymnasium.error.Error, ImportError, TypeError, ValueError):
        return None
    space = made.action_space
    made.close()
    return isinstance(space, gymnasium.spaces.Box)
