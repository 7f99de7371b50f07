"""The memory of DreamerV3's state-space model: its step, and following rows of observations with it.

Following is the part of an update that cannot be made for all rows at once. `Follow` therefore has a gradient that is
written by hand: inside its loops are only the products that the next step waits for, and the gradients of all weights
are made behind them, one product for all rows each. tests/models/test_world_model.py compares it with autograd.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

EPSILON = 1e-4  # added to the mean square in RMSNorm


def normed(x: Tensor) -> tuple[Tensor, Tensor]:
    """x [N, K] divided by sqrt(|x|^2 + K EPSILON), and that root [N, 1]. RMSNorm is this times sqrt(K)."""
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    root = length.hypot_(length.new_full((), math.sqrt(x.shape[-1] * EPSILON)))  # new_tensor() would wait for a GPU
    return x / root, root


def before_norm(gradient: Tensor, made: Tensor, root: Tensor) -> Tensor:
    """The gradient [N, K] of x for normed(x) = (made, root), given that of `made`."""
    along = torch.linalg.vecdot(gradient, made).unsqueeze(-1)
    return torch.addcmul(gradient, made, along, value=-1.0).div_(root)


def grown(scale: Tensor) -> Tensor:
    """RMSNorm's scale [K] as a factor on what normed() makes."""
    return scale * math.sqrt(len(scale))


class _Activated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor) -> Tensor:
        """scale is one of grown()."""
        made, root = normed(x)
        ctx.save_for_backward(made, root, scale)
        return F.silu(made * scale, inplace=True)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        made, root, scale = ctx.saved_tensors
        gradient = torch.ops.aten.silu_backward(gradient, made * scale)
        of_scale = (gradient * made).flatten(0, -2).sum(0)
        return before_norm(gradient.mul_(scale), made, root), of_scale


def activated(x: Tensor, scale: Tensor) -> Tensor:
    """SiLU(RMSNorm(x)) for x [..., K] and scale [K].

    PyTorch has no kernel of its own for RMSNorm on a CPU, where its gradient takes fifteen operations."""
    if x.is_cuda or torch.compiler.is_exporting():
        return F.silu(F.rms_norm(x, scale.shape, scale, EPSILON))
    return _Activated.apply(x, grown(scale))  # type: ignore[no-untyped-call]


class Weights(NamedTuple):
    """The weights of a step of the memory, and of the posterior behind it, in the form that products need.

    They are made once for many steps: each use of a parameter in a loop would convert it again."""

    of_h: Tensor  # [hidden, deter]
    h_bias: Tensor  # [hidden]
    h_scale: Tensor  # [hidden], grown()
    of_z: Tensor  # [hidden, S]
    z_bias: Tensor  # [hidden]
    z_scale: Tensor  # [hidden], grown()
    # Every block sees the same 3 * hidden numbers, so one product serves all blocks.
    of_inputs: Tensor  # [3 * hidden, deter]
    mixed_bias: Tensor  # [deter]
    of_blocks: Tensor  # [blocks, part, part]
    mixed_scale: Tensor  # [deter], grown()
    gates: Tensor  # [blocks, part, 3 * part]
    gates_bias: Tensor  # [blocks, 1, 3 * part]


class Posterior(NamedTuple):
    """The weights of the posterior, without the part that sees encoded observations."""

    of_h: Tensor  # [hidden, deter]
    scale: Tensor  # [hidden], grown()
    last: Tensor  # [S, hidden]
    bias: Tensor  # [S]


class Made(NamedTuple):
    """What a step of the memory leaves for its gradient. Tensors in blocks are [blocks, N, part]."""

    fast: Tensor  # h before, in the precision of products [N, deter]
    z: Tensor  # [N, S]
    h_norm: tuple[Tensor, Tensor]  # of normed()
    z_norm: tuple[Tensor, Tensor]
    inputs: Tensor  # [N, 3 * hidden]
    mixed_norm: tuple[Tensor, Tensor]
    mixed: Tensor  # [N, deter]
    h: Tensor  # before, in blocks
    reset: Tensor  # in blocks
    candidate: Tensor  # before reset and tanh, twice, in blocks
    new: Tensor  # behind them, in blocks
    update: Tensor  # in blocks


