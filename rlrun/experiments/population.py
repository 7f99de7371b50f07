"""Population-based training (Jaderberg et al. 2017, arXiv:1711.09846).

Several runs train side by side. After every generation, which is a fixed number of env steps, the worst runs copy the
weights of the best and go on with perturbed hyperparameters.

Members are ordinary runs. A member that takes over from another gets the other's last checkpoint and a config.yaml with
the new values, and is then resumed: schedules, optimiser and counters continue from the checkpoint. So do the last 100
games, whose mean return is the score; where a generation has fewer games, some of the copied run's games still count.
No member begins a generation before all have finished the one before, so that the same seed gives the same decisions
as long as one job runs at a time.
"""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from rlrun.config.foreign import check_values
from rlrun.config.saved import read_config, save_config
from rlrun.config.signature import read_signed, write_signed
from rlrun.config.unused import flattened
from rlrun.config.words import word
from rlrun.core.checkpoint import fsync_folder, write_atomically
from rlrun.core.errors import UserError
from rlrun.core.outputs import tell
from rlrun.experiments.grid import Interval, Space
from rlrun.experiments.outcomes import DONE, Outcome, TrainingJob, checkpoints, summary_of
from rlrun.experiments.record import job_in

# The share of the population that is replaced, and the share that is copied, as in Ray Tune. It is 0.2 in the paper
# (truncation selection).
TRUNCATED = 0.25
FACTORS = (0.8, 1.2)  # a perturbed number is multiplied by one of these
WHOLE = re.compile(r"\$\\?\{env_steps\\?\}")  # how options name the env steps of a run; Hydra's words may escape braces
RESAMPLED = 0.25  # probability that a value is drawn again instead
CHANGES = (
    "a population can change numbers in algo.* during training, such as algo.lr; choose other values with --search tpe"
    " or a grid"
)


@dataclass
class Member:
    """One run of the population and its state."""

    name: str
    values: dict[str, Any]
    generation: int = 0  # number of generations that it has finished
    score: float | None = None
    dead: bool = False
    history: list[dict[str, Any]] = field(default_factory=list)

    @property
    def trained(self) -> int:
        """The env steps of its run at the end of its last generation."""
        return next((int(one["env_steps"] or 0) for one in reversed(self.history) if "env_steps" in one), 0)


