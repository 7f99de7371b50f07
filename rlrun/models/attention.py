"""GTrXL: a gated transformer as memory (Parisotto et al. 2019, arXiv:1910.06764). Positions are relative: there is a
learned vector per head and distance, whereas Transformer-XL (Dai et al. 2019) projects sinusoids."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rlrun.core.batch import Batch, Field, RowSpec

BIAS = 2.0  # initial bias of the update gate, with which a new layer passes its input on (section 3.2)


class Gate(nn.Module):
    """GRU-type gating of a layer's input x and output y (section 3.2, "Gated-Recurrent-Unit-type gating")."""

    def __init__(self, size: int):
        super().__init__()
        self.from_y, self.from_x = nn.Linear(size, 3 * size, bias=False), nn.Linear(size, 2 * size, bias=False)
        self.from_reset = nn.Linear(size, size, bias=False)
        self.bias = nn.Parameter(torch.full((size,), BIAS))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        reset_y, update_y, new_y = self.from_y(y).chunk(3, -1)
        reset_x, update_x = self.from_x(x).chunk(2, -1)
        update = torch.sigmoid(update_y + update_x - self.bias)
        new = torch.tanh(new_y + self.from_reset(torch.sigmoid(reset_y + reset_x) * x))
        return (1.0 - update) * x + update * new


class Layer(nn.Module):
    """Layer norm, relative multi-head attention, gate, layer norm, feed-forward, gate (GTrXL in figure 1, right)."""

    def __init__(self, size: int, heads: int, length: int):
        super().__init__()
        self.heads = heads
        self.attention_norm, self.feed_norm = nn.LayerNorm(size), nn.LayerNorm(size)
        self.query, self.key_value = nn.Linear(size, size, bias=False), nn.Linear(size, 2 * size, bias=False)
        self.position = nn.Parameter(0.02 * torch.randn(heads, length + 1, size // heads))  # [heads, distance, D]
        self.content_bias, self.position_bias = (nn.Parameter(torch.zeros(heads, 1, size // heads)) for _ in range(2))
        self.out = nn.Linear(size, size, bias=False)
        self.feed = nn.Sequential(nn.Linear(size, 4 * size), nn.ReLU(), nn.Linear(4 * size, size))
        self.attention_gate, self.feed_gate = Gate(size), Gate(size)

    def _split(self, x: Tensor) -> Tensor:
        """[T, B, H * D] -> [B, H, T, D]."""
        return x.unflatten(-1, (self.heads, -1)).permute(1, 2, 0, 3)

    def forward(self, x: Tensor, memory: Tensor, distance: Tensor, seen: Tensor) -> Tensor:
        """x [T, B, H], memory [M, B, H], distance [T, M+T], seen [B, T, M+T] -> [T, B, H]. `distance` is how many rows
        back each other row is; `seen` says whether a row attends to it."""
        normed = self.attention_norm(torch.cat([memory, x]))
        query = self._split(self.query(normed[len(memory) :]))  # [B, heads, T, D]
        key, value = (self._split(part) for part in self.key_value(normed).chunk(2, -1))
        content = (query + self.content_bias) @ key.transpose(-1, -2)  # [B, heads, T, M+T]
        by_distance = (query + self.position_bias) @ self.position.transpose(-1, -2)  # [B, heads, T, M+1]
        place = distance.clamp(0, self.position.shape[1] - 1).expand(*by_distance.shape[:2], -1, -1)
        scores = (content + by_distance.gather(-1, place)) * query.shape[-1] ** -0.5
        weights = scores.masked_fill(~seen.unsqueeze(1), -torch.inf).softmax(-1)  # a row always sees itself
        mixed = (weights @ value).permute(2, 0, 1, 3).flatten(2)  # [T, B, H]
        x = self.attention_gate(x, torch.relu(self.out(mixed)))
        return self.feed_gate(x, torch.relu(self.feed(self.feed_norm(x))))


class GTrXL(nn.Module):
    """`layers` gated layers, each of which attends to the last `length` rows of the same episode. A column's state
    holds every layer's inputs in those rows and the number of those rows; gradients do not flow into it. Episodes are
    separated only by masks, so that the kernels are the same whatever the rows hold."""

    def __init__(self, inputs: int, size: int, layers: int, heads: int, length: int):
        super().__init__()
        self.size, self.length = size, length
        self.embed = nn.Linear(inputs, size)
        self.layers = nn.ModuleList(Layer(size, heads, length) for _ in range(layers))

    def spec(self) -> RowSpec:
        return {
            "memory": Field((len(self.layers), self.length, self.size), torch.float32),
            "age": Field((), torch.float32),
        }

    def forward(self, x: Tensor, is_first: Tensor, state: Batch) -> tuple[Tensor, Batch]:
        """x [T, B, F], is_first [T, B], state before row 0 (memory [B, layers, M, H], age [B]) -> features [T, B, H]
        and the state after row T-1."""
        rows, device = x.shape[0], x.device
        episode = is_first.long().cumsum(0)  # [T, B]; it is 0 while the episode of the memory before row 0 goes on
        now, then = torch.arange(rows, device=device), torch.arange(-self.length, rows, device=device)
        distance = now[:, None] - then[None]  # [T, M+T]
        near = (distance >= 0) & (distance <= self.length)
        remembered = then[: self.length, None] >= -state["age"]  # [M, B]
        past = remembered.T[:, None, :] & (episode.T == 0)[:, :, None]  # [B, T, M]
        present = episode.T[:, :, None] == episode.T[:, None, :]  # [B, T, T]
        seen = torch.cat([past, present], -1) & near
        hidden, kept = self.embed(x), []
        for index, layer in enumerate(self.layers):
            memory = state["memory"][:, index].detach().transpose(0, 1)  # [M, B, H]
            kept.append(torch.cat([memory, hidden.detach()])[-self.length :])
            hidden = layer(hidden, memory, distance, seen)
        since = (rows - torch.where(is_first, now[:, None], 0).max(0).values).float()
        age = torch.where(is_first.any(0), since, state["age"] + rows).clamp(max=self.length)
        return hidden, Batch(memory=torch.stack(kept).permute(2, 0, 1, 3), age=age)
