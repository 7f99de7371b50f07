"""Translates RLlib's options of SlateQ and of its bandits to rlrun's, as a part of translate.py."""

from __future__ import annotations

import math
from typing import Any

from rlrun.core.errors import UserError
from rlrun.rllib.q_learning import epsilon_schedule, from_replay
from rlrun.rllib.translation import Translation
from rlrun.rllib.yaml_files import Line, flow

BANDITS = ("lin_ucb", "lin_ts")
RECSIM = ("rlrun/InterestEvolution-v0", "rlrun/InterestExploration-v0", "rlrun/LongTermSatisfaction-v0")
ITEMS = "rlrun/ParametricItems-v0"
OWN = (*RECSIM, ITEMS, "rlrun/SimpleBandit-v0", "rlrun/LinearBandit-v0", "rlrun/WheelBandit-v0")
# RLlib's keyword arguments of these environments, and rlrun's
KWARGS = {
    **{world: {"num_candidates": "num_candidates", "slate_size": "slate_size"} for world in RECSIM},
    ITEMS: {name: name for name in ("num_users", "num_items", "num_candidates", "feature_dim")},
    "rlrun/LinearBandit-v0": {"feature_dim": "feature_dim", "num_actions": "num_arms", "reward_noise_std": "noise"},
    "rlrun/WheelBandit-v0": {"delta": "delta", "std": "noise"},
    "rlrun/SimpleBandit-v0": {},
}
# Those that the environments here have as RLlib's values say, and why nothing is lost with them
SAME = {
    "resample_documents": (True, "candidates are drawn anew at every step"),
    "convert_to_discrete_action_space": (False, "a slate is MultiDiscrete"),
    "wrap_for_bandits": (False, "algo.items and algo.click name what a bandit needs"),
    "seed": (None, "seed= is the run's, and the environments' seeds follow from it"),
    "slate_q": (None, "observations have one form"),
    "mu_1": (1.2, ""),
    "mu_2": (1.0, ""),
    "mu_3": (50.0, ""),
}
# RLlib's LinUCB multiplies bounds by this where items describe the arms
PARAMETRIC = 0.3
SLATE_KINDS = {"SlateEpsilonGreedy": "epsilon_greedy", "SlateSoftQ": "soft_q", "Random": "random"}


def world_options(one: Translation, kwargs: dict[str, Any]) -> None:
    """Sets the keyword arguments of one of rlrun's recommender systems or bandits."""
    inside = kwargs["config"] if set(kwargs) == {"config"} and isinstance(kwargs["config"], dict) else kwargs
    known = KWARGS[one.made.env]
    made = {known[key]: value for key, value in inside.items() if key in known}
    if made:
        one.made.values["env.kwargs"] = made
    lost = []
    for key, value in inside.items():
        if key in known:
            continue
        same, _ = SAME.get(key, (None, ""))
        if key not in SAME or (same is not None and value != same and not _bandit_form(one, key)):
            lost.append(key)
    why = "; ".join(SAME[key][1] for key in inside if key in SAME and key not in known and SAME[key][1])
    if kwargs:
        became, how = (f"env.kwargs={flow(made)}", "mapped") if made else ("", "dropped")
        if made or not lost:
            one.made.lines.append(Line("env_config", kwargs, how, became, why or ("" if made else "RLlib's defaults")))  # type: ignore[arg-type]
        for key in lost:
            why = f"{one.made.env} has no such option"
            one.made.lines.append(Line(f"env_config.{key}", inside[key], "not mapped", "", why))


def _bandit_form(one: Translation, key: str) -> bool:
    return one.core in BANDITS and key in ("convert_to_discrete_action_space", "wrap_for_bandits")


def slates(one: Translation) -> None:
    """Sets what SlateQ and the bandits have."""
    if one.core == "slateq":
        if one.made.env == ITEMS:
            raise UserError(
                "SlateQ on ParametricItemRecoEnv: rlrun's ParametricItems-v0 is a bandit whose action is one item, and"
                " not a slate; SlateQ runs on InterestEvolution-v0, InterestExploration-v0 and LongTermSatisfaction-v0"
            )
        of_slateq(one)
    elif one.core in BANDITS:
        of_bandits(one)
    else:
        return
    for key in [*one.given, *one.defaults]:
        if key.startswith("model."):
            why = "the networks are those of fcnet_hiddens_per_candidate, in RLlib too"
            one.say(key, "dropped", why=why if one.core == "slateq" else "bandits are linear, in RLlib too")


