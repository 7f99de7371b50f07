"""Recommender systems that are shown a user's candidates and answer with a slate of them
(env=rlrun/InterestEvolution-v0 and others), rebuilt from the papers: Ie et al. 2019, arXiv:1905.12767, section 6, and
1909.04847 (RecSim).

An observation is a Dict: `user` [U], what is known of the user, where anything is; `candidates` [C, E], which change at
every step; and `click`, the place in the last slate of the document that the user chose, or the slate's size if they
chose none. An action is a slate, MultiDiscrete([C] * S). A document that stands in a slate twice counts where it stands
first. All random numbers follow from the seed, and no observation changes later (both fail in RecSim)."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium
import numpy as np

from rlrun.envs.batched import Alone, Batched, Consequence, choose, register


class Recommending(Batched):
    """A user who looks at a slate and chooses one document of it, or none."""

    user_size = 0  # numbers that are known of a user
    document_size: int  # numbers that are known of a document
    bounds: ClassVar[tuple[float, float]] = (0.0, 1.0)  # of the numbers of documents

    def __init__(
        self, num_envs: int = 1, num_candidates: int = 10, slate_size: int = 2, max_episode_steps: int | None = None
    ):
        if not 1 <= slate_size <= num_candidates:
            raise ValueError(
                f"slate_size={slate_size} must be at least 1, and at most the number of candidates, {num_candidates}"
            )
        self.num_candidates, self.slate_size = num_candidates, slate_size
        super().__init__(num_envs, max_episode_steps)

    def spaces(self) -> tuple[gymnasium.Space, gymnasium.Space]:
        spaces, (low, high) = gymnasium.spaces, self.bounds
        parts: dict[str, gymnasium.Space] = {}
        if self.user_size:
            parts["user"] = spaces.Box(-1.0, 1.0, (self.user_size,), np.float32)
        parts["candidates"] = spaces.Box(low, high, (self.num_candidates, self.document_size), np.float32)
        parts["click"] = spaces.Discrete(self.slate_size + 1)
        return spaces.Dict(parts), spaces.MultiDiscrete([self.num_candidates] * self.slate_size)

    def begin(self, new: np.ndarray) -> None:
        """Draws users and their candidates where new [B] is true."""
        if new.all():
            self.click = np.full(self.num_envs, self.slate_size)
            self.offer()
        self.click[new] = self.slate_size
        self.users(new)

    def users(self, new: np.ndarray) -> None:
        """Draws new users where new [B] is true."""
        raise NotImplementedError

    def offer(self) -> None:
        """Draws new candidates for everybody."""
        raise NotImplementedError

    def known(self) -> np.ndarray | None:
        """What is known of the users [B, user_size], as an array that does not change later."""
        return None

    def documents(self) -> np.ndarray:
        """What is known of the candidates [B, C, E], likewise."""
        raise NotImplementedError

    def observe(self) -> dict[str, np.ndarray]:
        user = self.known()
        rest = {"candidates": self.documents().astype(np.float32), "click": self.click.copy()}
        return rest if user is None else {"user": user.astype(np.float32), **rest}

    def weights(self, slate: np.ndarray) -> np.ndarray:
        """How attractive each place of the slates [B, S] is, and choosing nothing: [B, S + 1], relative to each
        other."""
        raise NotImplementedError

    def respond(self, chosen: np.ndarray, clicked: np.ndarray) -> Consequence:
        """What follows where clicked [B] users chose the candidate number chosen [B], and others chose nothing."""
        raise NotImplementedError

    def act(self, action: np.ndarray, live: np.ndarray) -> Consequence:
        weights = self.weights(action)
        for place in range(1, self.slate_size):
            weights[:, place] *= ~(action[:, :place] == action[:, place : place + 1]).any(1)
        self.click = choose(weights, self.rng)
        clicked = self.click < self.slate_size
        chosen = np.take_along_axis(action, np.minimum(self.click, self.slate_size - 1)[:, None], 1)[:, 0]
        outcome = self.respond(chosen, clicked)
        self.offer()
        info = outcome.info | {"clicked": clicked.astype(np.float64)}
        return outcome._replace(info=info)

    def of_slate(self, values: np.ndarray, slate: np.ndarray) -> np.ndarray:
        """The entries [B, S] of values [B, C] of the candidates in the slates [B, S]."""
        return np.take_along_axis(values, slate, 1)


class InterestEvolution(Recommending):
    """Users whose interest in topics follows what they watch, and whose time is up the sooner the worse it is.

    A document has one of 20 topics, of which 14 have a mean quality below 0; only the topic is seen. A user chooses
    with weights interest + 1, or nothing with weight 2. A chosen document is watched for 4 units of time, which are the
    reward, and costs 4 - (0.9 / 3.4) * 4 * quality units of a budget of 200; nothing chosen costs 0.5. Interest in the
    document's topic goes up or down, more often up the higher it is."""

    TOPICS = 20
    MEANS = np.concatenate([np.linspace(-3.0, 0.0, 14), np.linspace(0.0, 3.0, 6)])  # of topics' quality
    BUDGET, LENGTH, BONUS = 200.0, 4.0, 0.9 / 3.4
    document_size = TOPICS

    def __init__(self, observe_budget: bool = False, **kwargs: Any):
        """observe_budget: whether the share of the budget that is left is the last number of `user`. In the paper it is
        hidden."""
        self.observe_budget = observe_budget
        self.user_size = self.TOPICS + observe_budget
        super().__init__(**kwargs)

    def users(self, new: np.ndarray) -> None:
        fresh = self.rng.uniform(-1.0, 1.0, (self.num_envs, self.TOPICS))
        if new.all():
            self.interest, self.budget = fresh, np.full(self.num_envs, self.BUDGET)
            return
        self.interest[new], self.budget[new] = fresh[new], self.BUDGET

    def offer(self) -> None:
        self.topic = self.rng.integers(self.TOPICS, size=(self.num_envs, self.num_candidates))
        self.quality = self.rng.normal(self.MEANS[self.topic], 0.1)

    def known(self) -> np.ndarray:
        left = np.maximum(self.budget, 0.0)[:, None] / self.BUDGET
        return np.concatenate([self.interest, left], 1) if self.observe_budget else self.interest

    def documents(self) -> np.ndarray:
        return self.topic[:, :, None] == np.arange(self.TOPICS)

    def weights(self, slate: np.ndarray) -> np.ndarray:
        interest = np.take_along_axis(self.interest, self.of_slate(self.topic, slate), 1)
        return np.concatenate([interest + 1.0, np.full((self.num_envs, 1), 2.0)], 1)

    def respond(self, chosen: np.ndarray, clicked: np.ndarray) -> Consequence:
        rows = np.arange(self.num_envs)
        topic, quality = self.topic[rows, chosen], self.quality[rows, chosen]
        watched = np.where(clicked, np.minimum(self.budget, self.LENGTH), 0.0)
        self.budget = self.budget - np.where(clicked, watched * (1.0 - self.BONUS * quality), 0.5)
        now = self.interest[rows, topic]
        step = (0.3 - 0.3 * np.abs(now)) * (1.0 - now)
        up = self.rng.random(self.num_envs) < (now + 1.0) / 2.0
        changed = np.clip(now + np.where(up, step, -step), -1.0, 1.0)
        self.interest = self.interest.copy()
        self.interest[rows, topic] = np.where(clicked, changed, now)
        return Consequence(watched, self.budget <= 0.0, {"clicked_quality": np.where(clicked, quality, np.nan)})


