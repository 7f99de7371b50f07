"""Games of a trained policy against opponents, and of several players against each other."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rlrun.core.errors import UserError
from rlrun.core.plugins import is_path
from rlrun.core.policy import Policy
from rlrun.core.schedule import Clock
from rlrun.core.specs import EnvSpec
from rlrun.policies.exploration import Exploration, Uniform, load_exploration
from rlrun.policies.league import SELF, LeaguePolicy
from rlrun.policies.several import SeveralPolicies
from rlrun.runtime.trained import Trained, load
from rlrun.samplers.evaluator import FullGame

SNAPSHOTS = "snapshots"  # the word for all snapshots that a run of self-play holds


class Competitor(NamedTuple):
    """One who can play every agent of a game."""

    name: str
    seats: tuple[Policy | Exploration, ...]  # who chooses the actions of each agent
    trained: Trained | None = None  # the run; None for players that follow a rule
    clocks: tuple[Clock, ...] = ()  # by which each agent's policy explores; (): as at the end of its schedules


class Match(NamedTuple):
    """Games in which one agent is the run's."""

    policy: Policy
    agent: int | None  # the number of that agent; None: the run plays all
    episodes: int


class Seating(NamedTuple):
    """Games of a pair in which one of both plays one agent, and the other all others."""

    policy: Policy
    agent: int
    episodes: int
    swapped: bool  # whether the second of the pair plays the one agent


def check_plays_agents(trained: Trained, what: str) -> tuple[str, ...]:
    """The names of the agents that a run's policy can play one by one. Raises UserError, which begins with `what`, if
    it cannot."""
    spec = trained.spec
    if spec.agents is None or spec.joint or len(spec.agents.names) < 2:
        raise UserError(
            f"{what} for runs whose algorithm plays one of several agents; {trained.config.algo.name} on"
            f" {spec.name} does not"
        )
    return spec.agents.names


def check_same_game(spec: EnvSpec, theirs: Trained, word: str) -> None:
    """Raises UserError if a run cannot play the agents of this environment."""
    other = theirs.spec
    if other.name != spec.name or other.joint:
        how = f"{theirs.config.algo.name} on {other.name}" if other.joint else other.name
        raise UserError(f"{word} was trained on {how}, and cannot play {spec.name}")
    names = [", ".join(one.agents.names) if one.agents is not None else "" for one in (other, spec)]
    for what, (had, has) in {
        "agents": names,
        "observation": (other.observation, spec.observation),
        "action": (other.action, spec.action),
    }.items():
        if had != has:
            raise UserError(f"{word} was trained on {spec.name} with the {what} {had}, not {has}")


def of_run(trained: Trained, name: str) -> Competitor:
    """A run as a player. Its policy for an agent is one of several, or the one for all."""
    assert trained.spec.agents is not None
    policy, count = trained.policy, len(trained.spec.agents.names)
    if not isinstance(policy, SeveralPolicies):
        return Competitor(name, (policy,) * count, trained, (trained.clock,) * count)
    of_agent = {agent: part for part, members in policy.members.items() for agent in members}
    seats = (
        policy.scripted[of_agent[agent]] if of_agent[agent] in policy.scripted else policy.policy(of_agent[agent])
        for agent in range(count)
    )
    clocks = tuple(policy.when(of_agent[agent], trained.clock) for agent in range(count))
    return Competitor(name, tuple(seats), trained, clocks)


def snapshots_of(trained: Trained, name: str, what: str) -> list[Competitor]:
    """The snapshots that a run of self-play holds, the oldest one first. name: what stands before its number. Raises
    UserError, which begins with `what`, for other runs."""
    policy = trained.policy
    if not isinstance(policy, LeaguePolicy):
        raise UserError(
            f"{what} for runs of algo=self_play, which hold snapshots; {trained.run_dir} is one of"
            f" algo={trained.config.algo.name}"
        )
    held = sorted((number, slot) for slot, number in enumerate(policy.present.tolist()) if number != SELF)
    made = []
    for number, slot in held:
        snapshot = policy.snapshots[slot]
        assert isinstance(snapshot, Policy)
        made.append(Competitor(f"{name} {number}", (snapshot,) * policy.agents))
    return made