def of_slateq(one: Translation) -> None:
    at, group = one.inner, "exploration_config"
    from_replay(one)
    kind = str(one.get(f"{group}.type", default="SlateEpsilonGreedy")).rsplit(".", 1)[-1]
    if kind not in SLATE_KINDS:
        one.say(f"{group}.type", "not mapped", why=f"slateq explores as RLlib's default does, and not by {kind}")
        kind = "SlateEpsilonGreedy"
    one.set(f"{at}.exploration.kind", SLATE_KINDS[kind], f"{group}.type", why="RLlib's default is SlateEpsilonGreedy")
    names = ("initial_epsilon", "final_epsilon", "epsilon_timesteps", "warmup_timesteps")
    keys = tuple(f"{group}.{name}" for name in names)
    if kind == "SlateEpsilonGreedy":
        one.set(f"{at}.exploration.epsilon", epsilon_schedule(one), *keys)
        one.say(f"{group}.temperature", "dropped", why="it belongs to SlateSoftQ")
    else:
        for key in keys:
            one.say(key, "dropped", why=f"it belongs to SlateEpsilonGreedy, and not to {kind}")
        if kind == "SlateSoftQ":
            one.set(f"{at}.exploration.epsilon", 0.0, why="RLlib's SlateSoftQ has none")
            temperature = float(one.get(f"{group}.temperature", default=1.0))
            one.set(f"{at}.exploration.temperature", temperature, f"{group}.temperature")
    widths = ("fcnet_hiddens_per_candidate", "hiddens")
    one.set(f"{at}.q.hidden", [int(width) for width in one.get(*widths)], *widths)
    one.set(f"{at}.choice", "affinity" if _alike(one) else "network", why="RLlib's is the product of user and document")
    one.set(f"{at}.null_value", False, why="RLlib gives choosing nothing no value")
    huber = float(one.get("huber_threshold")) if one.get("use_huber") else None
    one.set(f"{at}.huber_delta", huber, "use_huber", "huber_threshold")
    epsilon = float(one.get("rmsprop_epsilon"))
    one.set(f"{at}.optimizer.epsilon", epsilon, "rmsprop_epsilon", why="also of the model of choices")
    one.set(f"{at}.optimizer.decay", 0.99, why="PyTorch's; RLlib passes 0.95 as weight_decay by mistake")
    one.set(
        f"{at}.lr",
        one.get("lrepsilon_schedule") or one.get("lr_q_model", "lr"),
        "lrepsilon_schedule",
        "lr_q_model",
        "lr",
    )
    one.set(f"{at}.choice_lr", float(one.get("lr_choice_model")), "lr_choice_model")
    one.set(f"{at}.double", bool(one.get("double_q", default=False)), "double_q")


def _alike(one: Translation) -> bool:
    """Whether users and documents of the environment have as many numbers."""
    return one.made.env == RECSIM[0]


def of_bandits(one: Translation) -> None:
    at, items = one.inner, one.made.env == ITEMS
    if items or one.made.env in RECSIM:
        one.set(f"{at}.items", "items" if items else "candidates", why="RLlib's models find them as `item`")
    parametric = f"{at}.items" in one.made.values
    model = "model.custom_model_config"
    ridge = float(one.get(f"{model}.lambda_", "model.lambda_", "lambda_", default=0.1 if parametric else 1.0))
    one.set(f"{at}.ridge", ridge, f"{model}.lambda_", "model.lambda_", "lambda_", why="RLlib's model has it")
    one.set(f"{at}.intercept", False, why="RLlib has none")
    alphas = (f"{model}.alpha", "model.alpha", "alpha")
    if one.core == "lin_ucb":
        alpha = math.sqrt(float(one.get(*alphas, default=1.0))) * (PARAMETRIC if parametric else 1.0)
        why = "the root of RLlib's" + (", times its 0.3" if parametric else "")
        one.set(f"{at}.alpha", round(alpha, 6), *alphas, why=why)
    kind = str(one.get("exploration_config.type", default="")).rsplit(".", 1)[-1]
    ours = "random" if kind == "Random" else "uncertainty"
    usual = {"lin_ucb": "UpperConfidenceBound", "lin_ts": "ThompsonSampling"}[one.core]
    if kind not in ("", "Random", usual):
        one.say("exploration_config.type", "not mapped", why=f"{one.algo} explores by {usual}")
    one.set(f"{at}.exploration.kind", ours, "exploration_config.type", why="RLlib's own of this algorithm")
    one.say("gamma", "dropped", why="what follows a row does not count")
    for key in ("lr", "lrepsilon_schedule", "grad_clip"):
        one.say(key, "dropped", why="the regression is solved and has no steps")