class InterestExploration(Recommending):
    """Users of two hidden types and documents of two topics. Topic 0 is rare and good, topic 1 is common and poor; 70
    of 100 users like topic 0 and the others topic 1. A click pays 1.

    A user's affinity to a topic and a document's quality are lognormal, and choices are logistic in their sum, with 5
    for choosing nothing. A session is truncated after `length` steps (RecSim's never end). With observe_history, `user`
    holds, for each topic, how often it was shown and chosen in the session, in parts of all places shown, which is what
    RecSim's cluster statistics tell an agent; otherwise nothing is known of users."""

    TYPES = np.array([0.3, 0.7])
    AFFINITY = np.array([[0.1, 0.7], [0.7, 0.1]])  # means of logarithms, by type and topic
    TOPICS = np.array([0.2, 0.8])
    QUALITY = np.array([0.8, 0.2])  # means of logarithms, by topic
    DEVIATION, NOTHING = 0.1, 5.0
    document_size, bounds = 3, (0.0, 5.0)

    def __init__(self, observe_history: bool = True, length: int = 100, **kwargs: Any):
        self.observe_history, self.length = observe_history, length
        self.user_size = 4 if observe_history else 0
        super().__init__(**kwargs)

    def users(self, new: np.ndarray) -> None:
        kind = (self.rng.random(self.num_envs) >= self.TYPES[0]).astype(np.int64)
        fresh = self.rng.lognormal(self.AFFINITY[kind], self.DEVIATION)
        if new.all():
            self.affinity, self.history = fresh, np.zeros((self.num_envs, 4))
            return
        self.affinity[new], self.history[new] = fresh[new], 0.0

    def offer(self) -> None:
        shape = (self.num_envs, self.num_candidates)
        self.topic = (self.rng.random(shape) >= self.TOPICS[0]).astype(np.int64)
        self.quality = self.rng.lognormal(self.QUALITY[self.topic], self.DEVIATION)

    def known(self) -> np.ndarray | None:
        if not self.observe_history:
            return None
        shown = self.history[:, :2].sum(1, keepdims=True)
        return self.history / np.maximum(shown, 1.0)

    def documents(self) -> np.ndarray:
        return np.concatenate([self.topic[:, :, None] == np.arange(2), self.quality[:, :, None]], 2)

    def weights(self, slate: np.ndarray) -> np.ndarray:
        topic = self.of_slate(self.topic, slate)
        self.shown = topic
        score = np.take_along_axis(self.affinity, topic, 1) + self.of_slate(self.quality, slate)
        return np.exp(np.concatenate([score, np.full((self.num_envs, 1), self.NOTHING)], 1))

    def respond(self, chosen: np.ndarray, clicked: np.ndarray) -> Consequence:
        rows = np.arange(self.num_envs)
        self.history = self.history.copy()
        for topic in range(2):
            self.history[:, topic] += (self.shown == topic).sum(1)
            self.history[:, 2 + topic] += clicked & (self.topic[rows, chosen] == topic)
        return Consequence(clicked.astype(np.float64), np.zeros(self.num_envs, dtype=bool), {})


