"""rlrun evaluate RUN_DIR [episodes=10 checkpoint=last|best|<env steps> greedy=true seed=0 opponent=PLAYER env=NAME]
               [max_episode_steps=N] [--json]
rlrun evaluate RUN_DIR PLAYER [PLAYER ...] [episodes=10 checkpoint=last|best|<env steps> greedy=true seed=0]
               [max_episode_steps=N] [--json]

Plays full games with seeds that training never used. A lost life does not end a game, and rewards are not clipped.
Where there are several agents, the mean return of each is shown too. A run that learnt from data alone is played where
this machine has an environment with the name and the spaces of that of the data; env=NAME names another one.

A policy may play a game for ever where nothing limits its length. max_episode_steps=N cuts games after N steps. The
result says how many were cut, because their returns are not those of full games.

With opponent, the run plays every agent in turn, in as many episodes each, against a player who plays all others:
random, the directory of another run, or package.module:Name, a subclass of rlrun.Exploration. Returns are then those of
the run's agent. opponent=snapshots lets a run of algo=self_play play so many episodes against each snapshot that its
checkpoint holds.

A run of algo=maml plays `episodes` new tasks, each as often as in training, before any adaptation and after every inner
step, with drawn actions (greedy does not matter). It shows the mean return over tasks, and the mean gain of a task.

With several players, every pair plays so many episodes, in which both play every agent equally often, and a table shows
the points that each row took from each column in a game: 1 for a win, 0.5 for a draw. Beside it are the Elo ratings
that fit all results best (Bradley-Terry, with one more drawn game in every pair, and a mean of 1200) and their 95%
intervals. A player is a run directory, random, package.module:Name, or snapshots: all snapshots of the runs of
algo=self_play among the players. The environment, with its options, is that of the first run, and `checkpoint` is that
of all runs. This is part of evaluate, because rlrun compare reads what runs have logged and plays nothing.

A game is won by the side with the higher return, which is the mean over its agents. Greedy players repeat the same game
where nothing in the environment is random; greedy=false draws their actions."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rlrun.cli import run_dir_argument, take_trust
from rlrun.config.types import parse_assignments, typed
from rlrun.core.errors import UserError
from rlrun.core.ranges import Count, NotNegative

if TYPE_CHECKING:
    from rlrun.runtime.opponents import Competitor
    from rlrun.runtime.trained import Trained
    from rlrun.samplers.evaluator import FullGame


@dataclass(frozen=True, kw_only=True)
class PlayOptions:
    """The checkpoint, and the games that it plays. `watch` takes these options too."""

    episodes: Annotated[int, Count]
    checkpoint: str | int
    greedy: bool
    seed: Annotated[int, NotNegative]
    env: str | None  # in which a run plays that learnt from data alone; None: the one of the data


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions(PlayOptions):
    opponent: str | None
    max_episode_steps: Annotated[int, Count] | None  # after which games are cut; None: the environment's limit holds


DEFAULTS = {"checkpoint": "last", "greedy": True, "seed": 0, "env": None}
OPTIONS = ("episodes", "checkpoint", "greedy", "seed", "env", "opponent", "max_episode_steps")
OUTCOMES = ("won", "drawn", "lost")


def main(words: list[str]) -> int:
    if any(word in ("-h", "--help") for word in words):
        print(__doc__)
        return 0
    trusted, words = take_trust(words)
    as_json = "--json" in words
    words = [word for word in words if word != "--json"]
    flag = next((word for word in words if word.startswith("--")), None)
    if flag is not None:
        option = flag.lstrip("-").partition("=")[0]
        how = f": options are key=value, as in {option}=..." if option in OPTIONS else ""
        raise UserError(f"{flag} is not a flag of evaluate{how}; rlrun evaluate --help lists them")
    names = [word for word in words if ("=" not in word or os.path.isdir(word)) and not word.startswith("-")]
    rest = words
    if len(names) > 1:
        for name in names:
            check_player(name)
        rest = [word for word in words if word not in names]
    else:
        path, rest = run_dir_argument(words, "evaluate")
    given = parse_assignments(rest)
    other = next((key for key in given if key.startswith("env.")), None)
    if other is not None:
        cut = "; max_episode_steps=N cuts games after N steps" if other == "env.max_episode_steps" else ""
        raise UserError(
            f"{other}: a run is played in its own environment{cut}; rlrun train --from-run RUN_DIR {other}=... trains"
            " in another one"
        )
    options = typed(EvaluateOptions, DEFAULTS | {"episodes": 10, "opponent": None, "max_episode_steps": None} | given)
    if len(names) > 1 and options.opponent is not None:
        raise UserError("opponent is for one run; several players play each other")

    import torch

    torch.set_num_threads(1)
    return between(names, options, trusted, as_json) if len(names) > 1 else of_run(path, options, trusted, as_json)


def check_player(word: str) -> None:
    """Raises UserError if a word is no player."""
    from rlrun.core.plugins import is_path

    if word not in ("random", "snapshots") and not os.path.isfile(Path(word) / "config.yaml") and not is_path(word):
        raise UserError(
            f"{word} is no player: it is not a run directory with a config.yaml, nor random, snapshots or"
            " package.module:Name"
        )


def of_run(path: Path, options: EvaluateOptions, trusted: bool, as_json: bool) -> int:
    """Plays with one run, alone or against an opponent."""
    if not as_json:
        each = " against each snapshot" if options.opponent == "snapshots" else ""
        print(f"rlrun evaluate: {path}, {options.episodes} episode{'s' * (options.episodes > 1)}{each}", flush=True)
    from rlrun.runtime.trained import load

    result = played(load(path, str(options.checkpoint), trusted), options, trusted)
    if as_json:
        print(json.dumps(result))
    elif "tasks" in result:
        show_tasks(result)
    else:
        show(result)
    return 0


def played(trained: Trained, options: EvaluateOptions, trusted: bool) -> dict[str, Any]:
    """Plays with a policy, alone or against an opponent, and returns what --json prints.

    The checkpoint is the policy's, and not that of the options."""
    import numpy as np

    from rlrun.core.policy import Mode
    from rlrun.core.seeding import Seeds
    from rlrun.envs.registry import Factory
    from rlrun.runtime.opponents import alike, inputs_of, matches, opponents, outcomes
    from rlrun.runtime.played_env import cut_after, in_environment
    from rlrun.samplers.evaluator import Evaluator, together

    trained = in_environment(trained, options.env)
    if trained.config.algorithm.needs(trained.config.algo).tasks is not None and options.opponent is None:
        if options.max_episode_steps is not None:
            raise UserError("max_episode_steps: games of a run that adapts to tasks are as long as in training")
        return adapting(trained, options)
    trained = cut_after(trained, options.max_episode_steps)
    seeds = Seeds(options.seed)
    mode: Mode = "greedy" if options.greedy else "explore"
    others: list[Competitor] = [] if options.opponent is None else opponents(trained, options.opponent, trusted)
    games_of = [matches(trained, other, options.episodes) for other in others] or [
        matches(trained, None, options.episodes)
    ]
    spec = inputs_of(trained.spec, others)
    factory = Factory(cfg=trained.config.env, spec=spec, seeds=seeds, stream="evaluate", learning=False)
    evaluator = Evaluator(factory, together(trained.spec, options.episodes), seeds)
    returns: list[float] = []
    games: list[FullGame] = []
    against = [np.zeros(3) for _ in others]  # won, drawn and lost
    round_ = repeated = 0
    try:
        for number, of_opponent in enumerate(games_of):
            for match in of_opponent:
                made = evaluator.games(match.policy, match.episodes, mode, trained.clock, round_)
                returns += [game.ret if match.agent is None else float(game.each[match.agent]) for game in made]
                games += made
                round_ += 1
                if match.agent is not None:
                    against[number] += outcomes(made, match.agent)
                    repeated += options.greedy and alike(made)
    finally:
        evaluator.close()
    result: dict[str, Any] = {
        "run_dir": str(trained.run_dir),
        "env": trained.spec.name,
        "checkpoint_env_steps": trained.clock.env_steps,
        "episodes": len(returns),
        # Games that repeat each other are not independent, and have no interval.
        **statistics(returns, interval=not repeated),
        "episode_length_mean": sum(game.length for game in games) / len(games),
        "greedy": options.greedy,
        "seed": options.seed,
        "returns": returns,
        **cut_games(games, options),
    }
    agents = trained.spec.agents
    if agents is not None and not others:
        result["agents"] = {
            name: float(np.mean([game.each[number] for game in games])) for number, name in enumerate(agents.names)
        }
    if others:
        result |= {
            "opponent": options.opponent,
            **shares(sum(against)),
            "matches": round_,
            "repeated_matches": repeated,
        }
    if options.opponent == "snapshots":
        result["snapshots"] = [{"name": other.name, **shares(one)} for other, one in zip(others, against, strict=True)]
    return result


