"""Action heads: networks that map features [..., F] to a distribution over an action space or to action values."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rlrun.core.batch import Batch, Field, RowSpec
from rlrun.core.conditions import SINGLE_IMAGES, OnlyFor, OnlyWith
from rlrun.core.errors import FAILURES, UserError, told
from rlrun.core.plugins import is_path, load_object
from rlrun.core.ranges import Count, NotNegative, PositiveShare
from rlrun.core.specs import Box, Discrete, MultiBinary, MultiDiscrete, Nested, Space, leaves
from rlrun.models.encoders import ACTIVATIONS, flat_size, flatten
from rlrun.models.noisy import FEW_ROWS, NoisyLinear
from rlrun.ops.distributions import (
    ActionDistribution,
    Bernoulli,
    Beta,
    Categorical,
    Distribution,
    Gaussian,
    Joint,
    MultiCategorical,
    SquashedGaussian,
)

BoxDistribution = Literal["gaussian", "squashed_gaussian", "beta"]
Linear = Callable[[int, int, float], nn.Linear]  # inputs, outputs, gain
HIDDEN_GAIN = 2.0**0.5  # gain of orthogonal hidden layers
SMALL_GAIN = 0.01  # gain of an action head's last layer; the first policy is nearly uniform (Andrychowicz et al. 2021)


class ActionHead(nn.Module):
    """A head for one action space. `dist_spec` holds the fields that are recorded for the distribution of one row."""

    dist_spec: RowSpec

    def forward(self, features: Tensor, mask: Tensor | None) -> Distribution:
        raise NotImplementedError


def _numbers(*names: str, width: int) -> RowSpec:
    return {name: Field((width,), torch.float32) for name in names}


class DiscreteHead(ActionHead):
    """A categorical distribution for one choice, or independent ones for several choices."""

    temperature = 1.0  # divides the logits; set by temper()

    def __init__(self, space: Discrete | MultiDiscrete, inputs: int, linear: Linear):
        super().__init__()
        self.space = space
        self.sizes = (space.n,) if isinstance(space, Discrete) else space.sizes
        self.linear = linear(inputs, sum(self.sizes), SMALL_GAIN)
        self.dist_spec = _numbers("log_probs", width=sum(self.sizes))

    def forward(self, features: Tensor, mask: Tensor | None) -> Distribution:
        logits, legal = tempered(self.linear(features), self.temperature), None if mask is None else mask.bool()
        if isinstance(self.space, Discrete):
            return Categorical(logits, legal)
        return MultiCategorical(logits, self.sizes, self.space.shape, legal)


class EmbeddedHead(nn.Module):
    """A categorical distribution over actions that the observation describes. Logits are inner products of the net's
    output [E] with the embedding of each action [A, E]."""

    temperature = 1.0  # divides the logits; set by temper()

    def __init__(self, actions: int, inputs: int, size: int, linear: Linear):
        super().__init__()
        self.linear = linear(inputs, size, SMALL_GAIN)
        self.dist_spec = _numbers("log_probs", width=actions)

    def forward(self, features: Tensor, mask: Tensor | None, meaning: Tensor) -> Categorical:
        """features [..., F], embeddings of the actions `meaning` [..., A, E] -> a distribution over A actions."""
        logits = tempered((meaning @ self.linear(features).unsqueeze(-1)).squeeze(-1), self.temperature)
        return Categorical(logits, None if mask is None else mask.bool())


def tempered(logits: Tensor, temperature: float) -> Tensor:
    return logits if temperature == 1.0 else logits / temperature


Head = TypeVar("Head", bound=nn.Module)


def temper(head: Head, temperature: float) -> Head:
    """Divides the logits of all categorical distributions of a head by a temperature, so that their samples, log
    probabilities, entropies and divergences are those of the tempered distributions.

    Raises UserError if there are none and the temperature is not 1."""
    parts = [part for part in head.modules() if isinstance(part, DiscreteHead | EmbeddedHead)]
    if not parts and temperature != 1.0:
        raise UserError(f"model.temperature={temperature:g} is for choices among actions, and there are none here")
    for part in parts:
        part.temperature = temperature
    return head


class BinaryHead(ActionHead):
    def __init__(self, space: MultiBinary, inputs: int, linear: Linear):
        super().__init__()
        self.shape = space.shape
        self.linear = linear(inputs, space.size, SMALL_GAIN)
        self.dist_spec = _numbers("logits", width=space.size)

    def forward(self, features: Tensor, mask: Tensor | None) -> Distribution:
        return Bernoulli(self.linear(features), self.shape)


class BoxHead(ActionHead):
    """A distribution over a Box: a Gaussian with a free log standard deviation per number, or with one that depends on
    the features; a squashed Gaussian, whose deviation depends on the features as in SAC; or a Beta distribution."""

    LOG_STD = (-5.0, 2.0)  # bounds of a squashed Gaussian's log standard deviation; those of CleanRL

    def __init__(self, space: Box, inputs: int, linear: Linear, kind: str, log_std: float, free: bool = True):
        """free: whether a Gaussian's log standard deviation is a parameter and not an output of the net.

        Raises UserError for a log_std with which a squashed Gaussian cannot begin."""
        super().__init__()
        low, high = self.LOG_STD
        if kind == "squashed_gaussian" and not low <= log_std <= high:
            raise UserError(
                f"model.log_std={log_std:g} is where a squashed Gaussian's log standard deviation begins, which stays"
                f" between {low:g} and {high:g}: choose a number there"
            )
        self.kind, self.shape = kind, space.shape
        self.free = free and kind == "gaussian"
        self.linear = linear(inputs, space.size if self.free else 2 * space.size, SMALL_GAIN)
        if self.free:
            self.log_std = nn.Parameter(torch.full((space.size,), log_std))
        self.dist_spec = (
            _numbers("alpha", "beta", width=space.size)
            if kind == "beta"
            else _numbers("mean", "log_std", width=space.size)
        )
        self.first_log_std = log_std

    def forward(self, features: Tensor, mask: Tensor | None) -> Distribution:
        out = self.linear(features)
        if self.free:
            return Gaussian(out, self.log_std, self.shape)
        a, b = out.chunk(2, -1)
        if self.kind == "gaussian":
            return Gaussian(a, b + self.first_log_std, self.shape)
        if self.kind == "beta":
            return Beta(1.0 + F.softplus(a), 1.0 + F.softplus(b), self.shape)
        return SquashedGaussian(a, (b + self.first_log_std).clamp(*self.LOG_STD), self.shape)


class JointHead(ActionHead):
    """Independent heads, one for each part of a tuple or dictionary."""

    def __init__(self, heads: dict[str, ActionHead]):
        super().__init__()
        self.heads = nn.ModuleList(heads.values())  # names may hold dots, which a ModuleDict refuses
        self.names = tuple(heads)
        self.dist_spec = {name: head.dist_spec for name, head in heads.items()}

    def forward(self, features: Tensor, mask: Tensor | None) -> Distribution:
        return Joint({name: head(features, None) for name, head in zip(self.names, self.heads, strict=True)})


class AutoregressiveHead(ActionHead):
    """Chooses the parts of a tuple or dictionary one after the other, each from the features and the parts chosen
    before it: p(a) = p(a_1) p(a_2 | a_1) ... (Vinyals et al. 2017, arXiv:1708.04782, section 4.3)."""

    def __init__(self, space: Nested, inputs: int, linear: Linear, kind: str, log_std: float, free: bool = True):
        super().__init__()
        self.spaces, self.names = [part for _, part in space.spaces], tuple(name for name, _ in space.spaces)
        # For each part, how many numbers the parts before it have.
        known = list(itertools.accumulate((flat_size(part) for part in self.spaces[:-1]), initial=0))
        heads = (action_head(part, inputs, linear, kind, log_std, free=free) for part in self.spaces)
        self.heads = nn.ModuleList(heads)
        self.mixers = nn.ModuleList(
            nn.Sequential(linear(inputs + size, inputs, HIDDEN_GAIN), nn.Tanh()) if size else nn.Identity()
            for size in known
        )
        self.dist_spec = {name: head.dist_spec for name, head in zip(self.names, self.heads, strict=True)}  # type: ignore[misc]

    def forward(self, features: Tensor, mask: Tensor | None) -> Autoregressive:  # type: ignore[override]
        return Autoregressive(self, features)

    def part(self, index: int, features: Tensor, before: list[Tensor]) -> Distribution:
        """The distribution of this part, given features [..., F] and the parts before it, flattened [..., D_i]."""
        return self.heads[index](self.mixers[index](torch.cat([features, *before], -1)), None)

    def flat(self, index: int, chosen: Tensor | Batch) -> Tensor:
        """Flattens the values of one part: [..., *shape] -> [..., D]."""
        leaf = next(chosen.leaves()) if isinstance(chosen, Batch) else chosen
        inside = next(leaves(self.spaces[index]))[1].field.shape
        leading = leaf.shape[: leaf.ndim - len(inside)]
        rows = _each(chosen, lambda value: value.reshape(-1, *value.shape[len(leading) :]))
        return flatten(self.spaces[index], rows).reshape(*leading, -1)


def _each(value: Tensor | Batch, function: Callable[[Tensor], Tensor]) -> Any:
    return value.map(function) if isinstance(value, Batch) else function(value)


class Autoregressive:
    """The distribution of an AutoregressiveHead over the features [..., F] of some rows. It has no entropy and
    divergence of its own: given(action) returns the Joint of the parts conditioned on an action, whose entropy and
    divergence are sums over the parts. By the chain rule, their expectation over actions is that of the whole
    distribution."""

    def __init__(self, head: AutoregressiveHead, features: Tensor):
        self.head, self.features = head, features

    def __getitem__(self, index) -> Autoregressive:
        return Autoregressive(self.head, self.features[index])

    def _choose(self, choose: Callable[[int, Distribution], Tensor | Batch]) -> tuple[Batch, Joint]:
        """Goes through the parts in order. Returns what choose(i, distribution of part i) returned for each part, and
        the distributions."""
        chosen: dict[str, Tensor | Batch] = {}
        parts: dict[str, Distribution] = {}
        before: list[Tensor] = []
        for index, name in enumerate(self.head.names):
            parts[name] = self.head.part(index, self.features, before)
            chosen[name] = choose(index, parts[name])
            before.append(self.head.flat(index, chosen[name]))
        return Batch(chosen), Joint(parts)

    def sample(self, rng: torch.Generator) -> Batch:
        return self._choose(lambda _, part: part.sample(rng))[0]

    def mode(self) -> Batch:
        """Each part's mode given the modes before it."""
        return self._choose(lambda _, part: part.mode())[0]

    def given(self, action: Batch) -> Joint:
        return self._choose(lambda index, _: action[self.head.names[index]])[1]

    def log_prob(self, action: Batch) -> Tensor:
        return self.given(action).log_prob(action)