class PopulationTraining:
    """A supply whose jobs each train one member for one generation."""

    def __init__(
        self,
        space: Space,
        count: int,
        every: int,
        env_steps: int,
        seed: int,
        folder: Path,
        check: Callable[[Sequence[str], str], Any],
        own: Sequence[str] = (),
    ):
        """every: env steps in a generation. own and check are as in search.Trials. `${env_steps}` in an option stands
        for env_steps, and not for the end of a generation."""
        fixed = [WHOLE.sub(str(env_steps), text) for text in space.fixed]
        choices = {key: [WHOLE.sub(str(env_steps), text) for text in texts] for key, texts in space.choices.items()}
        space = space._replace(fixed=tuple(fixed), choices=choices)
        self.space, self.every, self.env_steps, self.folder, self.own, self.seed, self.check = (
            space,
            every,
            env_steps,
            folder,
            list(own),
            seed,
            check,
        )
        self.pending: list[list[Any]] = []  # takeovers that are decided but not done: loser, winner, values
        self.exploited = 0  # the newest generation after which takeovers were decided
        self.queue: list[Member] = []
        self.out: set[str] = set()  # the members whose jobs are running, or were interrupted or lost in this session
        self.state = folder / "population.json"
        self.generations = math.ceil(env_steps / every)
        self.rng = np.random.default_rng([seed, 0])
        self.pinned: dict[tuple[Any, ...], list[str]] = {}  # what _pinned() returned, by the values
        if self.state.exists():
            self._load()
        else:
            self.members = [Member(f"member-{index:02d}", self._drawn()) for index in range(count)]
            for member in self.members:
                check(self._words(member), member.name)
        self._advance()

    @property
    def generation(self) -> int:
        """The number of generations that all living members have finished."""
        return min((member.generation for member in self.members if not member.dead), default=self.generations)

    # -- values --------------------------------------------------------------------------------------------------------

    def _one(self, key: str) -> Any:
        if key in self.space.choices:
            return str(self.rng.choice(self.space.choices[key]))
        interval = self.space.intervals[key]
        # Half a unit is added at both ends of whole numbers, because the ends would otherwise be drawn half as often
        # as the numbers between them.
        more = 0.5 if interval.whole else 0.0
        low, high = interval.low - more, interval.high + more
        value = self.rng.uniform(*((math.log(low), math.log(high)) if interval.log else (low, high)))
        return bounded(math.exp(value) if interval.log else value, interval)

    def _drawn(self) -> dict[str, Any]:
        return {key: self._one(key) for key in (*self.space.choices, *self.space.intervals)}

    def explored(self, values: dict[str, Any]) -> dict[str, Any]:
        """Perturbed values (section 4.1.2).

        A number is multiplied by 0.8 or 1.2 within its interval, or drawn again. A choice is kept, or drawn again.
        """
        made = {}
        for key, value in values.items():
            if self.rng.random() < RESAMPLED:
                made[key] = self._one(key)
            elif key in self.space.intervals:
                factor, interval = float(self.rng.choice(FACTORS)), self.space.intervals[key]
                moved = value * factor
                if interval.whole and round(moved) == value:  # a small whole number moves by at least one
                    moved = value + (1 if factor > 1 else -1)
                made[key] = bounded(moved, interval)
            else:
                made[key] = value
        return made

    def _pinned(self, member: Member) -> list[str]:
        """Words for the options that follow env_steps, such as a schedule in an algorithm's file. They have the values
        that a run of all env steps has: a member's first job ends with its generation, and later ones keep what the
        first job made of them."""
        values = tuple(member.values.items())
        if values not in self.pinned:
            words = self._unpinned(member)
            part, whole = (
                flattened(self.check([*words, f"env_steps={steps}"], member.name))
                for steps in (self.every, self.env_steps)
            )
            self.pinned[values] = [
                f"{key}={word(key, value)}"
                for key, value in whole.items()
                if key in part and part[key] != value and key != "env_steps" and key not in member.values
            ]
        return self.pinned[values]

    def _options(self, member: Member) -> dict[str, Any]:
        """The options of a member's job by their dotted names."""
        return flattened(self.check(self._words(member), member.name))

    def _words(self, member: Member) -> list[str]:
        return self._unpinned(member, self._pinned(member))

    def _unpinned(self, member: Member, pinned: Sequence[str] = ()) -> list[str]:
        fixed = [word for word in self.space.fixed if not word.startswith("env_steps=")]
        # Each member has a seed of its own, as the paper's workers are independent. Where a word is given twice, as a
        # user's seed is, the last one counts.
        seed = self.seed + int(member.name.rsplit("-", 1)[1])
        return [
            *self.own,
            *fixed,
            *pinned,
            *(f"{key}={value}" for key, value in member.values.items()),
            f"seed={seed}",
            f"env_steps={self._target(member)}",
        ]

    def _target(self, member: Member) -> int:
        return min((member.generation + 1) * self.every, self.env_steps)

    # -- the supply ----------------------------------------------------------------------------------------------------

    def next(self) -> TrainingJob | None:
        if not self.queue:
            return None
        member = self.queue.pop(0)
        self.out.add(member.name)
        if member.generation and not checkpoints(self.folder / member.name):
            tell(f"  {member.name} has lost its checkpoints and begins anew")
        job = job_in(self.folder, member.name, self._words(member))
        return replace(job, resume=(f"env_steps={self._target(member)}",))

    def look(self, outcome: Outcome) -> bool:
        return False

    def done(self, outcome: Outcome) -> None:
        member = next(one for one in self.members if one.name == outcome.job.name)
        if outcome.status == "INTERRUPTED" or outcome.lost:
            return  # it stays in self.out, because the others wait for it until the sweep is resumed
        self.out.remove(member.name)
        if outcome.status not in DONE:
            member.dead = True
        else:
            member.generation += 1
            member.score = outcome.return_mean
            member.history.append({"env_steps": outcome.env_steps, "score": member.score, **member.values})
        self._save()
        if not self.queue and not self.out:
            self._advance()

    def _advance(self) -> None:
        """Queues the members for their next generation, after the takeovers of the one that all have finished.

        A member that failed and is tried again after others have gone on first catches up with them alone.
        """
        if self.generation >= self.generations:
            return
        alive = [one for one in self.members if not one.dead]
        self.queue = [one for one in alive if one.generation == self.generation]
        if len(self.queue) == len(alive) and self.generation > self.exploited:
            self._exploit()

    def _exploit(self) -> None:
        """Lets the worst quarter take over from the best quarter.

        The decisions are saved before they are carried out, so that a sweep that is killed meanwhile repeats them.
        """
        alive = sorted(
            (one for one in self.members if not one.dead),
            key=lambda one: -math.inf if one.score is None else one.score,
            reverse=True,
        )
        count = max(1, int(TRUNCATED * len(alive))) if len(alive) > 1 else 0
        for loser in alive[len(alive) - count :]:
            winner = alive[int(self.rng.integers(0, count))]
            if winner is loser or winner.score is None or winner.score == loser.score:
                continue
            # A generation may end behind its last env step. Where nothing is left to train, values would not be tried.
            if winner.trained >= self.env_steps:
                continue
            values = self.explored(winner.values)
            try:
                self.check(self._words(replace(loser, values=values)), loser.name)
            except UserError as error:
                tell(f"  {loser.name} keeps its values: {error}")
                continue
            tell(f"  {loser.name} (return {shown(loser.score)}) takes over from {winner.name} ({shown(winner.score)})")
            self.pending.append([loser.name, winner.name, values])
        self.exploited = self.generation
        self._save()
        self._take_over()

    def _take_over(self) -> None:
        """Carries out the takeovers that are decided."""
        members = {one.name: one for one in self.members}
        for name, winner, values in self.pending:
            try:
                own = members[name]
                before, after = (self._options(replace(own, values=one)) for one in (own.values, values))
                # An option may follow one that is searched, as critic_lr does where it is ${algo.lr}.
                changed = {key: one for key, one in after.items() if key in values or one != before.get(key)}
                take_over(self.folder / winner, self.folder / name, changed)
            except (OSError, UserError, IndexError, KeyError, TypeError) as error:
                tell(f"  {name} could not take over: {type(error).__name__}: {error}")
                continue
            members[name].history.append({"took_over": winner, "generation": self.generation, **values})
            members[name].values = values
        self.pending = []
        self._save()

    def status(self, name: str) -> str | None:
        """FAILED for members that died. None for others, whose runs have the status."""
        return "FAILED" if any(one.name == name and one.dead for one in self.members) else None

    def best(self) -> str | None:
        """A sentence with the best member, its return and its present values; None where no member has a score."""
        scored = [one for one in self.members if one.score is not None]
        if not scored:
            return None
        top = max(scored, key=lambda one: one.score if one.score is not None else -math.inf)
        return (
            f"best of {len(scored)}: {top.name}, return {shown(top.score)}, now with"
            f" {' '.join(f'{key}={value}' for key, value in top.values.items())}"
        )

    # -- going on later ------------------------------------------------------------------------------------------------

    def _save(self) -> None:
        members = [
            {
                "name": one.name,
                "values": one.values,
                "generation": one.generation,
                "score": one.score,
                "dead": one.dead,
                "history": one.history,
            }
            for one in self.members
        ]
        said = {
            "members": members,
            "exploited": self.exploited,
            "pending": self.pending,
            "rng": self.rng.bit_generator.state,
        }
        write_signed(self.state, json.dumps(said, indent=1) + "\n")

    def _load(self) -> None:
        data, ours, _ = read_signed(self.state)
        if not ours:
            raise UserError(f"{self.state} was not written by you on this machine; start the sweep again elsewhere")
        try:
            said = json.loads(data)
            self.members = [Member(**one) for one in said["members"]]
            self.pending, self.rng.bit_generator.state = said["pending"], said["rng"]
            # Earlier versions did not save this. They decided takeovers as soon as all members had ended a generation.
            ended = min((one.generation for one in self.members if not one.dead), default=0)
            self.exploited = said.get("exploited", ended)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(f"{self.state} is damaged: {error}") from None
        for one in self.members:
            # A failed member is tried again if its run has a checkpoint.
            one.dead = one.dead and not checkpoints(self.folder / one.name)
        self._take_over()


