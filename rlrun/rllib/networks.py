"""Translates RLlib's options of networks (`model`) to rlrun's, as a part of translate.py."""

from __future__ import annotations

from typing import Any, NamedTuple

from rlrun.rllib.algorithms import EVOLUTION, IMITATION, OFF_POLICY, WITH_VALUE
from rlrun.rllib.environments import image_shape
from rlrun.rllib.translation import Translation

ACTIVATIONS = {"swish": "silu"}
# The network that RLlib makes for images of these sizes, where a file does not say `conv_filters`
RLLIBS = {
    96: [[16, [8, 8], 4], [32, [4, 4], 2], [256, [11, 11], 2]],
    84: [[16, [8, 8], 4], [32, [4, 4], 2], [256, [11, 11], 1]],
    64: [[32, [4, 4], 2], [64, [4, 4], 2], [128, [4, 4], 2], [256, [4, 4], 2]],
    42: [[16, [4, 4], 2], [32, [4, 4], 2], [256, [11, 11], 1]],
    10: [[16, [5, 5], 2], [32, [5, 5], 2]],
}
# Those that the new API stack's releases changed
NEW_RLLIBS = {64: [[16, [4, 4], 2], [32, [4, 4], 2], [64, [4, 4], 2], [128, [4, 4], 2]]}


def networks(one: Translation) -> None:
    if one.atari:
        _screens(one)
        convolutions(one, one.made.values["env.size"])
    else:
        for key in ("model.dim", "dim", "model.grayscale", "grayscale", "preprocessor_pref"):
            one.say(key, "dropped", why="it is for screens of Atari games")
        for key in ("model.framestack", "framestack"):
            one.say(key, "dropped", why="RLlib stacks the frames of Atari games only")
        stacks = ("model.num_framestacks", "num_framestacks")
        if _several(one.get(*stacks)):
            one.set("env.stack", int(one.get(*stacks)), *stacks)
        for key in stacks:
            one.say(key, "dropped", why="nothing is stacked")
        shape = image_shape(one.env)
        if shape or (shape is None and one.given.get("model.conv_filters")):
            convolutions(one, shape[0] if shape and shape[0] == shape[1] else None)
        else:
            for key in ("model.conv_filters", "model.conv_activation"):
                one.say(key, "dropped", why="there are no images" if shape == () else "it is for images")
            _layers(one)
    if one.core in (*WITH_VALUE, "marwil"):
        keys = ("vf_share_layers", "model.vf_share_layers")
        shared = bool(one.get(*keys))
        if one.core in ("ppo", "appo") and not one.get("use_critic", default=True):
            for key in keys:
                one.say(key, "dropped", why="there is no critic")
        elif shared and one.core == "impala" and one.get("_separate_vf_optimizer", default=False):
            why = "a value with an optimiser of its own has a network of its own"
            one.set("model.share_value", False, why=why)
            for key in keys:
                one.say(key, "not mapped", why=why)
        else:
            one.set("model.share_value", shared, *keys)
    else:
        nets = "actor and critics share nothing" if one.core in OFF_POLICY else "there is no value head"
        nets = "values are not learnt" if one.core == "bc" else nets
        for key in ("vf_share_layers", "model.vf_share_layers"):
            one.say(key, "dropped", why=nets)
    if one.core in (*WITH_VALUE, *IMITATION, "pg"):
        _deviation(one)
    else:
        one.say("model.free_log_std", "dropped", why="no option of its networks")
    _memory(one)
    for key in ("model.custom_model", "model.custom_model_config"):
        lost = one.given.get(key) not in (None, {})
        why = (
            "it is Python; model.encoder, model.value_head and model.q_head take torch modules of your own, such as "
            "my_package.module:MyEncoder"
        )
        one.say(key, "not mapped" if lost else "dropped", why=why if lost else "nothing is asked for")