def statistics(returns: Sequence[float], interval: bool) -> dict[str, Any]:
    """What --json says of the returns of games. interval: whether several games give a 95% interval of their mean
    (Student's t)."""
    from rlrun.bench.stats import t95

    count, mean = len(returns), sum(returns) / len(returns)
    deviation = math.sqrt(sum((r - mean) ** 2 for r in returns) / (count - 1)) if count > 1 else 0.0
    error = t95(count) * deviation / math.sqrt(count) if interval and count > 1 else None
    return {
        "return_mean": mean,
        "return_std": deviation,
        "return_mean_95": None if error is None else [mean - error, mean + error],
        "return_min": min(returns),
        "return_max": max(returns),
    }


def show(result: dict[str, Any]) -> None:
    """Prints a result of played()."""
    told, returns, around = "", result["returns"], result["return_mean_95"]
    if result.get("opponent") is not None:
        told = f", against {result['opponent']}: " + ", ".join(f"{result[word]:.1%} {word}" for word in OUTCOMES)
    mean = result["return_mean"]
    full = "" if result.get("cut_games") else " full"
    print(
        f"{result['env']} at {result['checkpoint_env_steps']:,} env steps: return"
        f" {mean:.2f}{'' if around is None else f' +- {around[1] - mean:.2f} (95%)'} over {len(returns)}{full}"
        f" game{'s' * (len(returns) > 1)}, {min(returns):g} to {max(returns):g},"
        f" {'greedy' if result['greedy'] else 'sampled'}{told}"
    )
    show_cut(result)
    if result.get("repeated_matches"):
        print(
            f"In {result['repeated_matches']} of {result['matches']} matches (an opponent and its seat), all games were"
            " alike, as greedy players repeat one game where nothing else is random. There is no interval therefore;"
            " greedy=false draws their actions."
        )
    if len(result.get("agents", ())) > 1:
        print("  " + ", ".join(f"{name} {ret:.2f}" for name, ret in result["agents"].items()))
    if "snapshots" in result:
        from rlrun.experiments.view import text_table

        rows = [
            [one["name"], *(f"{one[word]:.3f}" for word in ("points", *OUTCOMES)), f"{one['games']:,}"]
            for one in result["snapshots"]
        ]
        print("\n" + text_table(rows, ("against", "points", *OUTCOMES, "games")))


