"""Population: an algorithm's episodes with perturbed policies, which players play in parts (samplers/players.py)."""

from __future__ import annotations

from rlrun.core.evolution import Report
from rlrun.core.policy import Policy
from rlrun.core.restarts import Restarts
from rlrun.core.schedule import Clock
from rlrun.samplers.players import Crew, Order, Player, Players

WAIT_SEC = 0.5  # seconds that take() waits for a report


class Orders:
    """Divides the episodes of an update into orders."""

    def __init__(self, crew: Crew):
        self.crew, self.asked = crew, crew.asked

    def begin(self, clock: Clock) -> None:
        """Begins an update."""
        self.clock = clock
        self.handed = self.count = self.steps = 0

    @property
    def over(self) -> bool:
        """Whether no order is left to hand out."""
        return self.handed >= self.asked.pairs and self.steps >= self.asked.min_env_steps

    def next(self, players: int) -> Order | None:
        """Makes the next order: an equal part of half the remaining pairs, so that all players finish at about the same
        time, but at least as many pairs as fill the environments. None: everything was handed out.

        players: how many share the pairs; 0: one player plays them all in this process."""
        left = self.asked.pairs - self.handed
        if left <= 0 and self.steps >= self.asked.min_env_steps:
            return None
        count = max(1, self.crew.envs // 2)
        if left > 0:
            count = left if not players else min(left, max(count, -(-left // (2 * players))))
        chance = self.crew.seeds.numpy("evaluations", self.clock.updates, self.count)
        evaluations = int(chance.binomial(count, self.asked.eval_share))
        over = (2 * count + evaluations) % self.crew.envs  # episodes in a last round that leaves environments idle
        if players and 2 * count + evaluations > self.crew.envs and count > (over + 1) // 2:
            count -= (over + 1) // 2
        order = Order(self.count, self.handed, count, evaluations)
        self.handed += count
        self.count += 1
        return order


class PopulationBase:
    """What a Job expects of samplers. There is no state to save, because every update begins anew."""

    columns = 1
    queued = 0
    total_columns: int

    def begin(self, policy: Policy, clock: Clock) -> None:
        """Begins an update: publishes these weights to the players and hands out the first orders."""
        raise NotImplementedError

    @property
    def done(self) -> bool:
        """Whether everything that was asked for has been played."""
        raise NotImplementedError

    def take(self) -> list[Report]:
        """Returns the reports that arrive within a moment, perhaps none. Raises RunFailed when too much was lost."""
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

    def check(self) -> None:
        """Does nothing, because take() looks at the players."""

    def restart(self, generation: int) -> None:
        """Does nothing, because every order begins new episodes."""

    def save(self) -> dict:
        return {}

    def load(self, saved: dict) -> None:
        """Does nothing, because save() saves nothing."""


class Population(PopulationBase):
    """Players in their own processes, or one player in this process if crew.players is 0."""

    def __init__(self, crew: Crew, restarts: Restarts):
        """restarts: the budget of the run."""
        self.crew, self.orders = crew, Orders(crew)
        self.total_columns = crew.envs * max(1, crew.players)
        self.players = Players(crew, restarts) if crew.players else None
        self.alone: Player | None = None
        self.policy: Policy | None = None

    def begin(self, policy: Policy, clock: Clock) -> None:
        """Begins an update: publishes these weights to the players and hands out the first orders."""
        self.policy, self.clock = policy, clock
        self.orders.begin(clock)
        if self.players is not None:
            self.players.publish(policy, clock)
            self._hand(self.players)

    @property
    def done(self) -> bool:
        """Whether everything that was asked for has been played."""
        if self.players is not None:
            return self.orders.over and not self.players.playing
        return self.orders.over and (self.alone is None or self.alone.episodes is None)

    def _hand(self, players: Players) -> None:
        for number in players.idle:
            order = self.orders.next(len(players.members))
            if order is not None:
                players.give(number, order)

    def take(self) -> list[Report]:
        """Returns the reports that arrive within a moment, perhaps none. A player in this process plays on meanwhile.
        Raises RunFailed when a player was lost that must not be replaced."""
        if self.players is None:
            return self._take_alone()
        reports = self.players.receive(WAIT_SEC)
        self.orders.steps += sum(report.env_steps for report in reports)
        self._hand(self.players)
        return reports

    def _take_alone(self) -> list[Report]:
        if self.alone is None:
            self.alone = Player(self.crew, 0, self.policy)
        self.alone.policy = self.policy
        if self.alone.episodes is None:
            order = self.orders.next(0)
            if order is None:
                return []
            self.alone.begin(order, self.clock)
        # An order may last for minutes, in which the run must hear of a Ctrl-C and of its limits.
        report = self.alone.go_on(WAIT_SEC)
        if report is None:
            return []
        self.orders.steps += report.env_steps
        return [report]

    def close(self) -> None:
        if self.players is not None:
            self.players.close()
        if self.alone is not None:
            self.alone.close()