class Core:
    """The step of the memory. It has no gradient of its own; Follow has."""

    def __init__(self, weights: Weights):
        self.weights, self.blocks, self.low = weights, len(weights.of_blocks), weights.of_h.dtype
        # Gates in tensors of their own: functions of numbers that do not lie side by side are slow.
        # tanh(x) is 2 sigmoid(2 x) - 1, and PyTorch's sigmoid is several times as fast on a CPU.
        self.gates = [
            ((weight * factor).contiguous(), bias * factor)
            for weight, bias, factor in zip(
                weights.gates.chunk(3, -1), weights.gates_bias.chunk(3, -1), (1.0, 2.0, 1.0), strict=True
            )
        ]

    def cut(self, x: Tensor) -> Tensor:
        """[N, blocks * K] -> [blocks, N, K]."""
        return x.view(x.shape[0], self.blocks, -1).transpose(0, 1)

    def joined(self, x: Tensor) -> Tensor:
        """[blocks, N, K] -> [N, blocks * K]."""
        return x.transpose(0, 1).reshape(x.shape[1], -1)

    def __call__(self, h: Tensor, z: Tensor, action: Tensor) -> Tensor:
        """h [N, deter], z [N, S] and an embedded action [N, hidden] -> the next h [N, deter]."""
        return self.joined(self.step(self.cut(h), h.to(self.low), z.to(self.low), action)[0])

    def step(self, h: Tensor, fast: Tensor, z: Tensor, action: Tensor) -> tuple[Tensor, Made]:
        """As above, with h before and behind the step in blocks [blocks, N, part]; fast and z are h [N, deter] and z in
        the precision of products."""
        w, low = self.weights, self.low
        h_norm = normed(torch.addmm(w.h_bias, fast, w.of_h.t()).float())
        z_norm = normed(torch.addmm(w.z_bias, z, w.of_z.t()).float())
        inputs = torch.cat(
            (
                F.silu(h_norm[0] * w.h_scale, inplace=True).to(low),
                F.silu(z_norm[0] * w.z_scale, inplace=True).to(low),
                action.to(low),
            ),
            -1,
        )
        common = self.cut(torch.addmm(w.mixed_bias, inputs, w.of_inputs))
        mixed_norm = normed(self.joined(torch.baddbmm(common, self.cut(fast), w.of_blocks)).float())
        mixed = F.silu(mixed_norm[0] * w.mixed_scale, inplace=True).to(low)
        seen = self.cut(mixed)
        reset, candidate, update = (torch.baddbmm(bias, seen, weight).float() for weight, bias in self.gates)
        reset, update = reset.sigmoid_(), update.sub_(1.0).sigmoid_()
        new = (reset * candidate).sigmoid_().mul_(2.0).sub_(1.0)
        made = Made(fast, z, h_norm, z_norm, inputs, mixed_norm, mixed, h, reset, candidate, new, update)
        return torch.lerp(h, new, update), made

    def gradient(self, made: Made, of_after: Tensor) -> tuple[Tensor, Tensor, StepGradient]:
        """The gradients of h [N, deter] and z [N, S] before a step, given that of h behind it [N, deter], and what the
        gradients of weights are made of."""
        w, low = self.weights, self.low
        gradient = self.cut(of_after)
        through = gradient * made.update
        of_update = through * (made.new - made.h) * (1.0 - made.update)
        of_product = through * (1.0 - made.new.square())
        of_candidate = of_product * made.reset
        of_reset = of_candidate * made.candidate * (0.5 - 0.5 * made.reset)
        gates = torch.cat((of_reset, of_candidate, of_update), -1).to(low)
        active = self.joined(torch.bmm(gates, w.gates.transpose(1, 2))).float()
        active = torch.ops.aten.silu_backward(active, made.mixed_norm[0] * w.mixed_scale)
        mixed = before_norm(active * w.mixed_scale, *made.mixed_norm).to(low)
        of_h, of_z, action = (mixed @ w.of_inputs.t()).float().chunk(3, -1)
        h_active = torch.ops.aten.silu_backward(of_h, made.h_norm[0] * w.h_scale)
        z_active = torch.ops.aten.silu_backward(of_z, made.z_norm[0] * w.z_scale)
        h_product = before_norm(h_active * w.h_scale, *made.h_norm).to(low)
        z_product = before_norm(z_active * w.z_scale, *made.z_norm).to(low)
        before = torch.bmm(self.cut(mixed), w.of_blocks.transpose(1, 2)).float().add_(gradient - through)
        before = self.joined(before).add_((h_product @ w.of_h).float())
        late = StepGradient(gates, active, mixed, action, h_active, h_product, z_active, z_product)
        return before, (z_product @ w.of_z).float(), late