def generation_of(folder: Path) -> int:
    """The number of generations that all living members of the population in a sweep's directory have finished."""
    if not (folder / "population.json").exists():
        return 0
    try:
        members = [Member(**one) for one in json.loads((folder / "population.json").read_text())["members"]]
        living = (one.generation for one in members if not one.dead or checkpoints(folder / one.name))
        return min(living, default=0)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{folder / 'population.json'} is damaged: {error}") from None


def fits(space: Space, config: dict[str, Any], count: int, every: float) -> None:
    """UserError where a population cannot search this space.

    A value that changes during training must be a number, or a schedule, that a run reads again when it is resumed.
    """
    if count < 2:
        raise UserError("--search pbt needs --trials of 2 or more, the size of its population")
    if every > config["env_steps"]:
        raise UserError(
            f"--every {every:g} is more than env_steps {config['env_steps']:g}: members would never take over"
        )
    for key in (*space.choices, *space.intervals):
        check_number(key, config)


def check_number(key: str, config: Any) -> None:
    """UserError where an option of a plain config is none of the algorithm's, or neither a number nor a schedule."""
    from rlrun.core.schedule import Schedule

    node = config if key.startswith("algo.") else None
    for part in key.split("."):
        node = node.get(part) if isinstance(node, dict) else None
    try:
        Schedule.parse(node)
    except ValueError:
        raise UserError(f"{key}: {CHANGES}") from None