class OwnHead(ActionHead):
    """The user's own distribution over actions of any space."""

    def __init__(self, space: Space, inputs: int, linear: Linear, kind: type[ActionDistribution], numbers: int):
        super().__init__()
        self.space, self.kind = space, kind
        self.linear = linear(inputs, numbers, SMALL_GAIN)
        self.dist_spec = _numbers("numbers", width=numbers)

    def forward(self, features: Tensor, mask: Tensor | None) -> Distribution:
        return self.kind(self.linear(features), self.space)


def _shapes(action: Any, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], tuple[int, ...] | None]:
    """The shape of each part of an action, by its path; None for what is no tensor."""
    if isinstance(action, Batch):
        return {inner: shape for name, part in action.items() for inner, shape in _shapes(part, (*path, name)).items()}
    return {path: tuple(action.shape) if isinstance(action, Tensor) else None}


def _of_parts(shapes: Mapping[tuple[str, ...], Any]) -> str:
    """Shapes as words: (2, 3), or left (2,), right.hand (2, 3)."""
    return ", ".join(f"{'.'.join(path)} {shape}".strip() for path, shape in shapes.items())


def own_head(space: Space, inputs: int, linear: Linear, name: str) -> OwnHead:
    """The head of the distribution package.module:Name. It is tried out on two rows, and UserError says what does not
    fit."""
    option = f"model.action_distribution={name}"
    kind = load_object(name, "model.action_distribution", ActionDistribution)
    if not (isinstance(kind, type) and issubclass(kind, ActionDistribution)):
        raise UserError(f"{option} must be a class that derives from rlrun.ActionDistribution")
    try:
        numbers = kind.outputs(space)
        dist = kind(torch.zeros(2, numbers), space)
        actions = {"sample": dist.sample(torch.Generator().manual_seed(0)), "mode": dist.mode()}
        made = {"log_prob": dist.log_prob(actions["sample"]), "entropy": dist.entropy(), "kl": dist.kl(dist)}
    except FAILURES as error:  # the user's own code may raise anything
        raise UserError(f"{option} does not fit the actions {space}: {told(error, __file__)}") from None
    wanted = {path: (2, *part.field.shape) for path, part in leaves(space)}
    for method, action in actions.items():
        found = _shapes(action)
        if found != wanted:
            raise UserError(
                f"{option}: {method}() makes actions of shape {_of_parts(found)} for 2 rows, not {_of_parts(wanted)},"
                f" of {space}"
            )
    for method, value in made.items():
        if getattr(value, "shape", None) != (2,):
            raise UserError(f"{option}: {method}() must make a number for each row, [2] for 2 rows")
    return OwnHead(space, inputs, linear, kind, numbers)


