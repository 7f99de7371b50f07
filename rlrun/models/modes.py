"""Refuses layers of the user's modules that work in one way in training mode and in another in evaluation mode.

The network that acts is the one that learns: log-probabilities that were recorded while acting are compared with those
of the same network in an update, and two evaluations with one seed play the same games. So nothing here calls train()
or eval() on a module."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.modules.dropout import _DropoutNd

from rlrun.core.errors import UserError


def refuse_modes(module: nn.Module, option: str) -> None:
    """Raises UserError, which begins with the option, if a layer of this module draws random numbers or normalises by
    the batch in training mode. A layer that is in evaluation mode by itself does neither."""
    for name, layer in module.named_modules():
        if _has_modes(layer):
            raise UserError(
                f"{option} {f'has the layer {name}' if name else 'is a layer'} ({type(layer).__name__}) that works"
                " differently in training mode, but the network that acts has to be the one that learns: use LayerNorm"
                " or GroupNorm in place of BatchNorm, and no dropout; call eval() on a pretrained part in __init__"
            )


def _has_modes(layer: nn.Module) -> bool:
    if isinstance(layer, _NormBase):
        return layer.training if layer.track_running_stats else isinstance(layer, _BatchNorm)
    if isinstance(layer, _DropoutNd):
        return layer.training and layer.p > 0
    if isinstance(layer, nn.RNNBase | nn.MultiheadAttention):
        return layer.training and layer.dropout > 0
    return layer.training and isinstance(layer, nn.RReLU)