def cut_games(games: Sequence[FullGame], options: EvaluateOptions) -> dict[str, int]:
    """What --json says of games that were cut: how many, and after how many steps. Empty if none is to be cut."""
    limit = options.max_episode_steps
    if limit is None:
        return {}
    # An environment may also break off games by itself, and sooner.
    return {"max_episode_steps": limit, "cut_games": sum(game.truncated and game.length >= limit for game in games)}


def show_cut(result: dict[str, Any]) -> None:
    """Says of a result that it is not that of full games, if it is not."""
    if count := result.get("cut_games"):
        were = "was" if count == 1 else "were"
        print(
            f"  {count} of these games {were} cut after {result['max_episode_steps']:,} steps, so that this is not the"
            " score of full games"
        )


def adapting(trained: Trained, options: EvaluateOptions) -> dict[str, Any]:
    """Plays new tasks before and after adaptation, and returns what --json prints."""
    import numpy as np

    from rlrun.bench.stats import t95
    from rlrun.runtime.adaptation import adapted_returns

    returns = adapted_returns(trained, options.episodes, options.seed)  # [rounds, tasks]
    count = returns.shape[1]

    def told(values: Any) -> tuple[float, float | None]:
        error = None if count < 2 else t95(count) * float(np.std(values, ddof=1)) / math.sqrt(count)
        return float(np.mean(values)), error

    each = [told(values) for values in returns]
    gain, error = told(returns[-1] - returns[0])
    return {
        "run_dir": str(trained.run_dir),
        "env": trained.spec.name,
        "checkpoint_env_steps": trained.clock.env_steps,
        "tasks": count,
        "seed": options.seed,
        **{f"adapt_{number}": mean for number, (mean, _) in enumerate(each)},
        **{f"adapt_{number}_95": [m - e, m + e] for number, (m, e) in enumerate(each) if e is not None},
        "adaptation_delta": gain,
        "adaptation_delta_95": None if error is None else [gain - error, gain + error],
        "returns": returns.tolist(),
    }


def show_tasks(result: dict[str, Any]) -> None:
    """Prints a result of adapting()."""

    def words(name: str) -> str:
        around = result.get(f"{name}_95")
        return f"{result[name]:.2f}" + ("" if around is None else f" +- {around[1] - result[name]:.2f} (95%)")

    steps, count = result["checkpoint_env_steps"], result["tasks"]
    print(f"{result['env']} at {steps:,} env steps: mean returns of {count} new tasks, sampled")
    for number in range(len(result["returns"])):
        when = f"after {number} step{'s' * (number > 1)}" if number else "before adaptation"
        print(f"  {when:<18} {words(f'adapt_{number}')}")
    print(f"  {'gain of a task':<18} {words('adaptation_delta')}")


def shares(counts: Any) -> dict[str, Any]:
    """The shares of games won, drawn and lost, the points in a game, and the number of games. counts: [3]."""
    games = float(counts.sum())
    made = {word: float(count) / games for word, count in zip(OUTCOMES, counts, strict=True)}
    return {**made, "points": made["won"] + 0.5 * made["drawn"], "games": int(games)}


