"""Translates what depends on several options of the losses of policies and values, as a part of translate.py."""

from __future__ import annotations

from typing import Any

from rlrun.rllib.algorithms import IMITATION, WITH_VALUE
from rlrun.rllib.translation import Translation
from rlrun.rllib.yaml_files import rounded


def losses(it: Translation) -> None:
    """Sets what depends on several options of the losses of policies and values."""
    at = it.inner
    if it.core in ("ppo", "ddppo"):
        it.set(f"{at}.normalize_advantage", "batch", why="as RLlib does")
    if it.core in ("a2c", "a3c", "pg"):
        it.set(f"{at}.normalize_advantage", False, why="as RLlib does")
    if it.core == "pg":
        it.set(f"{at}.baseline", False, why="RLlib's PG has no critic")
        it.set(f"{at}.entropy_coef", 0.0, "entropy_coeff", why="RLlib's PG has no such term")
    if it.core in ("ppo", "ddppo", "a2c", "a3c", "pg"):
        it.set(f"{at}.optimizer.kind", "adam", why="RLlib's optimiser")
        it.set(f"{at}.optimizer.epsilon", 1.0e-8, why="RLlib's optimiser")
    if it.core in IMITATION:
        _imitation(it)
    if it.core in WITH_VALUE:
        _lambda(it)
        _entropy(it)
    _bound(it)
    if it.core == "impala":
        kind, why = ("mean", "takes the mean") if it.era == "new" else ("sum", "sums")
        it.set(f"{at}.loss_reduction", kind, why=f"RLlib's loss {why} over the rows of a batch")
    if it.core in ("ppo", "ddppo", "appo"):
        _divergence(it)
    if it.core == "appo":
        _target(it)
    if it.core in ("impala", "appo"):
        rmsprop = it.get("opt_type", default="adam") == "rmsprop"
        # RLlib's own with framework=torch is PyTorch's; before 2.40 its default was TensorFlow.
        torch = it.era == "new" or it.given.get("framework") == "torch" or it.given.get("use_pytorch") is True
        kind = ("rmsprop" if torch else "rmsprop_tf") if rmsprop else "adam"
        why = "" if torch else "TensorFlow's, which RLlib had where framework is not torch"
        it.set(f"{at}.optimizer.kind", kind, "opt_type", why=why if rmsprop else "RLlib's optimiser")
        for key, default in (("epsilon", 0.1), ("decay", 0.99), ("momentum", 0.0)):
            if rmsprop:
                why = "" if key in it.given else "RLlib's default for RMSProp"
                it.set(f"{at}.optimizer.{key}", float(it.get(key, default=default)), key, why=why)
            else:
                it.say(key, "dropped", why="RLlib's applies to RMSProp alone; the optimiser is Adam")
        if not rmsprop:
            it.set(f"{at}.optimizer.epsilon", 1.0e-8, why="RLlib's optimiser")
        it.set(f"{at}.optimizer.warmup_updates", 0, why="RLlib's lr does not grow at the beginning")
    _value(it)


def _imitation(it: Translation) -> None:
    """Lists the options of BC and MARWIL that depend on the actions, and on where the rows come from."""
    if it.discrete:
        it.say("bc_logstd_coeff", "dropped", why="actions are choices, which have no standard deviation")
    if it.offline:
        return
    why = "every row is learnt once, when it is new; RLlib up to 1.x drew from the rows that it kept"
    it.say("replay_buffer_size", "not mapped", why=why)
    starts = "dropped" if not it.given.get("learning_starts") else "not mapped"
    it.say("learning_starts", starts, why="the first full batch is learnt")  # type: ignore[arg-type]


def _lambda(it: Translation) -> None:
    keys = ("lambda", "lambda_")
    critic = it.get("use_critic", default=True)
    if it.core in ("ppo", "ddppo", "appo"):
        gae = it.core != "appo" and it.get("use_gae", default=True)
        if critic is False and gae:
            it.say("use_critic", "not mapped", why="RLlib refuses GAE without a critic: use_gae must be false too")
        elif critic is False and it.core == "appo" and it.get("vtrace", default=True):
            it.say("use_critic", "not mapped", why="V-trace needs values: vtrace must be false too")
        elif "use_critic" in it.given:
            it.set(f"{it.inner}.use_critic", bool(critic), "use_critic")
    if it.get("use_gae", default=True) is False:
        it.set(f"{it.inner}.lambda_", 1.0, "use_gae", *keys, why="without GAE returns run to the last row")
    it.say("use_gae", "dropped", why=f"true: {it.inner}.lambda_ is GAE's")


def _entropy(it: Translation) -> None:
    """Sets the weight of the entropy. Up to RLlib 0.6 it was added to the loss of A3C and IMPALA: -0.01 was a bonus
    there, and since 0.7 RLlib refuses it."""
    keys = [key for key in ("entropy_coeff_schedule", "entropy_coeff") if it.given.get(key) is not None]
    if not keys:
        return

    def negative(value: Any) -> bool:
        weights = [point[1] for point in value] if isinstance(value, list) else [value or 0.0]
        return any(weight < 0 for weight in weights)

    def weight(value: Any) -> Any:
        if it.core in ("ppo", "ddppo") or not negative(value):
            return value
        return [[t, -weight] for t, weight in value] if isinstance(value, list) else -value

    why = ""
    if any(negative(value) for value in it.grids.get(keys[0], [it.given[keys[0]]])):
        why = "up to RLlib 0.6 the weight was added to the loss, so that a negative one was a bonus"
        why = "a negative weight penalises entropy, as it did in RLlib" if it.core in ("ppo", "ddppo") else why
    it.convert(f"{it.inner}.entropy_coef", keys[0], weight, why=why)
    if len(keys) > 1:
        it.say(keys[1], "dropped", why="entropy_coeff_schedule wins")


