"""Builds networks from the options of conf/model, with sizes that fit an EnvSpec."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from rlrun.core.batch import Batch, RowSpec
from rlrun.core.errors import FAILURES, UserError, closest, told
from rlrun.core.plugins import is_path, load_object
from rlrun.core.specs import Box, Discrete, EnvSpec, Nested, Space, leaves
from rlrun.models.attention import GTrXL
from rlrun.models.config import (
    ActionAndCriticConfig,
    Activation,
    AttentionConfig,
    DistributionAndValueConfig,
    ModelConfig,
    RecurrentConfig,
)
from rlrun.models.encoders import (
    MLP,
    Behind,
    ConvolutionalNet,
    ImageConfig,
    ImageEncoder,
    ImpalaResNet,
    NatureCNN,
    NetConfig,
    Parts,
    flat_size,
    flatten,
    mlp,
)
from rlrun.models.heads import ActionHead, EmbeddedHead, QHead, QHeadConfig, action_head, temper
from rlrun.models.modes import refuse_modes
from rlrun.models.normalizer import ObservationFilters
from rlrun.models.recurrent import Memory

# Weights of a first layer that are refused: with their gradients and Adam's two moments they would take 16 GiB.
TOO_MANY_WEIGHTS = 2**30


class Seen(NamedTuple):
    """Observations as networks get them, and the rows among them, N in all, whose features are asked for."""

    obs: Batch  # [T, B, ...]
    is_first: Tensor  # [T, B]
    state: Batch  # the recurrent state before row 0 [B, ...]; empty without memory
    burn_in: int = 0  # rows at the beginning that only bring the state up to date
    part: slice = slice(None)  # the rows after those

    def rows(self, x: Tensor) -> Tensor:
        """[T, B, ...] -> [N, ...]."""
        return x[self.burn_in :][self.part].flatten(0, 1)

    @property
    def mask(self) -> Tensor | None:
        """Which actions are legal [N, A]; None if all are."""
        return self.rows(self.obs["action_mask"]) if "action_mask" in self.obs else None  # type: ignore[arg-type]

    def from_zeros(self) -> Seen:
        """The same rows for a network that begins them without a memory."""
        return self._replace(state=self.state.map(torch.zeros_like))


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

    def of(self, seen: Seen) -> Tensor:
        """The features [N, F] of rows. No gradient goes through those of burn-in."""
        obs, is_first, state, burn_in = seen.obs, seen.is_first, seen.state, seen.burn_in
        if burn_in:
            with torch.no_grad():
                _, state = self(obs[:burn_in], is_first[:burn_in], state)
        return self(obs[burn_in:], is_first[burn_in:], state)[0][seen.part].flatten(0, 1)


def _map(x: Tensor | Batch, function: Callable[[Tensor], Tensor]) -> Tensor | Batch:
    return x.map(function) if isinstance(x, Batch) else function(x)


def encoder(
    spec: EnvSpec,
    kind: str,
    hidden: tuple[int, ...],
    activation: Activation,
    precision: str = "fp32",
    flat: bool = False,
    layer_norm: bool = False,
    images: ImageConfig | None = None,
) -> nn.Module:
    """An encoder from observations [N, ...] to features [N, F], with F in its attribute `features`.

    Hidden layers come behind the features of an image. If flat and without hidden layers, an image goes through
    convolutions only. Where the activation of images is auto, it is `activation`, but relu in nested observations.
    Raises UserError if the kind does not fit the observations."""
    space, images = spec.observation, images or ImageConfig()
    if images.activation == "auto":
        images = replace(images, activation="relu" if isinstance(space, Nested) else activation)

    def of_image(space: Box, flat: bool = False) -> ImageEncoder:
        if kind == "impala_resnet":
            if layer_norm:
                raise UserError(
                    "model.layer_norm=true is for nature_cnn, model.conv_filters and mlp; impala_resnet has none"
                )
            return ImpalaResNet(space, precision, flat, images)
        return (NatureCNN if images.filters is None else ConvolutionalNet)(space, precision, flat, layer_norm, images)

    if isinstance(space, Box) and space.image and kind != "mlp":
        return Behind(of_image(space), hidden, activation, layer_norm) if hidden else of_image(space, flat)
    found = (
        [] if kind == "mlp" else [(path, part) for path, part in leaves(space) if isinstance(part, Box) and part.image]
    )
    if kind in ("nature_cnn", "impala_resnet") and not found:
        raise UserError(
            f"model={kind} reads images, but {spec.name} observes {space}; use model=auto or model=mlp. Images are"
            " uint8, or have an axis for channels"
        )
    if found:
        return Parts(space, [(path, of_image(part)) for path, part in found], hidden, activation, layer_norm)
    return MLP(space, hidden, activation, layer_norm)


def is_convolutional(spec: EnvSpec, cfg: ModelConfig) -> bool:
    """Whether the encoder of these observations has rlrun's convolutions."""
    return spec.image and cfg.encoder != "mlp" and not is_path(cfg.encoder)


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
        refuse_modes(made, f"model.encoder={name}")
        out = made(zeros(space, 2))
    except UserError:
        raise
    except FAILURES as error:  # the user's own code may raise anything
        raise UserError(
            f"model.encoder={name} does not fit {spec.name}, which observes {space}: {told(error, __file__)}"
        ) from None
    if not isinstance(out, Tensor) or out.shape != (2, features):
        shape = list(out.shape) if isinstance(out, Tensor) else type(out).__name__
        raise UserError(f"model.encoder={name} makes {shape} of 2 observations of {spec.name}, not [2, {features}]")
    if not out.isfinite().all():
        raise UserError(f"model.encoder={name} makes features that are not finite of observations of zeros")
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


