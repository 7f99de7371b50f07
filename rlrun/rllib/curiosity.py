"""Translates RLlib's Curiosity to algo=icm and its RE3 to algo=re3 around another algorithm, as a part of translate.py.

Source of RE3: rllib/utils/exploration/random_encoder.py of releases 1.10 to 2.7, and RE3UpdateCallbacks beside it."""

from __future__ import annotations

import math
from typing import Any

from rlrun.rllib.algorithms import curious_problem
from rlrun.rllib.networks import activated
from rlrun.rllib.translation import Translation
from rlrun.rllib.yaml_files import Line, flow, rounded

GROUP = "exploration_config"
# Curiosity's own names, and those of the ICM example of RLlib's new API stack
NAMES = {
    "eta": ("eta", f"{GROUP}.eta", "learner_config_dict.intrinsic_reward_coeff"),
    "beta": ("beta", f"{GROUP}.beta", "learner_config_dict.forward_loss_weight"),
    "lr": ("lr", f"{GROUP}.lr"),
    "feature_dim": ("feature_size", f"{GROUP}.feature_dim"),
    "inverse_net_hiddens": ("inverse_hidden", f"{GROUP}.inverse_net_hiddens"),
    "forward_net_hiddens": ("forward_hidden", f"{GROUP}.forward_net_hiddens"),
}
# RLlib's defaults
DEFAULTS: dict[str, Any] = {
    "eta": 1.0,
    "beta": 0.2,
    "lr": 0.001,
    "feature_dim": 288,
    "inverse_net_hiddens": [256],
    "forward_net_hiddens": [256],
    "inverse_net_activation": "relu",
    "forward_net_activation": "relu",
}


# RE3's own names
RE3_NAMES = {"embeds_dim": "embedding_size", "k_nn": "k_nearest"}
# RLlib's defaults: those of RE3UpdateCallbacks, which adds the reward
RE3_DEFAULTS: dict[str, Any] = {"embeds_dim": 128, "k_nn": 50, "beta": 0.1, "rho": 0.0001, "beta_schedule": "constant"}
LOWEST = 0.01  # share of beta at which a schedule ends


def curiosity(one: Translation) -> None:
    """Sets the options of ICM or RE3, or lists RLlib's as not mapped if these cannot be around the algorithm."""
    if not one.curious:
        return
    left = dict(one.curious)

    def say(key: str, value: Any, how: Any, became: str = "", why: str = "", given: bool = True) -> None:
        one.made.lines.append(Line(key, value, how, became, one.first_of(key, why), given))

    if one.outer != one.around:
        why = curious_problem(one.core, one.around) or f"algo={one.around} cannot be around {one.outer}"
        for key, value in left.items():
            say(key, value, "not mapped", why=why)
        one.taken |= left.keys() - one.given.keys()
        return
    say(f"{GROUP}.type", left.pop(f"{GROUP}.type", "Curiosity"), "mapped", f"algo={one.outer}")
    if one.outer == "re3":
        _re3(one, left, say)
        return
    for name, (ours, *keys) in NAMES.items():
        key = next((key for key in keys if key in left), keys[0])
        value = left.pop(key, DEFAULTS[name])
        value = value if isinstance(value, list) else rounded(float(value))
        if one.set(f"algo.{ours}", value):
            say(key, value, "mapped", f"algo.{ours}={flow(value)}", given=key in one.curious)
        else:
            say(key, value, "not mapped", why=f"algo.{ours} cannot have this value")
    _features(one, left, say)
    for key, value in left.items():
        say(key, value, "not mapped", why="algo=icm knows no such option")
    one.taken |= one.curious.keys() - one.given.keys()  # the sub_exploration's options are still to come
    one.set("algo.max_grad_norm", 0.0, why="RLlib does not bound these gradients")
    one.set("algo.num_minibatches", 1, why="RLlib's networks take one step with each batch")


