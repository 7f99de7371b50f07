"""The machines (nodes) of a run that Ray spreads over several of them, and the options of conf/resources/ray.yaml."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

from rlrun.core.conditions import AHEAD, TRAVELLING, OnlyFor, OnlyWith
from rlrun.core.errors import UserError
from rlrun.core.ranges import Count, NotNegative, Positive, Range

LEAST_STORE_MB = 75  # Ray refuses less


class Node(NamedTuple):
    """A machine that steps environments."""

    name: str  # as Ray calls it
    cores: int


@dataclass(frozen=True, kw_only=True)
class RayConfig:
    """The options of resources.ray, which conf/resources/ray.yaml explains."""

    address: str | None
    nodes: Literal["auto"] | Annotated[int, Count]
    samplers_per_node: Literal["auto"] | Annotated[int, Count]
    simulate: Annotated[int, NotNegative]
    lost: Literal["take_over", "leave_out", "end"]
    calls_ahead: Annotated[int, Count, OnlyFor(AHEAD)]
    compress: Annotated[bool, OnlyFor(TRAVELLING)]
    store_mb: Annotated[int, Range(LEAST_STORE_MB), OnlyWith("address", None)]
    join_sec: Annotated[float, Positive]
    allow_open: Annotated[bool, OnlyWith("address")]

    def __post_init__(self):
        if self.address is not None and self.simulate:
            raise ValueError("simulate starts nodes on this machine, and address joins a cluster: set one of them")
        if self.simulate and self.nodes not in ("auto", self.simulate):
            raise ValueError(f"simulate={self.simulate} starts as many nodes, and nodes={self.nodes} asks for others")


def simulated(cfg: RayConfig, cores: int) -> tuple[Node, ...]:
    """Returns the nodes that a run without an address starts on this machine: this machine, or parts of it."""
    if cfg.nodes not in ("auto", 1) and not cfg.simulate:
        raise UserError(
            f"resources.ray.nodes={cfg.nodes}: without resources.ray.address there is this machine alone; give the"
            f" address of a cluster, or simulate the nodes here with resources.ray.simulate={cfg.nodes}"
        )
    count = cfg.simulate or 1
    return tuple(Node(f"node-{i}", max(1, cores // count)) for i in range(count))


def shares(samplers: int, nodes: Sequence[Node]) -> tuple[int, ...]:
    """Returns how many of the samplers each node has, in proportion to its cores, but at least one if there are as
    many samplers as nodes."""
    total = sum(node.cores for node in nodes)
    made = [samplers * node.cores // total for node in nodes]
    rest = [(samplers * node.cores % total, -i) for i, node in enumerate(nodes)]
    for _, number in sorted(rest, reverse=True)[: samplers - sum(made)]:
        made[-number] += 1
    while 0 in made and max(made) > 1:
        most = made.index(max(made))
        made[most], made[made.index(0)] = made[most] - 1, 1
    return tuple(made)


def sampler_shares(samplers: int, nodes: Sequence[Node]) -> tuple[int, ...]:
    """Returns how many of the samplers each node has. The first node is the learner's, which keeps a core of it where
    there are fewer samplers than cores."""
    first, *others = nodes
    if samplers < sum(node.cores for node in nodes):
        first = first._replace(cores=first.cores - 1)
    return shares(samplers, [first, *others])