class StepGradient(NamedTuple):
    """Gradients inside a step of the memory."""

    gates: Tensor  # [blocks, N, 3 * part]
    active: Tensor  # of what mixed_scale was multiplied to [N, deter]
    mixed: Tensor  # [N, deter]
    action: Tensor  # [N, hidden]
    h_active: Tensor  # [N, hidden]
    h_product: Tensor  # [N, hidden]
    z_active: Tensor  # [N, hidden]
    z_product: Tensor  # [N, hidden]


class Row(NamedTuple):
    """What following a row leaves for its gradient."""

    h: Tensor  # [N, deter]
    z: Tensor  # [N, S]
    logits: Tensor  # [N, S]
    step: Made
    norm: tuple[Tensor, Tensor]  # of normed()
    active: Tensor  # the posterior's hidden layer [N, hidden]
    soft: Tensor  # probabilities before unimix [N, classes, stoch]


def rows_of(steps: list[Tensor]) -> Tensor:
    """T tensors [N, ...] -> [T * N, ...]."""
    return torch.stack(steps).flatten(0, 1)


def in_blocks(steps: list[Tensor]) -> Tensor:
    """T tensors [blocks, N, K] -> [blocks, T * N, K]."""
    return torch.stack(steps, 1).flatten(1, 2)


def scale_gradient(active: Tensor, norms: list[tuple[Tensor, Tensor]]) -> Tensor:
    """The gradient [K] of a scale behind T norms, given that of what it was multiplied to [T * N, K]."""
    return (active * rows_of([made for made, _ in norms])).sum(0)


