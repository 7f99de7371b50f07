"""Contextual bandits with known regret (env=rlrun/WheelBandit-v0 and others): RLlib's, and the wheel of Riquelme et al.
2018, arXiv:1802.09127.

A step shows a context and pays for the arm that is taken; nothing else depends on it. info says what the step cost:
`regret`, the mean reward of the best arm less that of the arm taken, without noise, and `regret_uniform`, the same for
an arm drawn uniformly. An episode has `length` steps, as many as one in RLlib, after which it is truncated; more steps
only save the rows that begin episodes."""

from __future__ import annotations

import gymnasium
import numpy as np

from rlrun.envs.batched import Alone, Batched, Consequence, register


class Bandit(Batched):
    """Pays the mean reward of the arm taken, plus normal noise. A subclass defines spaces(), observe(), context() and
    means()."""

    def __init__(self, num_envs: int = 1, length: int = 1, noise: float = 0.0, max_episode_steps: int | None = None):
        if length < 1 or noise < 0:
            raise ValueError(f"length={length} must be at least 1, and noise={noise} not negative")
        self.length, self.noise = length, noise
        super().__init__(num_envs, max_episode_steps)

    def context(self) -> None:
        """Draws new contexts for everybody."""
        raise NotImplementedError

    def means(self) -> np.ndarray:
        """The mean rewards of all arms [B, A] in the contexts of now."""
        raise NotImplementedError

    def begin(self, new: np.ndarray) -> None:
        if new.all():
            self.context()

    def act(self, action: np.ndarray, live: np.ndarray) -> Consequence:
        means = self.means()
        paid = np.take_along_axis(means, action.reshape(-1, 1), 1)[:, 0]
        best = means.max(1)
        info = {"regret": best - paid, "regret_uniform": best - means.mean(1)}
        noise = self.rng.normal(0.0, self.noise, self.num_envs) if self.noise else 0.0
        self.context()
        return Consequence(paid + noise, np.zeros(self.num_envs, dtype=bool), info)


class SimpleBandit(Bandit):
    """RLlib's SimpleContextualBandit: the context is (c, -c) with c = 1 or -1, and the arms pay 10 c, 0 and -10 c."""

    def spaces(self) -> tuple[gymnasium.Space, gymnasium.Space]:
        return gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32), gymnasium.spaces.Discrete(3)

    def context(self) -> None:
        self.sign = self.rng.choice([-1.0, 1.0], self.num_envs)

    def observe(self) -> np.ndarray:
        return np.stack([self.sign, -self.sign], 1).astype(np.float32)

    def means(self) -> np.ndarray:
        return self.sign[:, None] * np.array([10.0, 0.0, -10.0])


class LinearBandit(Bandit):
    """RLlib's LinearDiscreteEnv: every arm pays the inner product of the context with a unit vector of its own. `world`
    is the seed of these vectors, so that all processes, evaluations and resumed runs have the same arms. Contexts are
    normal with deviation 1/3."""

    def __init__(
        self,
        num_envs: int = 1,
        feature_dim: int = 8,
        num_arms: int = 4,
        length: int = 1,
        noise: float = 0.01,
        world: int = 0,
        max_episode_steps: int | None = None,
    ):
        if feature_dim < 1 or num_arms < 1:
            raise ValueError(f"feature_dim={feature_dim} and num_arms={num_arms} must be at least 1")
        self.feature_dim, self.num_arms = feature_dim, num_arms
        drawn = np.random.default_rng(world).uniform(-1.0, 1.0, (num_arms, feature_dim))
        self.weights = unit_vectors(drawn)
        super().__init__(num_envs, length, noise, max_episode_steps)

    def spaces(self) -> tuple[gymnasium.Space, gymnasium.Space]:
        spaces = gymnasium.spaces
        return spaces.Box(-np.inf, np.inf, (self.feature_dim,), np.float32), spaces.Discrete(self.num_arms)

    def context(self) -> None:
        self.seen = self.rng.normal(0.0, 1.0 / 3.0, (self.num_envs, self.feature_dim)).astype(np.float32)

    def observe(self) -> np.ndarray:
        return self.seen

    def means(self) -> np.ndarray:
        return self.seen @ self.weights.T