def by_rule(word: str, spec: EnvSpec, option: str) -> Competitor:
    """The player that `random` or package.module:Name names. Raises UserError if there is none or it cannot be made."""
    assert spec.agents is not None
    chooser = Uniform(spec) if word == "random" else load_exploration(word, spec, {}, option)
    return Competitor(word, (chooser,) * len(spec.agents.names))


def pair(one: Competitor, other: Competitor, agent: int) -> SeveralPolicies:
    """A policy for all agents, in which `one` plays this agent and `other` plays all others.

    Each player explores as at its own checkpoint."""
    members: dict[str, list[int]] = {}
    policies: dict[str, Policy] = {}
    scripted: dict[str, Exploration] = {}
    clocks: dict[str, Clock] = {}
    for number in range(len(one.seats)):
        side, player = ("one", one) if number == agent else ("other", other)
        chooser = player.seats[number]
        # Agents for which the same policy chooses act in one pass.
        name = f"{side}_{player.seats.index(chooser)}"
        members.setdefault(name, []).append(number)
        if isinstance(chooser, Policy):
            policies[name] = chooser
            if player.clocks:
                clocks[name] = player.clocks[number]
        else:
            scripted[name] = chooser
    return SeveralPolicies(len(one.seats), members, policies, scripted, {}, clocks)


def opponents(trained: Trained, word: str, trust: bool) -> list[Competitor]:
    """The players that `opponent=` names: one, or all snapshots of this run. word: random, snapshots, a run directory,
    or package.module:Name. Raises UserError if there is no such player or it cannot play the run's game."""
    check_plays_agents(trained, "opponent is")
    if word == SNAPSHOTS:
        return snapshots_of(trained, "snapshot", "opponent=snapshots is")
    if word == "random" or is_path(word):
        return [by_rule(word, trained.spec, "opponent")]
    theirs = load(word, trust=trust)
    check_same_game(trained.spec, theirs, f"opponent={word}")
    return [of_run(theirs, word)]


def matches(trained: Trained, opponent: Competitor | None, episodes: int) -> list[Match]:
    """The games of a run against an opponent, as every agent in turn; None: the run plays all agents. Raises UserError
    if there are fewer episodes than agents."""
    if opponent is None:
        return [Match(trained.policy, None, episodes)]
    own, count = of_run(trained, str(trained.run_dir)), len(opponent.seats)
    if episodes < count:
        raise UserError(f"an opponent needs at least one episode for each agent: set episodes={count} or more")
    return [Match(pair(own, opponent, agent), agent, share) for agent, share in enumerate(_shares(episodes, count))]