class Follow(torch.autograd.Function):
    """Follows T rows: h from h, z and action before them, logits of z from h and what was seen, z from the logits."""

    @staticmethod
    def forward(
        ctx: Any, draw: Any, unimix: float, keep: Tensor, uniform: Tensor, h: Tensor, z: Tensor, action: Tensor,
        seen: Tensor, *weights: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        """Returns h [T, N, deter], z [T, N, S] and the posterior's logits [T, N, S].

        Args: draw(probabilities, uniform) gives z; keep [T, N, 1], 0.0 where a row's memory begins anew; uniform
        [T, N, stoch]; h, z: those before the first row, which get no gradient; action [T, N, hidden], embedded; seen
        [T, N, hidden], the observations' part of the posterior's first layer; the fields of Weights and Posterior."""
        core, last = Core(Weights(*weights[: len(Weights._fields)])), Posterior(*weights[len(Weights._fields) :])
        stoch, low = uniform.shape[-1], core.low
        of_h, out, rows = last.of_h.t(), last.last.t(), []
        for t in range(len(seen)):
            h = h * keep[t]
            after, step = core.step(core.cut(h), h.to(low), (z * keep[t]).to(low), action[t])
            h = core.joined(after)
            norm = normed(torch.addmm(seen[t], h, of_h))
            active = F.silu(norm[0] * last.scale, inplace=True)
            logits = torch.addmm(last.bias, active, out)
            chances = logits.view(len(logits), -1, stoch).softmax(1)
            z = draw(torch.add(unimix / chances.shape[1], chances, alpha=1.0 - unimix), uniform[t])
            rows.append(Row(h, z, logits, step, norm, active, chances))
        if any(ctx.needs_input_grad):
            ctx.rows, ctx.core, ctx.last, ctx.keep, ctx.unimix = rows, core, last, keep, unimix
        return tuple(torch.stack([row[part] for row in rows]) for part in range(3))  # type: ignore[misc, return-value]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_h: Tensor, of_z: Tensor, of_logits: Tensor) -> Any:  # type: ignore[override]
        core, last, keep, rows = ctx.core, ctx.last, ctx.keep, ctx.rows
        h: Tensor | None = None
        z: Tensor | None = None
        late: list[StepGradient] = []
        kept: list[tuple[Tensor, Tensor, Tensor]] = []
        for t in reversed(range(len(rows))):
            row: Row = rows[t]
            # z is a constant plus its probabilities (straight-through).
            drawn = of_z[t] if z is None else of_z[t] + z
            soft = torch._softmax_backward_data(drawn.view_as(row.soft), row.soft, 1, torch.float32).flatten(1)
            logits = torch.add(of_logits[t], soft, alpha=1.0 - ctx.unimix)
            active = torch.ops.aten.silu_backward(logits @ last.last, row.norm[0] * last.scale)
            product = before_norm(active * last.scale, *row.norm)
            after = torch.addmm(of_h[t] if h is None else of_h[t] + h, product, last.of_h)
            h, z, step = core.gradient(row.step, after)
            h.mul_(keep[t])
            z.mul_(keep[t])
            late.insert(0, step)
            kept.insert(0, (logits, active, product))
        gradients = {name: [getattr(step, name) for step in late] for name in StepGradient._fields}
        made = {name: [getattr(row.step, name) for row in rows] for name in Made._fields}
        flat = {name: rows_of(parts) for name, parts in gradients.items() if name != "gates"}
        fast, mixed, gates = rows_of(made["fast"]), flat["mixed"], in_blocks(gradients["gates"])
        of_weights = Weights(
            of_h=flat["h_product"].t() @ fast,
            h_bias=flat["h_product"].sum(0),
            h_scale=scale_gradient(flat["h_active"], made["h_norm"]),
            of_z=flat["z_product"].t() @ rows_of(made["z"]),
            z_bias=flat["z_product"].sum(0),
            z_scale=scale_gradient(flat["z_active"], made["z_norm"]),
            of_inputs=rows_of(made["inputs"]).t() @ mixed,
            mixed_bias=mixed.sum(0),
            of_blocks=torch.bmm(core.cut(fast).transpose(1, 2), core.cut(mixed)),
            mixed_scale=scale_gradient(flat["active"], made["mixed_norm"]),
            gates=torch.bmm(core.cut(rows_of(made["mixed"])).transpose(1, 2), gates),
            gates_bias=gates.sum(1, keepdim=True),
        )
        logits, active, product = (rows_of(list(parts)) for parts in zip(*kept, strict=True))
        of_posterior = Posterior(
            of_h=product.t() @ rows_of([row.h for row in rows]),
            scale=scale_gradient(active, [row.norm for row in rows]),
            last=logits.t() @ rows_of([row.active for row in rows]),
            bias=logits.sum(0),
        )
        shape = of_h.shape[:2]
        seen_gradient, action = product.unflatten(0, shape), flat["action"].unflatten(0, shape)
        return None, None, None, None, None, None, action, seen_gradient, *of_weights, *of_posterior