Outputs = TypeVar("Outputs", bound=ModelConfig)


class Model:
    """Builds the parts that policies are made of. `precision` ("fp32" or "bf16") applies to convolutional encoders and
    to the hidden layers of action values behind them."""

    def __init__(self, cfg: ModelConfig, precision: str = "fp32"):
        self.cfg, self.precision = cfg, precision

    def outputs(self, kind: type[Outputs]) -> Outputs:
        """The options of this kind of outputs. Raises UserError if the config has those of another kind."""
        if not isinstance(self.cfg, kind):
            names = [field.name for field in fields(kind) if field.name not in {f.name for f in fields(ModelConfig)}]
            raise UserError(
                f"this algorithm needs the options {', '.join(f'model.{name}' for name in names)}, which another file"
                " of conf/model/output has"
            )
        return self.cfg

    @property
    def action_embedding(self) -> str | None:
        """The name of the observation part that describes the actions, or None."""
        return getattr(self.cfg, "action_embedding", None)

    @property
    def own_q_head(self) -> str | None:
        """The name of the user's own last layer for action values, or None if it is linear."""
        name = self.outputs(ActionAndCriticConfig).q_head
        return None if name == "linear" else name

    def encoder(self, spec: EnvSpec, flat: bool = False) -> nn.Module:
        cfg = self.cfg
        if is_path(cfg.encoder):
            own = own_encoder(spec, cfg.encoder, cfg.encoder_kwargs)
            return Behind(own, cfg.hidden, cfg.activation, cfg.layer_norm) if cfg.hidden else own
        if not spec.image:
            for name, unset in (("conv_filters", None), ("conv_hidden", "auto"), ("conv_activation", "auto")):
                if getattr(cfg, name) != unset:
                    raise UserError(
                        f"model.{name} is for images, but {spec.name} observes {spec.observation}; "
                        "model.hidden and model.activation are those of the mlp"
                    )
        self._check_width(spec)
        return encoder(spec, cfg.encoder, cfg.hidden, cfg.activation, self.precision, flat, cfg.layer_norm, cfg.images)

    def _check_width(self, spec: EnvSpec) -> None:
        """Raises UserError if the first layer over everything that is not an image would not fit into memory."""
        parts = [part for _, part in leaves(spec.observation)]
        if self.cfg.encoder != "mlp":
            parts = [part for part in parts if not (isinstance(part, Box) and part.image)]
        numbers, width = sum(flat_size(part) for part in parts), self.cfg.hidden[0] if self.cfg.hidden else 1
        if numbers * width > TOO_MANY_WEIGHTS:
            raise UserError(
                f"{spec.name} observes {spec.observation}, which are {numbers:,} numbers for a network, and a first"
                f" layer of {width} over them would need {numbers * width / 2**26:,.0f} GiB with its gradients and"
                f" Adam's moments, where rlrun allows {TOO_MANY_WEIGHTS / 2**26:.0f}: make the observation smaller with"
                " a wrapper (env.wrappers), or write a model.encoder of your own, for example with an embedding"
            )

    def filter(self, spec: EnvSpec) -> ObservationFilters | None:
        """The filters of the observation's Box parts, or None. The part that describes the actions is not filtered:
        where it never changes, a filter would make all actions alike. Raises UserError if there are no such parts,
        since choices have no scale."""
        if self.cfg.observation_filter == "none":
            return None
        if self.action_embedding is not None:
            spec, _ = embedding_of(spec, self.action_embedding)
        parts = [(path, part) for path, part in leaves(spec.observation) if isinstance(part, Box)]
        if not parts:
            raise UserError(
                f"model.observation_filter=mean_std is for numbers and pixels, but {spec.name} observes "
                f"{spec.observation}; try model=plain"
            )
        return ObservationFilters(parts, self.cfg.observation_clip)

    def action_head(self, spec: EnvSpec, inputs: int) -> ActionHead | EmbeddedHead:
        if self.action_embedding is not None:
            assert isinstance(spec.action, Discrete)
            size = embedding_of(spec, self.action_embedding)[1]
            made: ActionHead | EmbeddedHead = EmbeddedHead(spec.action.n, inputs, size, self.linear)
            return temper(made, self.outputs(DistributionAndValueConfig).temperature)
        cfg = self.outputs(DistributionAndValueConfig)
        if cfg.action_distribution in ("squashed_gaussian", "beta") and not any(
            isinstance(part, Box) for _, part in leaves(spec.action)
        ):
            raise UserError(
                f"model.action_distribution={cfg.action_distribution} is for environments with continuous actions; "
                f"{spec.name} has {spec.action}"
            )
        if is_path(cfg.action_distribution) and "action_mask" in spec.obs:
            raise UserError(
                f"{spec.name} masks its actions, which model.action_distribution={cfg.action_distribution} would "
                "not know"
            )
        made = action_head(
            spec.action,
            inputs,
            self.linear,
            cfg.action_distribution,
            cfg.log_std,
            cfg.autoregressive,
            cfg.free_log_std,
        )
        return temper(made, cfg.temperature)

    def last_layer(self, option: Literal["value_head", "q_head"], inputs: int, outputs: int) -> nn.Module:
        """The last layer of a network for values: linear, or the user's own module, which maps [..., inputs] to
        [..., outputs]. It is tried out, and UserError says what does not fit."""
        name = getattr(self.cfg, option)
        if not is_path(name):
            return self.linear(inputs, outputs, 1.0)
        kind = load_object(name, f"model.{option}", nn.Module)
        try:
            made = kind(inputs, outputs)
            if isinstance(made, nn.Module):
                refuse_modes(made, f"model.{option}={name}")
            out = made(torch.zeros(2, 3, inputs))
        except UserError:
            raise
        except FAILURES as error:  # the user's own code may raise anything
            raise UserError(f"model.{option}={name} cannot be used: {told(error, __file__)}") from None
        if not isinstance(made, nn.Module) or not isinstance(out, Tensor) or out.shape != (2, 3, outputs):
            raise UserError(
                f"model.{option}={name} must make a torch.nn.Module that maps [..., {inputs}] to [..., {outputs}]"
            )
        return made

    def trunk(self, spec: EnvSpec, flat: bool = False) -> Trunk:
        """An encoder and the memory. If flat, the observation is a single image and there is no memory, the encoder has
        convolutions only, for heads that have hidden layers of their own."""
        if self.action_embedding is not None:
            spec, _ = embedding_of(spec, self.action_embedding)
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
        activation: str = self.cfg.activation
        if cfg.hidden == "auto" and isinstance(trunk.encoder, ImageEncoder):
            if trunk.encoder.ends_flat:
                # The head has the encoder's own layers (model.conv_hidden), with their activation too.
                hidden, activation = trunk.encoder.dense, trunk.encoder.kind
            elif cfg.encoder_layer and trunk.memory is None:
                hidden = trunk.encoder.dense[-1:]
        actions = spec.action.n
        if self.action_embedding is not None:
            if cfg.dueling:
                raise UserError(
                    "model.action_embedding has no advantages to take a mean of: set head.dueling=false with it"
                )
            # The head then makes E numbers, whose inner product with an action's embedding is that action's value.
            actions = embedding_of(spec, self.action_embedding)[1]
        if cfg.noisy and self.own_q_head is not None and not hidden:
            raise UserError(
                "model.q_head replaces the only layer that could be noisy: give head.hidden layers, such as [128], or"
                " set head.noisy=false and another exploration"
            )
        precision = self.precision if image else "fp32"  # layers behind convolutions are as wide as those make them
        return QHead(
            trunk.features,
            actions,
            atoms,
            hidden,
            activation,
            cfg,
            self.linear,
            self.cfg.layer_norm,
            precision,
            None if self.own_q_head is None else partial(self.last_layer, "q_head"),
        )

    def memory(self, inputs: int) -> Memory | GTrXL | None:
        cfg = self.cfg.memory
        if isinstance(cfg, AttentionConfig):
            return GTrXL(inputs, cfg.size, cfg.layers, cfg.heads, cfg.length)
        return Memory(cfg.kind, inputs, cfg.size) if isinstance(cfg, RecurrentConfig) else None

    def hidden(self, inputs: int, cfg: NetConfig) -> nn.Sequential:
        """The hidden layers of an algorithm's own network, behind this many features."""
        made = mlp((inputs, *cfg.hidden), cfg.activation, cfg.layer_norm)
        if self.cfg.init == "orthogonal":
            orthogonal(made, math.sqrt(2.0))
        return made

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