def _shares(episodes: int, count: int) -> list[int]:
    return [episodes // count + (number < episodes % count) for number in range(count)]


def players(words: Sequence[str], checkpoint: str, trust: bool) -> tuple[Trained, list[Competitor]]:
    """The players that these words name, and the run whose environment they play, which is the first one.

    A word is a run directory, `random`, package.module:Name, or `snapshots`: all snapshots of all runs of self-play
    among the words. Raises UserError if a word names nobody, if there are less than two players or if they cannot play
    the same game."""
    places = [str(Path(word)) for word in words]
    for word in words:
        if places.count(str(Path(word))) > 1:
            raise UserError(f"{word} is named twice; a player does not play against itself")
    runs = {
        word: load(word, checkpoint, trust)
        for word in words
        if word not in ("random", SNAPSHOTS) and (not is_path(word) or Path(word).is_dir())
    }
    if not runs:
        raise UserError("rlrun evaluate needs a run directory among the players; the first one's environment is played")
    first = next(iter(runs.values()))
    check_plays_agents(first, "games between several players are")
    for word, trained in runs.items():
        check_same_game(first.spec, trained, word)
    leagues = {word: trained for word, trained in runs.items() if isinstance(trained.policy, LeaguePolicy)}
    made: list[Competitor] = []
    for word in words:
        if word in runs:
            made.append(of_run(runs[word], word))
        elif word != SNAPSHOTS:
            made.append(by_rule(word, first.spec, "player"))
        elif not leagues:
            raise UserError("snapshots are those of runs of algo=self_play, and there is no such run among the players")
        for place, trained in leagues.items() if word == SNAPSHOTS else ():
            made += snapshots_of(trained, f"{place} snapshot", "snapshots are")
    if len(made) < 2:
        raise UserError("games between players need at least two of them")
    return first, made


def inputs_of(spec: EnvSpec, others: Sequence[Competitor]) -> EnvSpec:
    """The environment with everything in its rows that any of these players' policies sees."""
    more = [player.trained.spec.obs for player in others if player.trained is not None]
    return replace(spec, obs={name: space for obs in (*more, spec.obs) for name, space in obs.items()})


def seatings(one: Competitor, other: Competitor, episodes: int) -> list[Seating]:
    """The games of a pair: each plays every agent, and in a game of more than two agents alone against copies of the
    other one. Raises UserError if there are fewer episodes than that."""
    count = len(one.seats)
    sides = [(one, other, False)] if count == 2 else [(one, other, False), (other, one, True)]
    if episodes < count * len(sides):
        raise UserError(
            "both players of a pair play every agent in at least one episode: set"
            f" episodes={count * len(sides)} or more"
        )
    shares = iter(_shares(episodes, count * len(sides)))
    return [
        Seating(pair(alone, rest, agent), agent, next(shares), swapped)
        for alone, rest, swapped in sides
        for agent in range(count)
    ]


def outcomes(games: Sequence[FullGame], agent: int) -> np.ndarray:
    """How many games the player of this agent has won, drawn and lost [3].

    A game is won by the side with the higher return, which is the mean over its agents. Where one side wins what the
    other loses, that is the side whose return is above 0, as in the training of self-play."""
    made = np.zeros(3)
    for game in games:
        rest = np.delete(game.each, agent).mean()
        close = 1e-6 * (1.0 + np.abs(game.each).max())  # sums of rewards are rounded
        gap = game.each[agent] - rest
        made[1 if abs(gap) <= close else 0 if gap > 0 else 2] += 1
    return made


class Results(NamedTuple):
    """What P players reached against each other."""

    counts: np.ndarray  # [P, P, 3]: games that each row's player won, drew and lost against each column's
    repeated: int  # pairs that played several games in the same seats, all with the same returns and lengths

    @property
    def games(self) -> np.ndarray:
        """[P, P]."""
        return self.counts.sum(-1)

    @property
    def points(self) -> np.ndarray:
        """What each row's player took from each column's [P, P]: 1 for a win and 0.5 for a draw."""
        return self.counts[..., 0] + 0.5 * self.counts[..., 1]


def alike(games: Sequence[FullGame]) -> bool:
    """Whether several games have the same returns and lengths, as if one had been repeated."""
    return len(games) > 1 and len({(game.length, *game.each.tolist()) for game in games}) == 1


def play_pairs(
    these: Sequence[Competitor], episodes: int, play: Callable[[Policy, int, int], list[FullGame]]
) -> Results:
    """Lets every pair of players play `episodes` games. play(policy, episodes, round) plays games with seeds that no
    other round has. Raises UserError as seatings() does."""
    count = len(these)
    counts = np.zeros((count, count, 3))
    repeated = 0
    rounds = itertools.count()
    for i, j in itertools.combinations(range(count), 2):
        same = []
        for seating in seatings(these[i], these[j], episodes):
            games = play(seating.policy, seating.episodes, next(rounds))
            found = outcomes(games, seating.agent)
            found = found[::-1] if seating.swapped else found
            counts[i, j] += found
            counts[j, i] += found[::-1]
            same.append(alike(games))
        repeated += all(same)
    return Results(counts, repeated)
