"""A policy that plays against its own past selves."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from rlrun.core.batch import Batch, Field, RowSpec
from rlrun.core.moments import Moments
from rlrun.core.policy import Act, Mode, Pass, Policy
from rlrun.core.ranks import Ranks
from rlrun.core.schedule import Clock

SELF = -1  # in place of a snapshot's number: the newest weights play both sides
RECORDED: RowSpec = {
    "mine": Field((), torch.bool),  # whether the newest weights chose the action
    "against": Field((), torch.int64),  # the number of the snapshot that plays the other side in this episode, or SELF
    "score": Field((), torch.float32),  # the rewards of this agent in this episode before this row, unclipped
    # The episode's number, which no other episode of the environment's columns has: a random number of the columns
    # times FIRST_GAME, plus the number of their episodes before.
    "game": Field((), torch.int64),
}
GAME = ("game_seat", "game_against", "game_score", "game_number")  # parts of the state
FIRST_GAME = 2**32


class LeaguePolicy(Policy):
    """The newest weights, `main`, and a ring of snapshots of them.

    When an episode begins in training, one of the environment's agents is drawn at random to be main's, and a snapshot
    to play all others until it ends or the snapshot is dropped. Outside of training (place is None), main plays all
    agents."""

    own_state = ("snapshots", "present", "chance")
    present: Tensor
    chance: Tensor

    def __init__(self, main: Policy, agents: int, slots: int, self_share: float):
        """agents: N of an environment. slots: snapshots that are kept; number n is in slot n % slots. self_share: the
        share of episodes in which main plays all agents."""
        super().__init__()
        self.main, self.agents, self.self_share = main, agents, self_share
        self.snapshots = nn.ModuleList(copy.deepcopy(main) for _ in range(slots)).requires_grad_(False)
        # The number of the snapshot in each slot, and the probability with which an episode is against it.
        self.register_buffer("present", torch.full((slots,), SELF))
        self.register_buffer("chance", torch.zeros(slots))

    def weights_taken(self) -> None:
        """The snapshots of a run that has not begun are those of the weights with which it begins."""
        for number in self.present.tolist():
            if number != SELF:
                self.take_snapshot(number)

    def recordable(self, what: Pass) -> bool:
        return what == "learning" and self.main.recordable(what)

    def core_spec(self) -> RowSpec:
        return self.main.core_spec()

    def initial_state(self, columns: int, place: Tensor | None = None) -> Batch:
        state = dict(self.main.initial_state(columns, place).items())
        if place is not None:
            device = self.chance.device
            state["game_seat"] = torch.zeros(columns, dtype=torch.int64, device=device)
            state["game_against"] = torch.full((columns,), SELF, device=device)
            state["game_score"] = torch.zeros(columns, device=device)
            state["game_number"] = torch.full((columns,), -1, device=device)
        return Batch(state)

    def record_spec(self, names: tuple[str, ...]) -> RowSpec:
        own = {name: RECORDED[name] for name in names if name in RECORDED}
        return {**self.main.record_spec(tuple(name for name in names if name not in RECORDED)), **own}

    def act(
        self,
        obs: Batch,
        is_first: Tensor,
        state: Batch,
        clock: Clock,
        mode: Mode,
        rng: torch.Generator,
        record: tuple[str, ...] = (),
    ) -> Act:
        asked = tuple(name for name in record if name not in RECORDED)
        act = self.main.act(obs, is_first, state, clock, mode, rng, asked)
        if "game_seat" not in state:
            return act
        game = self._begin(is_first, state, rng)
        game["game_against"] = self.kept(game["game_against"])
        game["game_score"] = torch.where(is_first, 0.0, state["game_score"] + obs["prev_reward"][:, 0])  # type: ignore[operator, call-overload]
        agent = torch.arange(len(is_first), device=is_first.device) % self.agents
        mine = (agent == game["game_seat"]) | (game["game_against"] == SELF)
        after = {name: value for name, value in act.state.items() if name not in GAME}
        action: Tensor | Batch = act.action
        outputs = {name: act.record[name] for name in asked}
        for slot, number in enumerate(self.present.tolist()):
            index = (~mine & (game["game_against"] == number)).nonzero().squeeze(1)
            if not len(index):
                continue
            player = self.snapshots[slot]
            assert isinstance(player, Policy)
            # Nobody learns from these rows, but data that are recorded hold the probability of the action they hold.
            known = tuple(name for name in asked if name == "log_prob")
            other = player.act(obs[index], is_first[index], state[index], clock, mode, rng, known)
            action = _replaced(action, index, other.action)
            outputs |= {name: _replaced(outputs[name], index, other.record[name]) for name in known}
            after = {name: _replaced(value, index, other.state[name]) for name, value in after.items()}
        told = {"mine": mine, "against": game["game_against"], "score": game["game_score"]}
        told["game"] = game["game_number"]
        told |= outputs  # type: ignore[arg-type]
        return Act(action, Batch(after | game), Batch({name: told[name] for name in record}))  # type: ignore[arg-type]

    def kept(self, against: Tensor) -> Tensor:
        """The numbers of opponents [B]. Where a snapshot is no longer kept, the oldest one that is takes its place: it
        plays the rest of the game, and the result counts for it."""
        numbers = [number for number in self.present.tolist() if number != SELF]
        return torch.where(against == SELF, SELF, against.clamp(min=min(numbers, default=SELF)))

    def _begin(self, is_first: Tensor, state: Batch, rng: torch.Generator) -> dict[str, Tensor]:
        """Draws who plays whom where an episode begins. All agents of an environment have equal numbers."""
        envs = len(is_first) // self.agents
        begins = is_first.view(envs, self.agents).all(1)
        seat = torch.randint(self.agents, (envs,), generator=rng, device=is_first.device)
        alone = torch.rand(envs, generator=rng, device=is_first.device) < self.self_share
        slot = torch.multinomial(self.chance + 1e-12, envs, replacement=True, generator=rng)
        against = self.present[slot].masked_fill(alone, SELF)
        first = torch.randint(2**31, (envs,), generator=rng, device=is_first.device) * FIRST_GAME
        last = state["game_number"].view(envs, self.agents)[:, 0]  # type: ignore[union-attr]
        number = torch.where(last < 0, first, last + 1)
        drawn = {"game_seat": seat, "game_against": against, "game_number": number}
        again = begins.repeat_interleave(self.agents)
        return {
            name: torch.where(again, value.repeat_interleave(self.agents), state[name])  # type: ignore[arg-type]
            for name, value in drawn.items()
        }

    def greedy(self, obs: Batch, is_first: Tensor, state: Batch) -> tuple[Tensor | Batch, Batch]:
        return self.main.greedy(obs, is_first, state)

    def log_prob(self, batch: Batch, mode: Mode, clock: Clock) -> Tensor:
        """That of the newest weights, which play all agents outside of training."""
        return self.main.log_prob(batch, mode, clock)

    def log_probs(self, batch: Batch, mode: Mode, clock: Clock) -> Tensor:
        return self.main.log_probs(batch, mode, clock)

    def take_snapshot(self, number: int) -> None:
        """Keeps main's weights as snapshot `number`, in the place of an older one."""
        slot = number % len(self.snapshots)
        self.snapshots[slot].load_state_dict(self.main.state_dict())
        self.present[slot] = number

    def moments(self, batch: Batch) -> list[Moments] | None:
        return self.main.moments(batch)

    def absorb(self, moments: list[list[Moments]], ranks: Ranks) -> None:  # type: ignore[override]
        self.main.absorb(moments, ranks)


def _replaced(values: Tensor | Batch, index: Tensor, new: Tensor | Batch) -> Tensor | Batch:
    """values [B, ...] with those of the rows `index` [n] replaced by new [n, ...]."""
    if isinstance(values, Batch):
        assert isinstance(new, Batch)
        return Batch({name: _replaced(part, index, new[name]) for name, part in values.items()})
    assert isinstance(new, Tensor)
    return values.index_copy(0, index, new)
