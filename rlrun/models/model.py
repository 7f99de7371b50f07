"""Builds networks from the options of conf/model, with sizes that fit an EnvSpec."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn

from rlrun.core.batch import Batch, RowSpec
from rlrun.core.errors import UserError, closest
from rlrun.core.plugins import is_path, load_object
from rlrun.core.ranges import Count, NotNegative, Positive
from rlrun.core.specs import Box, Discrete, EnvSpec, Nested, Space, leaves
from rlrun.models.attention import GTrXL
from rlrun.models.encoders import MLP, Behind, ImageEncoder, ImpalaResNet, NatureCNN, Parts, flat_size, flatten
from rlrun.models.heads import ActionHead, BoxDistribution, EmbeddedHead, QHead, QHeadConfig, action_head, temper
from rlrun.models.normalizer import ObservationFilters
from rlrun.models.recurrent import Memory

Activation = Literal["tanh", "relu", "elu", "silu"]
ENCODERS = ("auto", "mlp", "nature_cnn", "impala_resnet")


@dataclass(frozen=True, kw_only=True)
class MemoryConfig:
    """No memory, or one of the kinds below."""

    kind: Literal["none", "lstm", "gru", "gtrxl"]

    @classmethod
    def variant(cls, values: Mapping[str, Any]) -> type[MemoryConfig]:
        kinds = {"lstm": RecurrentConfig, "gru": RecurrentConfig, "gtrxl": AttentionConfig}
        return kinds.get(values.get("kind"), MemoryConfig)  # type: ignore[arg-type]

    @property
    def previous(self) -> tuple[bool, bool]:
        """Whether the last action and the last reward are inputs of the memory."""
        return False, False


@dataclass(frozen=True, kw_only=True)
class RecurrentConfig(MemoryConfig):
    """An LSTM or a GRU."""

    size: Annotated[int, Count]
    prev_action: bool
    prev_reward: bool

    @property
    def previous(self) -> tuple[bool, bool]:
        return self.prev_action, self.prev_reward


@dataclass(frozen=True, kw_only=True)
class AttentionConfig(RecurrentConfig):
    """A gated transformer."""

    layers: Annotated[int, Count]
    heads: Annotated[int, Count]
    length: Annotated[int, Count]

    def __post_init__(self):
        if self.size % self.heads:
            raise ValueError(f"size {self.size} must be a multiple of heads {self.heads}")


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    encoder: str
    encoder_kwargs: dict[str, Any]
    hidden: tuple[Annotated[int, Count], ...]
    activation: Activation
    conv_activation: Activation | Literal["auto"]
    init: Literal["orthogonal", "default"]
    layer_norm: bool
    share_value: bool
    action_distribution: BoxDistribution
    log_std: float
    temperature: Annotated[float, Positive]
    autoregressive: bool
    action_embedding: str | None
    observation_filter: Literal["none", "mean_std"]
    observation_clip: Annotated[float, NotNegative]
    memory: MemoryConfig

    def __post_init__(self):
        if self.encoder not in ENCODERS and not is_path(self.encoder):
            raise ValueError(
                f"encoder must be {', '.join(ENCODERS)} or package.module:Name, not {self.encoder!r}."
                f"{closest(self.encoder, ENCODERS)}"
            )
        if self.encoder_kwargs and not is_path(self.encoder):
            raise ValueError(f"encoder_kwargs are for an encoder of your own, not for {self.encoder}")
        if self.conv_activation != "auto" and (is_path(self.encoder) or self.encoder == "mlp"):
            raise ValueError(f"conv_activation is for encoders with convolutions, not for {self.encoder}")


class Trunk(nn.Module):
    """An encoder followed by a memory, if there is one: obs [T, B, ...] -> features [T, B, F] and the state after the
    last row."""

    def __init__(
        self, encoder: nn.Module, memory: Memory | GTrXL | None, previous: Mapping[str, Space] = MappingProxyType({})
    ):
        """`previous` holds the spaces of the other parts of obs that are inputs of the memory, by name."""
        super().__init__()
        self.encoder, self.memory, self.previous = encoder, memory, dict(previous)
        self.features: int = memory.size if memory is not None else encoder.features  # type: ignore[assignment]

    def core_spec(self) -> RowSpec:
        return self.memory.spec() if self.memory is not None else {}

    def forward(self, obs: Batch, is_first: Tensor, state: Batch) -> tuple[Tensor, Batch]:
        features = self.encoder(_map(obs["observation"], lambda x: x.flatten(0, 1))).unflatten(0, is_first.shape)
        if self.memory is None:
            return features, state
        for name, space in self.previous.items():
            flat = flatten(space, _map(obs[name], lambda x: x.flatten(0, 1)))  # type: ignore[arg-type]
            features = torch.cat([features, flat.unflatten(0, is_first.shape)], -1)
        return self.memory(features, is_first, state)


def _map(x: Tensor | Batch, function: Callable[[Tensor], Tensor]) -> Tensor | Batch:
    return x.map(function) if isinstance(x, Batch) else function(x)


def encoder(
    spec: EnvSpec,
    kind: str,
    hidden: tuple[int, ...],
    activation: str,
    precision: str = "fp32",
    flat: bool = False,
    layer_norm: bool = False,
    conv_activation: str = "auto",
) -> nn.Module:
    """An encoder from observations [N, ...] to features [N, F], with F in its attribute `features`.

    Hidden layers come behind the features of an image. If flat and without hidden layers, an image goes through
    convolutions only. conv_activation is that of convolutions; auto: as activation, but relu in nested observations.
    Raises UserError if the kind does not fit the observations."""

    def of_image(space: Box, flat: bool = False) -> ImageEncoder:
        if kind == "impala_resnet":
            if layer_norm:
                raise UserError("model.layer_norm=true is for nature_cnn and mlp; impala_resnet has none")
            return ImpalaResNet(space, precision, flat, convolve)
        return NatureCNN(space, precision, flat, layer_norm, convolve)

    space = spec.observation
    convolve = conv_activation
    if conv_activation == "auto":
        convolve = "relu" if isinstance(space, Nested) else activation
    if isinstance(space, Box) and space.image and kind != "mlp":
        return Behind(of_image(space), hidden, activation, layer_norm) if hidden else of_image(space, flat)
    images = (
        [] if kind == "mlp" else [(path, part) for path, part in leaves(space) if isinstance(part, Box) and part.image]
    )
    if kind in ("nature_cnn", "impala_resnet") and not images:
        raise UserError(f"model={kind} reads images, but {spec.name} observes {space}; use model=auto or model=mlp")
    if not images and conv_activation != "auto":
        raise UserError(f"model.conv_activation={conv_activation} is for images; model.activation is that of the mlp")
    if not images:
        return MLP(space, hidden, activation, layer_norm)
    return Parts(space, [(path, of_image(part)) for path, part in images], hidden, activation, layer_norm)


def own_encoder(spec: EnvSpec, name: str, options: dict[str, Any]) -> nn.Module:
    """The user's own encoder, made by name(space, **options). It must be a module from observations [N, ...] to
    features [N, F] with F in its attribute `features`. It is called once as a check, and UserError says what does not
    fit."""
    kind, space = load_object(name, "model.encoder", nn.Module), spec.observation
    wanted = UserError(
        f"model.encoder={name} must make a torch.nn.Module that has its number of features in the attribute `features`"
    )
    if isinstance(kind, type) and not issubclass(kind, nn.Module):
        raise wanted
    try:
        made = kind(space, **options)
        features = getattr(made, "features", None)
        if not isinstance(made, nn.Module) or not isinstance(features, int):
            raise wanted
        out = made(zeros(space, 2))
    except UserError:
        raise
    except Exception as error:  # the user's own code may raise anything
        raise UserError(
            f"model.encoder={name} does not fit {spec.name}, which observes {space}: {type(error).__name__}: {error}"
        ) from None
    if not isinstance(out, Tensor) or out.shape != (2, features):
        shape = list(out.shape) if isinstance(out, Tensor) else type(out).__name__
        raise UserError(f"model.encoder={name} makes {shape} of 2 observations of {spec.name}, not [2, {features}]")
    return made


def zeros(space: Space, count: int) -> Tensor | Batch:
    """`count` observations of zeros, in the form that encoders get."""
    if isinstance(space, Nested):
        return Batch({name: zeros(part, count) for name, part in space.spaces})
    return torch.zeros(count, *space.field.shape, dtype=space.field.dtype)


def embedding_of(spec: EnvSpec, name: str) -> tuple[EnvSpec, int]:
    """The spec without the part `name` of its observation, which holds the embeddings of actions [A, E], and E. Raises
    UserError if that part does not fit the actions."""
    space, said = spec.observation, f"model.action_embedding={name}"
    if not isinstance(spec.action, Discrete):
        raise UserError(f"{said} is for one choice among actions, not for {spec.action}")
    parts = space.parts if isinstance(space, Nested) else {}
    if not isinstance(space, Nested) or name not in parts:
        raise UserError(f"{said}: {spec.name} observes {space}, which has no such part.{closest(name, list(parts))}")
    part = parts[name]
    if not isinstance(part, Box) or len(part.shape) != 2 or part.shape[0] != spec.action.n:
        raise UserError(f"{said} must hold a row of numbers for each of the {spec.action.n} actions, not {part}")
    if len(parts) == 1:
        raise UserError(f"{said} is all that {spec.name} observes: there is nothing left to choose an action by")
    rest = replace(space, spaces=tuple((key, value) for key, value in space.spaces if key != name))
    return replace(spec, obs={**spec.obs, "observation": rest}), part.shape[1]


class Model:
    """Builds the parts that policies are made of. `precision` ("fp32" or "bf16") applies to convolutional encoders and
    to the hidden layers of action values behind them."""

    def __init__(self, cfg: ModelConfig, precision: str = "fp32"):
        self.cfg, self.precision = cfg, precision

    def encoder(self, spec: EnvSpec, flat: bool = False) -> nn.Module:
        cfg = self.cfg
        if is_path(cfg.encoder):
            own = own_encoder(spec, cfg.encoder, cfg.encoder_kwargs)
            return Behind(own, cfg.hidden, cfg.activation, cfg.layer_norm) if cfg.hidden else own
        return encoder(
            spec, cfg.encoder, cfg.hidden, cfg.activation, self.precision, flat, cfg.layer_norm, cfg.conv_activation
        )

    def filter(self, spec: EnvSpec) -> ObservationFilters | None:
        """The filters of the observation's Box parts, or None. Raises UserError if there are no such parts, since
        choices have no scale."""
        if self.cfg.observation_filter == "none":
            return None
        parts = [(path, part) for path, part in leaves(spec.observation) if isinstance(part, Box)]
        if not parts:
            raise UserError(
                f"model.observation_filter=mean_std is for numbers and pixels, but {spec.name} observes "
                f"{spec.observation}; try model=plain"
            )
        return ObservationFilters(parts, self.cfg.observation_clip)

    def action_head(self, spec: EnvSpec, inputs: int) -> ActionHead | EmbeddedHead:
        if self.cfg.action_embedding is not None:
            assert isinstance(spec.action, Discrete)
            size = embedding_of(spec, self.cfg.action_embedding)[1]
            return temper(EmbeddedHead(spec.action.n, inputs, size, self.linear), self.cfg.temperature)
        made = action_head(
            spec.action, inputs, self.linear, self.cfg.action_distribution, self.cfg.log_std, self.cfg.autoregressive
        )
        return temper(made, self.cfg.temperature)

    def without_temperature(self, who: str) -> None:
        """Raises UserError if a policy that draws no actions from a distribution is given a temperature."""
        if self.cfg.temperature != 1.0:
            raise UserError(
                f"model.temperature={self.cfg.temperature:g} is for policies that are distributions, not for {who}"
            )

    def trunk(self, spec: EnvSpec, flat: bool = False) -> Trunk:
        """An encoder and the memory. If flat, the observation is a single image and there is no memory, the encoder has
        convolutions only, for heads that have hidden layers of their own."""
        if self.cfg.action_embedding is not None:
            spec, _ = embedding_of(spec, self.cfg.action_embedding)
        flat = flat and self.cfg.memory.kind == "none"
        encoder = self.encoder(spec, flat and isinstance(spec.observation, Box))
        previous = {name: space for name, space in spec.obs.items() if name in ("prev_action", "prev_reward")}
        told = sum(flat_size(space) for space in previous.values())
        trunk = Trunk(encoder, self.memory(encoder.features + told), previous)  # type: ignore[operator, arg-type]
        if self.cfg.init == "orthogonal":
            if not is_path(self.cfg.encoder):
                orthogonal(trunk.encoder, math.sqrt(2.0))
            elif isinstance(trunk.encoder, Behind):  # the user's own encoder initialises itself
                orthogonal(trunk.encoder.net, math.sqrt(2.0))
            # A transformer keeps PyTorch's initial weights: a gain of sqrt(2) in every projection would be too large.
            if isinstance(trunk.memory, Memory):
                orthogonal(trunk.memory, math.sqrt(2.0))
        return trunk

    def q_head(self, spec: EnvSpec, trunk: Trunk, cfg: QHeadConfig, atoms: int = 1) -> QHead:
        """The head for action values behind a trunk that was made with flat=not cfg.encoder_layer."""
        assert isinstance(spec.action, Discrete)
        image = isinstance(trunk.encoder, ImageEncoder)
        hidden: tuple[int, ...] = () if cfg.hidden == "auto" else cfg.hidden
        if (
            cfg.hidden == "auto"
            and isinstance(trunk.encoder, ImageEncoder)
            and (trunk.encoder.ends_flat or (cfg.encoder_layer and trunk.memory is None))
        ):
            hidden = (trunk.encoder.size,)
        actions = spec.action.n
        if self.cfg.action_embedding is not None:
            if cfg.dueling:
                raise UserError(
                    "model.action_embedding has no advantages to take a mean of: set head.dueling=false with it"
                )
            # The head then makes E numbers, whose inner product with an action's embedding is that action's value.
            actions = embedding_of(spec, self.cfg.action_embedding)[1]
        precision = self.precision if image else "fp32"  # layers behind convolutions are as wide as those make them
        return QHead(
            trunk.features,
            actions,
            atoms,
            hidden,
            self.cfg.activation,
            cfg,
            self.linear,
            self.cfg.layer_norm,
            precision,
        )

    def memory(self, inputs: int) -> Memory | GTrXL | None:
        cfg = self.cfg.memory
        if isinstance(cfg, AttentionConfig):
            return GTrXL(inputs, cfg.size, cfg.layers, cfg.heads, cfg.length)
        return Memory(cfg.kind, inputs, cfg.size) if isinstance(cfg, RecurrentConfig) else None

    def linear(self, inputs: int, outputs: int, gain: float) -> nn.Linear:
        """A linear layer of a head. The gain sets how large its first outputs are if init is orthogonal."""
        layer = nn.Linear(inputs, outputs)
        if self.cfg.init == "orthogonal":
            orthogonal(layer, gain)
        return layer


def orthogonal(module: nn.Module, gain: float) -> None:
    """Sets orthogonal weights with this gain, and zero biases, in every linear, convolutional and recurrent layer.
    Recurrent layers have gain 1."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            weight = layer.weight.detach().contiguous()
            nn.init.orthogonal_(weight, gain)
            with torch.no_grad():
                layer.weight.copy_(weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
        elif isinstance(layer, nn.LSTM | nn.GRU):
            for name, parameter in layer.named_parameters():
                if "weight" in name:
                    nn.init.orthogonal_(parameter, 1.0)
                else:
                    nn.init.zeros_(parameter)


def lower_precision(module: nn.Module) -> None:
    """Casts convolutional encoders, and the wide layers behind them, to bfloat16 for acting. No gradient needs their
    float32 weights there, and autocast would convert all weights at every call."""
    for part in module.modules():
        if isinstance(part, ImageEncoder) and part.precision == "bf16":
            part.to(torch.bfloat16)
        elif isinstance(part, QHead) and part.precision == "bf16":
            for layers in part.hidden():
                layers.to(torch.bfloat16)