def between(names: list[str], options: EvaluateOptions, trusted: bool, as_json: bool) -> int:
    """Lets several players play each other, and prints the results."""
    result = tournament(names, options, trusted, said=not as_json)
    if as_json:
        print(json.dumps(result))
    else:
        show_tournament(result)
    return 0


def tournament(names: list[str], options: EvaluateOptions, trusted: bool, said: bool) -> dict[str, Any]:
    """Lets several players play each other, and returns what --json prints. said: whether to print what is played."""
    from rlrun.config.signature import guarded
    from rlrun.core.plugins import allow
    from rlrun.runtime.opponents import players

    first, these = players(names, str(options.checkpoint), trusted)
    with guarded(trusted or all(player.trained is None or player.trained.own for player in these)):
        allow([*names, options.env])
        return _tournament(first, these, options, said)


def _tournament(first: Trained, these: Sequence[Competitor], options: EvaluateOptions, said: bool) -> dict[str, Any]:
    from rlrun.bench.ratings import bradley_terry
    from rlrun.core.policy import Mode, Policy
    from rlrun.core.seeding import Seeds
    from rlrun.envs.registry import Factory
    from rlrun.runtime.opponents import inputs_of, play_pairs, seatings
    from rlrun.runtime.played_env import cut_after, in_environment
    from rlrun.samplers.evaluator import Evaluator, together

    first = cut_after(in_environment(first, options.env), options.max_episode_steps)
    seatings(these[0], these[1], options.episodes)  # refuses too few episodes
    pairs = len(these) * (len(these) - 1) // 2
    if said:
        print(
            f"rlrun evaluate: {len(these)} players, {options.episodes} games of each pair,"
            f" {pairs * options.episodes:,} in all",
            flush=True,
        )
    seeds = Seeds(options.seed)
    spec = inputs_of(first.spec, these)
    factory = Factory(cfg=first.config.env, spec=spec, seeds=seeds, stream="evaluate", learning=False)
    mode: Mode = "greedy" if options.greedy else "explore"
    evaluator = Evaluator(factory, together(first.spec, options.episodes), seeds)

    played: list[FullGame] = []

    def play(policy: Policy, episodes: int, round_: int) -> list[FullGame]:
        made = evaluator.games(policy, episodes, mode, first.clock, round_)
        played.extend(made)
        return made

    try:
        results = play_pairs(these, options.episodes, play)
    finally:
        evaluator.close()
    elo, error = bradley_terry(results.points, results.games)
    count = len(these)
    total = [shares(results.counts[i].sum(0)) for i in range(count)]
    points = [
        [None if i == j else float(results.points[i, j] / results.games[i, j]) for j in range(count)]
        for i in range(count)
    ]
    told = [
        {
            "name": player.name,
            **({"checkpoint_env_steps": player.trained.clock.env_steps} if player.trained else {}),
            "elo": float(elo[i]),
            "elo_95": [float(elo[i] - 1.96 * error[i]), float(elo[i] + 1.96 * error[i])],
            **total[i],
        }
        for i, player in enumerate(these)
    ]
    facts = {"env": first.spec.name, "episodes": options.episodes, "greedy": options.greedy, "seed": options.seed}
    counts = {word: results.counts[..., kind].astype(int).tolist() for kind, word in enumerate(OUTCOMES)}
    repeated = {"repeated_pairs": results.repeated}
    return {**facts, "players": told, "points": points, **counts, **repeated, **cut_games(played, options)}


def show_tournament(result: dict[str, Any]) -> None:
    """Prints a result of tournament()."""
    from rlrun.experiments.view import text_table

    players = result["players"]
    count = len(players)
    pairs = count * (count - 1) // 2
    rows = [
        [
            f"{i + 1} {player['name']}",
            *("-" if value is None else f"{value:.3f}" for value in result["points"][i]),
            f"{player['points']:.3f}",
            f"{player['elo']:.0f}",
            f"{player['elo_95'][1] - player['elo']:.0f}",
        ]
        for i, player in enumerate(players)
    ]
    print(
        f"{result['env']}, {'greedy' if result['greedy'] else 'sampled'}: points of a row in a game against a column\n"
    )
    print(text_table(rows, ("player", *(str(i + 1) for i in range(count)), "all", "Elo", "+- (95%)")))
    if result.get("cut_games"):
        print()
        show_cut(result)
    if result["repeated_pairs"] and result["greedy"]:
        print(
            f"\nIn {result['repeated_pairs']} of {pairs} pair{'s' * (pairs > 1)}, all games in the same seats were"
            " alike, as greedy players repeat one game where nothing else is random; greedy=false draws their actions."
        )