def shown(score: float | None) -> str:
    return "none" if score is None else f"{score:.2f}"


def bounded(value: float, interval: Interval) -> float | int:
    value = min(max(value, interval.low), interval.high)
    return round(value) if interval.whole else float(interval.text(value))


def take_over(winner: Path, loser: Path, values: dict[str, Any]) -> None:
    """Gives the loser's run the winner's last checkpoint, and changes these options, by their dotted names, in its own.

    Where this fails, the loser keeps its own checkpoints and options. After a kill at any point it can be done again.
    """
    own, fresh, old = loser / "checkpoints", loser / "checkpoints.new", loser / "checkpoints.old"
    if old.exists() and not own.exists():  # an earlier try was killed between its two renames
        old.rename(own)
    name = checkpoints(winner)[-1]
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir()
    shutil.copytree(winner / "checkpoints" / name, fresh / name)
    fsync_folder(fresh)
    path = loser / "config.yaml"
    config, ours, _ = read_config(loser)
    check_values(config, str(path), ours, places=("directory", "uri", "address"))
    for key, value in values.items():
        *groups, last = key.split(".")
        node = config
        for group in groups:
            node = node[group]
        node[last] = value
    shutil.rmtree(old, ignore_errors=True)
    own.rename(old)
    try:
        fresh.rename(own)
        save_config(config, loser, ours)
        summary = summary_of(loser) | {"took_over": int(name)}
        # Its return is that of the weights that are gone. What is resumed and has nothing left to do would keep it.
        if summary.get("status") in DONE:
            summary["status"] = "INTERRUPTED"
        write_atomically(loser / "summary.json", json.dumps(summary, indent=1) + "\n")
    except OSError:
        shutil.rmtree(own, ignore_errors=True)
        old.rename(own)
        raise
    fsync_folder(own)  # also its new name, before the old checkpoints are gone
    shutil.rmtree(old, ignore_errors=True)
