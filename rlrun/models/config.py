"""The options of conf/model and conf/model/memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal, Self, get_args

from rlrun.core.conditions import (
    ACTION_EMBEDDINGS,
    ACTION_PARTS,
    ACTIVATED,
    CHOICES,
    CONTINUOUS,
    CONV_LAYERS,
    CONVOLUTIONS,
    DRAWN,
    EACH_AGENT,
    LEARNT_VALUES,
    NORMALIZED,
    OWN_ENCODERS,
    SEVERAL_AGENTS,
    OnlyFor,
    OnlyWith,
)
from rlrun.core.errors import closest
from rlrun.core.plugins import is_path
from rlrun.core.ranges import Count, NotNegative, Positive
from rlrun.models.encoders import (
    ImageConfig,
    Padding,
)
from rlrun.models.gaussian_world_model import GaussianWorldModelConfig
from rlrun.models.heads import BoxDistribution
from rlrun.models.world_model import WorldModelConfig

Activation = Literal["tanh", "relu", "elu", "silu"]
Sides = Annotated[int, Count] | tuple[Annotated[int, Count], Annotated[int, Count]]  # height and width
CONVOLUTIONAL = ("nature_cnn", "impala_resnet")
ENCODERS = ("auto", "mlp", *CONVOLUTIONAL)
VECTORS = (256, 256)  # hidden layers over numbers that stand beside images, as conf/model/auto.yaml has for numbers


@dataclass(frozen=True, kw_only=True)
class MemoryConfig:
    """No memory, or one of the kinds below."""

    kind: Literal["none", "lstm", "gru", "gtrxl"]

    @classmethod
    def variant(cls, values: Mapping[str, Any]) -> type[MemoryConfig]:
        kinds: dict[str, type[MemoryConfig]] = {
            "lstm": RecurrentConfig,
            "gru": RecurrentConfig,
            "gtrxl": AttentionConfig,
        }
        kind = values.get("kind")  # a file may have a list here
        return kinds.get(kind, MemoryConfig) if isinstance(kind, str) else MemoryConfig

    @property
    def previous(self) -> tuple[bool, bool]:
        """Whether the last action and the last reward are inputs of the memory."""
        return False, False


@dataclass(frozen=True, kw_only=True)
class RecurrentConfig(MemoryConfig):
    """An LSTM or a GRU."""

    size: Annotated[int, Count]
    prev_action: bool
    prev_reward: Annotated[bool, OnlyFor(EACH_AGENT)]

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
    """Options of every model. The subclasses add those of conf/model/output; `others` share none with it."""

    others: ClassVar[tuple[type, ...]] = (WorldModelConfig, GaussianWorldModelConfig)

    encoder: str
    encoder_kwargs: Annotated[dict[str, Any], OnlyFor(OWN_ENCODERS)]
    hidden: tuple[Annotated[int, Count], ...]
    activation: Annotated[Activation, OnlyFor(ACTIVATED)]
    conv_filters: Annotated[tuple[tuple[Sides, Sides, Sides], ...] | None, OnlyFor(CONVOLUTIONS)]
    conv_padding: Annotated[Padding, OnlyFor(CONVOLUTIONS), OnlyWith("conv_filters")]
    conv_hidden: Annotated[Literal["auto"] | tuple[Annotated[int, Count], ...], OnlyFor(CONV_LAYERS)]
    conv_activation: Annotated[Activation | Literal["auto"], OnlyFor(CONVOLUTIONS)]
    init: Annotated[Literal["orthogonal", "default"], OnlyFor(DRAWN)]
    layer_norm: Annotated[bool, OnlyFor(NORMALIZED)]
    observation_filter: Literal["none", "mean_std"]
    observation_clip: Annotated[float, NotNegative, OnlyWith("observation_filter", "mean_std")]
    memory: MemoryConfig

    def __post_init__(self):
        if self.encoder not in ENCODERS and not is_path(self.encoder):
            raise ValueError(
                f"encoder must be {', '.join(ENCODERS)} or package.module:Name, not {self.encoder!r}."
                f"{closest(self.encoder, ENCODERS)}"
            )
        if self.encoder_kwargs and not is_path(self.encoder):
            raise ValueError(f"encoder_kwargs are for an encoder of your own, not for {self.encoder}")
        for name, default in (("conv_activation", "auto"), ("conv_hidden", "auto")):
            if getattr(self, name) != default and (is_path(self.encoder) or self.encoder == "mlp"):
                raise ValueError(f"{name} is for encoders with convolutions, not for {self.encoder}")
        if self.conv_filters is None and self.conv_padding != "none":
            raise ValueError(
                f"conv_padding={self.conv_padding} is for conv_filters; other encoders have borders of their own"
            )
        if self.conv_filters is not None:
            if self.encoder != "auto":
                raise ValueError(
                    f"conv_filters are for encoder=auto, not for {self.encoder}, which has layers of its own"
                )
            if not self.conv_filters or not all(isinstance(channels, int) for channels, _, _ in self.conv_filters):
                raise ValueError(
                    "conv_filters must be a list of [channels, kernel, stride], such as [[32,8,4],[64,[4,4],2]]"
                )

    @classmethod
    def variant(cls, values: Mapping[str, Any]) -> type[ModelConfig]:
        """The class for the file of conf/model/output that the algorithm chose, which its options tell, or that of a
        world model (conf/model/), whose options have nothing in common with those here."""
        if "stoch" in values:
            return GaussianWorldModelConfig if "mean_scale" in values else WorldModelConfig  # type: ignore[return-value]
        if "share_value" in values:
            return DistributionAndValueConfig
        if "action_distribution" in values:
            return SquashedDistributionConfig
        if "action_embedding" in values:
            return ActionValuesConfig
        return ActionAndCriticConfig if "q_head" in values else ModelConfig

    @property
    def central(self) -> bool:
        """Whether values see the state of all agents."""
        return False

    def without_images(self) -> Self:
        """These options for numbers beside images, such as a state: those of convolutions are left out. Where no hidden
        layers follow the images, there are two of 256, as for other numbers."""
        encoder, hidden = "auto" if self.encoder in CONVOLUTIONAL else self.encoder, self.hidden or VECTORS
        plain = replace(self, conv_filters=None, conv_padding="none", conv_hidden="auto", conv_activation="auto")
        return replace(plain, encoder=encoder, hidden=hidden)

    @property
    def images(self) -> ImageConfig:
        """The options of the network for images, where its activation function is known."""
        hidden = None if self.conv_hidden == "auto" else self.conv_hidden
        return ImageConfig(
            filters=self.conv_filters,  # type: ignore[arg-type]
            padding=self.conv_padding,
            hidden=hidden,
            activation=self.conv_activation,
        )


@dataclass(frozen=True, kw_only=True)
class DistributionAndValueConfig(ModelConfig):
    """For policies that are a distribution over actions, with a value beside it."""

    share_value: Annotated[bool, OnlyFor(LEARNT_VALUES)]
    value_sees: Annotated[Literal["observation", "state"], OnlyFor(SEVERAL_AGENTS), OnlyFor(LEARNT_VALUES)]
    action_distribution: str
    log_std: Annotated[float, OnlyFor(CONTINUOUS), OnlyWith("action_distribution", "gaussian", "squashed_gaussian")]
    free_log_std: Annotated[bool, OnlyFor(CONTINUOUS), OnlyWith("action_distribution", "gaussian")]
    temperature: Annotated[float, Positive, OnlyFor(CHOICES)]
    autoregressive: Annotated[bool, OnlyFor(ACTION_PARTS)]
    action_embedding: Annotated[str | None, OnlyFor(ACTION_EMBEDDINGS)]
    value_head: Annotated[str, OnlyFor(LEARNT_VALUES)]

    def __post_init__(self):
        super().__post_init__()
        if self.central and self.share_value:
            raise ValueError("value_sees=state needs a network of its own for values: set share_value=false with it")
        _check_name("action_distribution", self.action_distribution, get_args(BoxDistribution))
        _check_name("value_head", self.value_head, ("linear",))
        if is_path(self.action_distribution) and (self.autoregressive or self.action_embedding is not None):
            other = "autoregressive=true" if self.autoregressive else "action_embedding"
            raise ValueError(
                f"{other} makes a distribution that action_distribution={self.action_distribution} replaces"
            )

    @property
    def central(self) -> bool:
        return self.value_sees == "state"


@dataclass(frozen=True, kw_only=True)
class ActionAndCriticConfig(ModelConfig):
    """For actors that choose one action, which critics judge."""

    q_head: str

    def __post_init__(self):
        super().__post_init__()
        _check_name("q_head", self.q_head, ("linear",))


@dataclass(frozen=True, kw_only=True)
class ActionValuesConfig(ActionAndCriticConfig):
    """For policies that choose by action values."""

    action_embedding: Annotated[str | None, OnlyFor(ACTION_EMBEDDINGS)]


@dataclass(frozen=True, kw_only=True)
class SquashedDistributionConfig(ActionAndCriticConfig):
    """For actors that are a distribution over bounded actions, with critics."""

    action_distribution: Annotated[str, OnlyFor(CONTINUOUS)]
    log_std: Annotated[float, OnlyFor(CONTINUOUS), OnlyWith("action_distribution", "squashed_gaussian")]
    temperature: Annotated[float, Positive, OnlyFor(CHOICES)]

    def __post_init__(self):
        super().__post_init__()
        _check_name("action_distribution", self.action_distribution, ("squashed_gaussian", "beta"))


def _check_name(option: str, given: str, known: tuple[str, ...]) -> None:
    if given not in known and not is_path(given):
        raise ValueError(
            f"{option} must be {', '.join(known)} or package.module:Name, not {given!r}.{closest(given, known)}"
        )


def has_own_parts(model: Any) -> bool:
    """Tells whether an option of this model names a module or a class of the user's."""
    return any(isinstance(value, str) and is_path(value) for value in vars(model).values())