def _re3(one: Translation, left: dict[str, Any], say: Any) -> None:
    """Sets the options of RE3."""
    given = one.curious
    for name, ours in RE3_NAMES.items():
        key = f"{GROUP}.{name}"
        value, why = left.pop(key, RE3_DEFAULTS[name]), ""
        made = value
        if name == "k_nn" and isinstance(value, int):
            made, why = max(1, value - 1), "in RLlib a row is its own first neighbour"
        if one.set(f"algo.{ours}", made):
            say(key, value, "mapped", f"algo.{ours}={flow(made)}", why, key in given)
        else:
            say(key, value, "not mapped", why=f"algo.{ours} cannot have this value")
    beta, rho, kind = (left.pop(f"{GROUP}.{name}", RE3_DEFAULTS[name]) for name in ("beta", "rho", "beta_schedule"))
    value, why = rounded(float(beta)), ""
    if kind == "linear_decay" and 0 < float(rho) < 1:
        each = int(one.get("min_sample_timesteps_per_iteration", "timesteps_per_iteration", default=0) or 0)
        each = max(
            each, 0 if one.get("buffer_size", "replay_buffer_config.capacity") else int(one.get("train_batch_size"))
        )
        count = math.ceil(math.log(LOWEST) / math.log(1 - float(rho)))
        end = rounded(float(beta) * (1 - float(rho)) ** count)
        value = {"start": value, "end": end, "steps": count * max(each, 1), "curve": "exponential"}
        why = f"beta (1 - rho)^iteration until a hundredth of beta, with iterations of {max(each, 1):,} env steps"
    if one.set("algo.beta", value):
        became = f"algo.beta={flow(value)}"
        say(f"{GROUP}.beta", beta, "mapped", became, why, f"{GROUP}.beta" in given)
        say(f"{GROUP}.beta_schedule", kind, "mapped", became, why, f"{GROUP}.beta_schedule" in given)
        if f"{GROUP}.rho" in given:
            constant = "" if why else "beta is constant"
            say(f"{GROUP}.rho", rho, "mapped" if why else "dropped", became if why else "", why or constant)
    else:
        say(f"{GROUP}.beta", beta, "not mapped", why="algo.beta cannot have this value")
    key = f"{GROUP}.encoder_net_config"
    net = left.pop(key, None)
    net = dict(net) if isinstance(net, dict) else {}
    widths = net.pop("fcnet_hiddens", one.get("model.fcnet_hiddens"))
    chosen = activated(net.pop("fcnet_activation", one.get("model.fcnet_activation")))
    source = "" if key in given else "RLlib's encoder has the layers of the policy"
    one.set("algo.encoder_hidden", list(widths))
    say(f"{key}.fcnet_hiddens", widths, "mapped", f"algo.encoder_hidden={flow(list(widths))}", source, key in given)
    one.set("algo.activation", chosen)
    say(f"{key}.fcnet_activation", chosen, "mapped", f"algo.activation={chosen}", source, key in given)
    for name, value in net.items():
        lost = value not in (None, [], {}, False)
        why = "the encoder has hidden layers, or the Nature CNN for images"
        say(f"{key}.{name}", value, "not mapped" if lost else "dropped", why=why)
    if f"{GROUP}.random_timesteps" in left:
        why = f"{one.core} explores as it does alone; sub_exploration says how"
        say(f"{GROUP}.random_timesteps", left.pop(f"{GROUP}.random_timesteps"), "not mapped", why=why)
    for key, value in left.items():
        say(key, value, "not mapped", why="algo=re3 knows no such option")
    one.taken |= given.keys() - one.given.keys()  # the sub_exploration's options are still to come


def _features(one: Translation, left: dict[str, Any], say: Any) -> None:
    """Sets the feature network's layers, and the activation function, which all three networks share here."""
    key = f"{GROUP}.feature_net_config"
    given, net = key in left, left.pop(key, None)
    net = dict(net) if isinstance(net, dict) else {}
    widths = net.pop("fcnet_hiddens", one.get("model.fcnet_hiddens"))
    kind = activated(net.pop("fcnet_activation", one.get("model.fcnet_activation")))
    names = [f"{GROUP}.{part}_net_activation" for part in ("inverse", "forward")]
    kinds = {name: activated(left.pop(name, DEFAULTS[name.rpartition(".")[2]])) for name in names}
    chosen = kinds[names[0]]
    one.set("algo.activation", chosen, why="of all three networks")
    for name, wanted in kinds.items():
        how = "mapped" if wanted == chosen else "not mapped"
        became = f"algo.activation={chosen}" if wanted == chosen else ""
        why = "" if wanted == chosen else "all three networks have the same one"
        say(name, wanted, how, became, why, given=name in one.curious)
    one.set("algo.feature_hidden", list(widths))
    why = "" if given else "RLlib's feature network is the policy's"
    say(f"{key}.fcnet_hiddens", widths, "mapped", f"algo.feature_hidden={flow(list(widths))}", why, given)
    if widths and kind != chosen:
        say(f"{key}.fcnet_activation", kind, "not mapped", why="all three networks have the same one", given=given)
    elif given:
        why = "" if widths else "there are no layers with it"
        say(
            f"{key}.fcnet_activation",
            kind,
            "mapped" if widths else "dropped",
            f"algo.activation={chosen}" if widths else "",
            why,
        )
    for name, value in net.items():
        lost = value not in (None, [], {}, False)
        why = "the feature network has hidden layers, or the Nature CNN for images"
        say(f"{key}.{name}", value, "not mapped" if lost else "dropped", why=why)