def action_head(
    space: Space,
    inputs: int,
    linear: Linear,
    kind: str,
    log_std: float,
    autoregressive: bool = False,
    free: bool = True,
) -> ActionHead:
    """The action head for a space. kind: a BoxDistribution or package.module:Name. Raises UserError if the requested
    distribution does not fit the space."""
    if is_path(kind):
        return own_head(space, inputs, linear, kind)
    if autoregressive:
        if not isinstance(space, Nested) or len(space.spaces) < 2:
            raise UserError(
                "model.autoregressive=true chooses the parts of a Tuple or Dict of actions one after the other; "
                f"{space} has no such parts"
            )
        return AutoregressiveHead(space, inputs, linear, kind, log_std, free)
    if isinstance(space, Nested):
        heads = {name: action_head(part, inputs, linear, kind, log_std, free=free) for name, part in space.spaces}
        return JointHead(heads)
    if isinstance(space, Discrete | MultiDiscrete):
        return DiscreteHead(space, inputs, linear)
    if isinstance(space, MultiBinary):
        return BinaryHead(space, inputs, linear)
    if kind != "gaussian" and not space.bounded:
        raise UserError(
            f"model.action_distribution={kind} needs bounded actions, not {space} without bounds; use gaussian"
        )
    return BoxHead(space, inputs, linear, kind, log_std, free)


