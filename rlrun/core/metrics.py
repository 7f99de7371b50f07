"""Means of metrics between two log rows, and episode statistics."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence

from torch import Tensor


class Means:
    """Running means of metrics. Tensors stay on their device until result()."""

    def __init__(self, many: bool = False) -> None:
        """many: whether millions of values may come, so that tensors are summed in float64. A sum in float32 no longer
        grows from 2^24 values on."""
        self.many = many
        self.sums: dict[str, Tensor | float] = {}
        self.counts: dict[str, int] = {}

    def add(self, metrics: Mapping[str, Tensor | float]) -> None:
        for name, value in metrics.items():
            value = value.detach() if isinstance(value, Tensor) else float(value)
            if name in self.sums:
                value = self.sums[name] + value  # in float64 if the sum is
            elif self.many and isinstance(value, Tensor):
                value = value.double()
            self.sums[name] = value
            self.counts[name] = self.counts.get(name, 0) + 1

    def tensors(self) -> dict[str, Tensor | float]:
        """The means so far, still on their device."""
        return {name: total / self.counts[name] for name, total in self.sums.items()}

    def result(self) -> dict[str, float]:
        """The means since the last call. It then starts again from nothing."""
        means = {name: float(mean) for name, mean in self.tensors().items()}
        self.sums, self.counts = {}, {}
        return means


class Sums:
    """Totals of detached metrics over the parts of one update."""

    def __init__(self) -> None:
        self.totals: dict[str, Tensor] = {}

    def add(self, metrics: dict[str, Tensor]) -> None:
        for name, value in metrics.items():
            value = value.detach()
            self.totals[name] = self.totals[name] + value if name in self.totals else value


def spread(name: str, values: Sequence[float]) -> dict[str, float]:
    """<name>_mean, _std (of a population), _min and _max of at least one number."""
    mean = sum(values) / len(values)
    return {
        f"{name}_mean": mean,
        f"{name}_std": math.sqrt(sum((value - mean) ** 2 for value in values) / len(values)),
        f"{name}_min": min(values),
        f"{name}_max": max(values),
    }


# Info entries of bandits whose sums over the whole run are logged: what a step cost against the best arm, and what an
# arm drawn uniformly would have cost.
REGRET, UNIFORM_REGRET = "regret", "regret_uniform"


class EpisodeStatistics:
    """Statistics of the last `window` finished episodes, and the regret of all."""

    def __init__(self, window: int = 100):
        self.returns: deque[float] = deque(maxlen=window)
        self.lengths: deque[int] = deque(maxlen=window)
        self.infos: deque[Mapping[str, float]] = deque(maxlen=window)
        self.count = 0
        self.regrets: dict[str, float] = {}  # sums over all finished episodes
        self.known_mean: float | None = None  # of these returns, once it was asked for

    def add(self, ret: float, length: int, info: Mapping[str, float]) -> None:
        """Adds one episode. `info` holds the numeric entries of the environment's info."""
        self.returns.append(ret)
        self.known_mean = None
        self.lengths.append(length)
        self.infos.append(info)
        self.count += 1
        for name in (REGRET, UNIFORM_REGRET):
            if name in info:
                self.regrets[name] = self.regrets.get(name, 0.0) + info[name] * length

    @property
    def full(self) -> bool:
        return len(self.returns) == self.returns.maxlen

    @property
    def mean(self) -> float | None:
        if self.known_mean is None and self.returns:  # every tick asks several times, and the window may be long
            self.known_mean = sum(self.returns) / len(self.returns)
        return self.known_mean

    def metrics(self) -> dict[str, float | int | None]:
        if not self.returns:
            return {**dict.fromkeys(spread("return", [0.0])), "episode_length_mean": None, "episodes": self.count}
        lengths = spread("episode_length", self.lengths)
        del lengths["episode_length_std"]
        return {
            **spread("return", self.returns),
            **lengths,
            "episodes": self.count,
            **self._info_means(),
            **self._regrets(),
        }

    def _regrets(self) -> dict[str, float]:
        """regret and regret_uniform, the sums so far, and regret_share, the first as a share of the second."""
        uniform = self.regrets.get(UNIFORM_REGRET, 0.0)
        share = {"regret_share": self.regrets[REGRET] / uniform} if uniform > 0 and REGRET in self.regrets else {}
        return self.regrets | share

    def _info_means(self) -> dict[str, float]:
        """success_rate, info/<name>, custom/<name> and return/<agent or group>: means over those of the last episodes
        that have the entry. Of custom numbers, which EnvCallbacks return, <name>_min and <name>_max too."""
        found: dict[str, list[float]] = {}
        for info in self.infos:
            for name, value in info.items():
                custom = name.startswith("custom/")
                own = custom or name.startswith("return/")
                whole = "success_rate" if name == "is_success" else name if own else f"info/{name}"
                found.setdefault(whole, []).append(value)
        means = {name: sum(values) / len(values) for name, values in sorted(found.items())}
        for name, values in found.items():
            if name.startswith("custom/"):
                means |= {f"{name}_min": min(values), f"{name}_max": max(values)}
        return means

    def state(self) -> dict:
        return {
            "returns": list(self.returns),
            "lengths": list(self.lengths),
            "infos": [dict(info) for info in self.infos],
            "count": self.count,
            "regrets": dict(self.regrets),
        }

    def load(self, state: dict) -> None:
        self.returns.extend(state["returns"])
        self.known_mean = None
        self.lengths.extend(state["lengths"])
        self.infos.extend(state.get("infos", []))
        self.count = state["count"]
        self.regrets = dict(state.get("regrets", {}))


def finite(metrics: dict[str, float | int | None]) -> dict[str, float | int | None]:
    """Replaces NaN and infinity by None, since JSON has neither."""
    return {k: (None if isinstance(v, float) and not math.isfinite(v) else v) for k, v in metrics.items()}