def _several(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 1


def _screens(one: Translation) -> None:
    """Sets size, colour and stack of the screens of an Atari game."""
    size = one.get("model.dim", "dim")
    if not one.set("env.size", int(size), "model.dim", "dim"):
        one.set("env.size", 84, why="RLlib's default, because rlrun has no screens of the file's size")
    stacks, colours = ("model.num_framestacks", "num_framestacks"), ("model.grayscale", "grayscale")
    number = one.given.get(stacks[0], one.given.get(stacks[1]))
    if one.get("preprocessor_pref", default="deepmind") == "deepmind":
        one.say("preprocessor_pref", "dropped", why="games are preprocessed as DeepMind does it")
        for key in colours:
            one.say(key, "dropped", why="DeepMind's screens are always grey, and so are those of env.grayscale=true")
        on = one.get("model.framestack", "framestack", default=True)
    else:
        why = "RLlib's own preprocessor has none of DeepMind's wrappers"
        one.set("env.grayscale", bool(one.get(*colours, default=False)), *colours, "preprocessor_pref", why=why)
        one.set("env.frame_skip", one.emulated or 4, why=f"{why}, and the emulator decides")
        for name, value in (("noop_max", 0), ("fire", False), ("life_loss_terminal", False)):
            one.set(f"env.{name}", value, why=why)
        if one.get("clip_rewards") is None:
            why = "RLlib clips rewards by itself only with DeepMind's wrappers"
            one.set(f"{one.inner}.reward_clip", "none", "clip_rewards", why=why)
        on = False
    frames = int(number) if isinstance(number, int | float) and not isinstance(number, bool) else 4 if on else 1
    one.set("env.stack", max(frames, 1), "model.framestack", "framestack", *stacks)


def convolutions(one: Translation, size: int | None) -> None:
    """Sets the network for images as RLlib makes it.

    size: width and height of the images in pixels; None: unknown, or not the same."""
    for key in ("model.fcnet_hiddens", "model.fcnet_activation", "use_state_preprocessor"):
        one.say(key, "dropped", why="images go through convolutions")
    filters = one.get("model.conv_filters")
    activation = activated(one.get("model.conv_activation", default="relu"))
    after = [int(width) for width in one.get("model.post_fcnet_hiddens", default=None) or []]
    padding, which = ("same", "all convolutions") if one.era == "new" else ("same_but_last", "all but the last")
    why = f"with RLlib's borders: {which} have some"
    if filters is None:
        known = RLLIBS | (NEW_RLLIBS if one.era == "new" else {})
        filters, why = known.get(size or 0), f"RLlib's network for {size}x{size} pixels, {why}"
        one.defaults["model.conv_filters"] = None  # RLlib's default
    if filters is None:
        one.say("model.conv_filters", "not mapped", why="RLlib has no network for images of this size")
        return
    if not one.set("model.conv_filters", filters, "model.conv_filters", why=why):
        return
    one.set("model.conv_padding", padding, why="RLlib's borders")
    if not one.set("model.conv_activation", activation, "model.conv_activation", why="RLlib's default"):
        activation = "relu"
    posts = ("model.post_fcnet_hiddens", "model.post_fcnet_activation")
    kind = activated(one.get(posts[1], default="relu"))
    if not after or kind == activation:
        one.set("model.conv_hidden", after, *posts[: 2 if after else 1], why="RLlib's layers behind the convolutions")
    else:
        one.set("model.conv_hidden", [], why="post_fcnet_hiddens have an activation function of their own")
        problem = one.misfit_of("model.activation", kind)
        if problem is None:
            one.set("model.activation", kind, posts[1])
            one.set("model.hidden", after, posts[0])
        else:  # RLlib's default, a nonlinearity, would not be what the file asks for
            one.say(posts[1], "not mapped", why=problem)
    one.say(posts[0], "not mapped", why="rlrun has no layers without a nonlinearity")
    one.say(posts[1], "dropped", why="there are no such layers")


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
    if not widths:
        return Stack(more, second, True, why) if more else Stack([], None, True, why or "there are no hidden layers")
    if more and first == second:
        return Stack([*widths, *more], first, True, why or "the layers of fcnet_hiddens, then of post_fcnet_hiddens")
    return Stack(widths, first, False, why)


def activated(name: Any) -> str:
    return ACTIVATIONS.get(str(name).lower(), str(name).lower()) if name is not None else "linear"


def _deviation(one: Translation) -> None:
    """The deviation of continuous actions, which depends on the observation unless RLlib's free_log_std is set."""
    for key in ("free_log_std", "model.free_log_std"):  # some files have it outside of model
        if key not in one.given and not key.startswith("model."):
            continue
        free = bool(one.get(key))
        if one.discrete:
            one.say(key, "dropped", why="actions are discrete")
        elif free or one.discrete is False:
            one.set("model.free_log_std", free, key)
        else:
            why = "if actions are continuous, set model.free_log_std=false, as in RLlib"
            one.say(key, "not mapped", why=why)


def memories(one: Translation) -> tuple[bool, bool]:
    """Tells whether the networks have attention, and whether they have an LSTM."""
    attention = bool(one.get("model.use_attention", default=False))
    lstm = bool(one.get("model.use_lstm", "use_lstm", default=False)) or (one.core == "r2d2" and not attention)
    return attention, lstm


def sequence_length(one: Translation) -> int:
    """Returns the rows of backpropagation through time of PPO and DDPPO, which divide a fragment; 1 without memory."""
    if not any(memories(one)):
        return 1
    rows, longest = one.made.values[f"{one.inner}.fragment_length"], int(one.get("model.max_seq_len"))
    return next(length for length in range(min(longest, rows), 0, -1) if rows % length == 0)


def _memory(one: Translation) -> None:
    recurrent = one.core in (*WITH_VALUE, *IMITATION, "pg", "r2d2")
    attention, lstm = memories(one)
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
        size = sequence_length(one)
        why = "" if size == longest else f"the longest up to {longest} that divides {rows} rows"
        one.set(f"{one.inner}.sequence_length", size, "model.max_seq_len", why=why)
    elif one.offline:
        one.set(f"{one.inner}.sequence_length", int(one.get("model.max_seq_len")), "model.max_seq_len")
    elif one.core != "r2d2":
        rows, longest = one.made.values.get(f"{one.inner}.fragment_length", 0), int(one.get("model.max_seq_len"))
        why = f"memory is trained through the whole fragment of {rows} rows"
        if longest < rows:
            one.say("model.max_seq_len", "not mapped", why=f"{why}, and RLlib's through {longest}")
        one.say("model.max_seq_len", "dropped", why=why)


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
            if key.removeprefix(f"{group}.").startswith("custom_model"):
                head = ", and model.q_head= is the critics' last layer" if net == "critic" else ""
                why = f"it is Python that has to be ported: model.encoder= stands before actor and critics{head}"
            one.say(key, "not mapped" if one.given[key] not in (None, [], {}, False) else "dropped", why=why)
        one.say(group, "dropped", why="nothing is asked for")