@dataclass(frozen=True, kw_only=True)
class QHeadConfig:
    """Options of the layers between features and action values."""

    hidden: Literal["auto"] | tuple[Annotated[int, Count], ...]
    encoder_layer: Annotated[bool, OnlyFor(SINGLE_IMAGES)]
    dueling: bool
    gradient_scale: Annotated[float, PositiveShare, OnlyWith("dueling", True)]
    noisy: bool
    sigma0: Annotated[float, NotNegative, OnlyWith("noisy", True)]


class QHead(nn.Module):
    """Maps features [..., F] to K numbers for each action, [..., A, K]: atoms, quantiles, or a single value.

    A dueling head (Wang et al. 2016, arXiv:1511.06581) computes V + A - mean A (eq. 9), and the gradient that both
    streams send back is scaled by gradient_scale (section 4.2: 1 / sqrt 2). In a noisy head, every layer is noisy
    (Fortunato et al. 2018)."""

    def __init__(
        self,
        inputs: int,
        actions: int,
        atoms: int,
        hidden: tuple[int, ...],
        activation: str,
        cfg: QHeadConfig,
        linear: Linear,
        layer_norm: bool = False,
        precision: str = "fp32",
        last: Callable[[int, int], nn.Module] | None = None,
    ):
        """`precision` applies to the layers before the last one of each stream. last(inputs, outputs) makes that one;
        None: it is linear, or noisy."""
        super().__init__()
        self.precision = precision
        self.actions, self.atoms, self.scale = actions, atoms, cfg.gradient_scale if cfg.dueling else 1.0

        def stream(outputs: int) -> nn.Sequential:
            layers: list[nn.Module] = []
            for before, after in itertools.pairwise((inputs, *hidden)):
                layers += [NoisyLinear(before, after, cfg.sigma0) if cfg.noisy else linear(before, after, HIDDEN_GAIN)]
                layers += [*([nn.LayerNorm(after)] if layer_norm else []), ACTIVATIONS[activation]()]
            width = hidden[-1] if hidden else inputs
            if last is not None:
                return nn.Sequential(*layers, last(width, outputs))
            return nn.Sequential(
                *layers, NoisyLinear(width, outputs, cfg.sigma0) if cfg.noisy else linear(width, outputs, 1.0)
            )

        self.advantage = stream(actions * atoms)
        self.value = stream(atoms) if cfg.dueling else None

    def forward(self, features: Tensor) -> Tensor:
        if self.scale != 1.0 and features.requires_grad:
            features = features * self.scale + features.detach() * (1.0 - self.scale)
        advantage = self._through(self.advantage, features).unflatten(-1, (self.actions, self.atoms))
        if self.value is None:
            return advantage
        return self._through(self.value, features).unsqueeze(-2) + advantage - advantage.mean(-2, keepdim=True)

    def hidden(self) -> list[nn.Module]:
        """The layers of each stream before its last one."""
        return [stream[:-1] for stream in (self.advantage, self.value) if stream is not None]

    def _through(self, stream: nn.Sequential, features: Tensor) -> Tensor:
        """features [..., F] -> the output of a stream, in float32."""
        if self.precision != "bf16" or len(stream) == 1:
            return stream(features)
        stored = stream[0].weight.dtype
        if stored == torch.bfloat16:
            features = features.to(stored)
        # For so few rows, making bfloat16 weights would cost more than it gains.
        few = features.device.type == "cpu" and features.numel() <= FEW_ROWS * features.shape[-1]
        with torch.autocast(
            features.device.type, torch.bfloat16, enabled=stored != torch.bfloat16 and not few, cache_enabled=False
        ):
            features = stream[:-1](features)
        return stream[-1](features.float())