def _bound(it: Translation) -> None:
    """Sets the bound on the gradient: on its norm or, with grad_clip_by=value, on each of its numbers. RLlib's A3C sums
    its loss over the rows of a batch and rlrun takes the mean, which matters for the bound."""
    norm, value = f"{it.inner}.max_grad_norm", f"{it.inner}.optimizer.max_grad_value"
    if it.misfit_of(norm, 0.0) is not None:
        return  # the algorithm has no bound, and its table says why
    keys = ("grad_clip", "grad_norm_clipping")
    key = next((key for group in (it.given, it.defaults) for key in keys if key in group), keys[0])
    if it.core == "crr":
        for name in (*keys, "grad_clip_by"):
            it.say(name, "dropped", why="RLlib's CRR does not bound its gradients")
        it.set(norm, 0.0, why="RLlib does not bound these gradients")
        return
    bounded = any(bound is not None for bound in it.grids.get(key, [it.get(*keys)]))
    by = str(it.given.get("grad_clip_by", "global_norm")) if bounded else "global_norm"
    if by == "norm":
        for name in ("grad_clip_by", *keys):
            it.say(name, "not mapped", why="rlrun bounds the norm of the whole gradient, not that of each tensor")
        it.set(norm, 0.0, why="RLlib's bound on the norm of each tensor has no counterpart")
        return
    sums = it.core in ("a2c", "a3c")
    rows = it.made.values[f"{it.inner}.batch_size"] if sums else 1
    why = "divided by the batch, because RLlib's loss is a sum and rlrun's a mean" if sums else ""
    why = why if bounded else "RLlib has no bound where grad_clip is null"

    def of_a_row(bound: Any) -> int | float:
        if bound is None:
            return 0.0
        return float(f"{float(bound) / rows:.4g}") if sums else rounded(float(bound))

    if by == "value":
        it.set(norm, 0.0, why="grad_clip_by is value, which bounds each number of the gradient")
        it.convert(value, key, of_a_row, *keys, "grad_clip_by", why=why)
    else:
        it.convert(norm, key, of_a_row, *keys, why=why)
    it.say("grad_clip_by", "dropped", why="global_norm is max_grad_norm" if bounded else "there is no bound")


def _divergence(it: Translation) -> None:
    """Sets the weight of the KL divergence, which RLlib's PPO has unless use_kl_loss is false."""
    used = bool(it.get("use_kl_loss", default=True))
    if not used:
        keys = ("use_kl_loss", *(["kl_coeff"] if "kl_coeff" in it.given else []))
        it.set(f"{it.inner}.kl_coef", 0.0, *keys, why="use_kl_loss is false")
        it.taken.add("kl_coeff")
    else:
        it.convert(f"{it.inner}.kl_coef", "kl_coeff", lambda value: float(value or 0.0))
    it.say("use_kl_loss", "dropped", why=f"true: {it.inner}.kl_coef is kl_coeff")


def _target(it: Translation) -> None:
    """Sets how often APPO's target policy follows, which rlrun counts in updates.

    RLlib's target_network_update_freq n counts buffers of N batches that are each learnt K times, so that it stands
    for n x N x K updates (Luo et al. 2020, section 4.1.1). The older target_update_frequency counts rounds of
    num_sgd_iter minibatches. Without either, the target follows every update."""
    target = f"{it.inner}.target_update_interval"
    batches = int(it.get("circular_buffer_num_batches", "minibatch_buffer_size", default=1))
    passes = int(it.get("circular_buffer_iterations_per_batch", "num_sgd_iter", "num_epochs", default=1))
    buffers, rounds = it.get("target_network_update_freq"), it.given.get("target_update_frequency")
    if buffers is not None:
        updates = max(1, round(float(buffers) * batches * passes))
        why = f"updates: {buffers:g} x batches of a buffer ({batches}) x passes ({passes})"
        it.set(target, updates, "target_network_update_freq", why=why)
    elif rounds is not None:
        updates = max(1, round(float(rounds) * passes))
        it.set(target, updates, "target_update_frequency", why=f"updates: {rounds:g} x passes ({passes})")
    else:
        it.set(target, 1, why="RLlib's target policy follows after every update")
    it.say("target_update_frequency", "dropped", why="target_network_update_freq wins")


def _value(it: Translation) -> None:
    """Sets the bound on the value's loss of PPO, and IMPALA's own optimiser for the value."""
    if it.core in ("ppo", "ddppo"):
        old = it.era == "old"
        ours, other = ("clip", "loss_clip") if old else ("loss_clip", "clip")
        why = (
            "up to RLlib 0.8 and in early releases of 1.x it bounds a value's change, later the squared error"
            if old
            else ""
        )
        if it.made.values.get(f"{it.inner}.use_critic") is False:
            it.set(f"{it.inner}.value_{ours}", 0.0, why="no values are learnt")
            it.say("vf_clip_param", "dropped", why="no values are learnt")
        else:
            it.convert(f"{it.inner}.value_{ours}", "vf_clip_param", lambda bound: float(bound or 0.0), why=why)
        it.set(f"{it.inner}.value_{other}", 0.0, why="RLlib's PPO has one bound on the value")
    if it.core in ("impala", "appo"):
        if it.get("_separate_vf_optimizer", default=False):
            rate = it.get("_lr_vf", default=0.0005)
            it.set(f"{it.inner}.value_lr", rate, "_separate_vf_optimizer", "_lr_vf")
        else:
            it.set(f"{it.inner}.value_lr", None, why="one optimiser, as _separate_vf_optimizer is false")
        it.say("_separate_vf_optimizer", "dropped", why="false: algo.value_lr=null")
        it.say("_lr_vf", "dropped", why="_separate_vf_optimizer is false")