class WheelBandit(Bandit):
    """The wheel: a context is a point of the unit disc. Arm 0 always pays 1.2; the others pay 1, but 50 beyond the
    radius delta in a quadrant of their own, so that the larger delta is, the rarer is what must be found."""

    SAFE, PLAIN, GOOD = 1.2, 1.0, 50.0

    def __init__(
        self,
        num_envs: int = 1,
        delta: float = 0.5,
        length: int = 1,
        noise: float = 0.01,
        max_episode_steps: int | None = None,
    ):
        if not 0.0 <= delta <= 1.0:
            raise ValueError(f"delta={delta} is a radius in the unit disc, from 0 to 1")
        self.delta = delta
        super().__init__(num_envs, length, noise, max_episode_steps)

    def spaces(self) -> tuple[gymnasium.Space, gymnasium.Space]:
        return gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32), gymnasium.spaces.Discrete(5)

    def context(self) -> None:
        radius, angle = np.sqrt(self.rng.random(self.num_envs)), self.rng.uniform(0.0, 2.0 * np.pi, self.num_envs)
        self.seen = np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1).astype(np.float32)

    def observe(self) -> np.ndarray:
        return self.seen

    def means(self) -> np.ndarray:
        means = np.full((self.num_envs, 5), self.PLAIN)
        means[:, 0] = self.SAFE
        right, up = (self.seen > 0).T
        own = np.where(right, np.where(up, 1, 4), np.where(up, 2, 3))  # counted against the clock, as in RLlib
        far = np.linalg.norm(self.seen, axis=1) > self.delta
        means[far, own[far]] = self.GOOD
        return means


class ParametricItems(Bandit):
    """RLlib's ParametricItemRecoEnv: every step shows `num_candidates` of `num_items` items, whose rewards are inner
    products with the taste of one of `num_users` users. The agent sees the items' vectors [C, E] as `items` and who the
    user is as `user`, but no taste. Items and tastes are unit vectors, of which `world` is the seed, so that all
    processes, evaluations and resumed runs have the same."""

    def __init__(
        self,
        num_envs: int = 1,
        num_items: int = 100,
        num_candidates: int = 25,
        num_users: int = 1,
        feature_dim: int = 16,
        length: int = 1,
        noise: float = 0.1,
        world: int = 0,
        max_episode_steps: int | None = None,
    ):
        if not 1 <= num_candidates <= num_items or num_users < 1 or feature_dim < 1:
            raise ValueError(
                f"num_candidates={num_candidates} must be at least 1 and at most num_items={num_items}, and"
                f" num_users={num_users} and feature_dim={feature_dim} at least 1"
            )
        self.num_items, self.num_candidates, self.num_users = num_items, num_candidates, num_users
        self.feature_dim = feature_dim
        rng = np.random.default_rng(world)
        self.items = unit_vectors(rng.normal(size=(num_items, feature_dim))).astype(np.float32)
        self.tastes = unit_vectors(rng.normal(size=(num_users, feature_dim)))
        super().__init__(num_envs, length, noise, max_episode_steps)

    def spaces(self) -> tuple[gymnasium.Space, gymnasium.Space]:
        spaces = gymnasium.spaces
        items = spaces.Box(-1.0, 1.0, (self.num_candidates, self.feature_dim), np.float32)
        shown = spaces.Dict({"items": items, "user": spaces.Discrete(self.num_users)})
        return shown, spaces.Discrete(self.num_candidates)

    def context(self) -> None:
        order = self.rng.random((self.num_envs, self.num_items)).argsort(1)[:, : self.num_candidates]
        self.seen, self.user = self.items[order], self.rng.integers(self.num_users, size=self.num_envs)

    def observe(self) -> dict[str, np.ndarray]:
        return {"items": self.seen, "user": self.user}

    def means(self) -> np.ndarray:
        return (self.seen * self.tastes[self.user][:, None]).sum(-1)


def unit_vectors(x: np.ndarray) -> np.ndarray:
    """The rows of x, each divided by its length."""
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


class OneSimpleBandit(Alone):
    kind = SimpleBandit


class OneLinearBandit(Alone):
    kind = LinearBandit


class OneWheelBandit(Alone):
    kind = WheelBandit


class OneParametricItems(Alone):
    kind = ParametricItems


register(
    {
        "rlrun/SimpleBandit-v0": (SimpleBandit, OneSimpleBandit),
        "rlrun/LinearBandit-v0": (LinearBandit, OneLinearBandit),
        "rlrun/WheelBandit-v0": (WheelBandit, OneWheelBandit),
        "rlrun/ParametricItems-v0": (ParametricItems, OneParametricItems),
    }
)