class LongTermSatisfaction(Recommending):
    """Users who always choose the first document of a slate. Clickbait engages now and lowers satisfaction, on which
    all later engagement depends; nothing is known of users. A session has 60 steps.

    clickbait c is uniform in [0, 1]. Engagement, the reward, is lognormal with mean (5 c + 4 (1 - c)) * satisfaction
    and deviation 1 of its logarithm; satisfaction is sigmoid(0.01 x), and x becomes 0.7 x - 2 (c - 0.5) + noise of
    0.05."""

    document_size, STEPS = 1, 60

    def users(self, new: np.ndarray) -> None:
        fresh = (self.rng.random(self.num_envs) - 0.5) / 0.3
        self.exposure: np.ndarray = fresh if new.all() else np.where(new, fresh, self.exposure)

    def offer(self) -> None:
        self.clickbait = self.rng.random((self.num_envs, self.num_candidates))

    def documents(self) -> np.ndarray:
        return self.clickbait[:, :, None]

    def weights(self, slate: np.ndarray) -> np.ndarray:
        return np.repeat((np.arange(self.slate_size + 1) == 0)[None], self.num_envs, 0).astype(np.float64)

    def respond(self, chosen: np.ndarray, clicked: np.ndarray) -> Consequence:
        clickbait = self.clickbait[np.arange(self.num_envs), chosen]
        satisfaction = 1.0 / (1.0 + np.exp(-0.01 * self.exposure))
        mean = (5.0 * clickbait + 4.0 * (1.0 - clickbait)) * satisfaction
        noise = self.rng.normal(0.0, 0.05, self.num_envs)
        self.exposure = 0.7 * self.exposure - 2.0 * (clickbait - 0.5) + noise
        engagement = np.exp(self.rng.normal(mean, 1.0))
        return Consequence(engagement, self.steps + 1 >= self.STEPS, {"clickbait": clickbait})


class OneInterestEvolution(Alone):
    kind = InterestEvolution


class OneInterestExploration(Alone):
    kind = InterestExploration


class OneLongTermSatisfaction(Alone):
    kind = LongTermSatisfaction


register(
    {
        "rlrun/InterestEvolution-v0": (InterestEvolution, OneInterestEvolution),
        "rlrun/InterestExploration-v0": (InterestExploration, OneInterestExploration),
        "rlrun/LongTermSatisfaction-v0": (LongTermSatisfaction, OneLongTermSatisfaction),
    }
)
