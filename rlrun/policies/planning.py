"""A policy that searches in the environment's simulator, guided by a network for moves and values."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rlrun.core.batch import Batch, Field, RowSpec, nested
from rlrun.core.conditions import OnlyWith
from rlrun.core.env import Rows
from rlrun.core.errors import UserError
from rlrun.core.games import STATE, GameSpec, Simulator, random_returns, split_state
from rlrun.core.policy import Act, Mode, Pass, Policy
from rlrun.core.ranges import Count, NotNegative, Share
from rlrun.core.ranks import Ranks
from rlrun.core.schedule import Clock, Schedule
from rlrun.core.specs import Discrete, EnvSpec
from rlrun.models.model import DistributionAndValueConfig, Model
from rlrun.models.normalizer import FiltersObservations
from rlrun.ops.distributions import Categorical
from rlrun.policies.distribution import without_meaning
from rlrun.policies.exploration import Explorer
from rlrun.policies.search import Leaf, SearchConfig, Searched, noisy, search

CLOSE = 1e-6  # returns that differ by this share of their size are equal


@dataclass(frozen=True, kw_only=True)
class RankedConfig:
    """Ranked rewards (Laterre et al. 2018, arXiv:1807.01672). conf/algo/alphazero.yaml explains each."""

    enabled: bool
    percentile: Annotated[float, Share, OnlyWith("enabled")]
    games: Annotated[int, Count, OnlyWith("enabled")]
    initial_games: Annotated[int, NotNegative, OnlyWith("enabled")]
    ties: Annotated[Literal["random", "won"], OnlyWith("enabled")]
    best: Annotated[float | None, OnlyWith("enabled")]


class Guessed(NamedTuple):
    """What the network says."""

    log_probs: Tensor  # [..., A]
    value: Tensor  # [...] for the side to move


class SearchPolicy(FiltersObservations, Policy):
    """Searches from the state in `game_state` of every column whose turn it is, and plays by the visits of its moves.

    A column that waits for the other player has the network's value and its one legal action."""

    ready: Tensor
    own_state = ("ranked_returns", "ranked_count", "ranked_threshold")
    ranked_returns: Tensor
    ranked_count: Tensor
    ranked_threshold: Tensor

    def __init__(
        self,
        spec: EnvSpec,
        model: Model,
        cfg: SearchConfig,
        explorer: Explorer,
        temperature: Schedule,
        temperature_moves: int | None,
        eval_simulations: int | None,
        ranked: RankedConfig,
    ):
        """temperature: of the visits in training. temperature_moves: moves of an episode after which training takes the
        best one; None: none. eval_simulations: those of greedy play; None: as in training. Play that is not greedy,
        also in an evaluation with greedy=false, is that of training, with its noise."""
        super().__init__()
        assert isinstance(spec.game, GameSpec) and isinstance(spec.action, Discrete)
        if model.cfg.memory.kind != "none":
            raise UserError("a search guesses from single states: model/memory=none")
        if ranked.enabled and spec.game.players == 2:
            raise UserError(
                f"algo.ranked.enabled=true gives one player an opponent, its own past; {spec.name} has two players"
            )
        seen = replace(spec, obs={name: space for name, space in spec.obs.items() if name != STATE})
        self.spec, self.cfg, self.explorer, self.ranked = spec, cfg, explorer, ranked
        self.eval_cfg = cfg if eval_simulations is None else replace(cfg, simulations=eval_simulations)
        self.temperature, self.temperature_moves = temperature, temperature_moves
        self.players, self.actions = spec.game.players, spec.action.n
        self.bounded = self.players == 2 or ranked.enabled  # values lie in [-1, 1]
        self.normalize = not self.bounded if cfg.normalize == "auto" else cfg.normalize == "siblings"
        self.filter = model.filter(seen)
        self.trunk = model.trunk(seen)
        outputs = model.outputs(DistributionAndValueConfig)
        if outputs.central:
            raise UserError("model.value_sees=state: a search guesses from what the side to move sees")
        self.value_trunk = None if outputs.share_value else model.trunk(seen)
        self.action_head = model.action_head(seen, self.trunk.features)
        self.value_head = model.last_layer("value_head", self.trunk.features, 1)
        self.register_buffer("ready", torch.zeros(()), persistent=False)  # it knows the device at no cost
        self.embedding = model.action_embedding  # name of the observation part that describes the actions
        if ranked.enabled:
            self.register_buffer("ranked_returns", torch.zeros(ranked.games, dtype=torch.float64))
            self.register_buffer("ranked_count", torch.zeros((), dtype=torch.int64))
            self.register_buffer("ranked_threshold", torch.full((), -torch.inf, dtype=torch.float64))

    @cached_property
    def game(self) -> Simulator:
        """This process's simulator. A return is ranked where a time limit ends the episode, so that a search must see
        the limit then. Without ranked rewards a value stands for what would have followed, and the limit is no end."""
        return self.spec.game.make(limited=self.ranked.enabled)

    def recordable(self, what: Pass) -> bool:
        return what == "learning"

    # -- the network ---------------------------------------------------------------------------------------------------

    def guess(self, obs: Batch) -> Guessed:
        """obs leaves [T, B, ...] -> log-probabilities of moves [T, B, A] and values [T, B]."""
        seen, meaning = without_meaning(self.seen(obs), self.embedding)
        first = next(seen.leaves())
        is_first = torch.zeros(first.shape[:2], dtype=torch.bool, device=first.device)
        features, _ = self.trunk(seen, is_first, Batch())
        value_features = features if self.value_trunk is None else self.value_trunk(seen, is_first, Batch())[0]
        value = self.value_head(value_features).squeeze(-1)
        mask = obs["action_mask"].bool() if "action_mask" in obs else None  # type: ignore[union-attr]
        dist = self.action_head(features, mask) if meaning is None else self.action_head(features, mask, meaning)
        return Guessed(dist.log_probs, value.tanh() if self.bounded else value)

    def unroll(self, batch: Batch) -> Guessed:
        return self.guess(batch["obs"])  # type: ignore[arg-type]

    def initial_state(self, columns: int, place: Tensor | None = None) -> Batch:
        """moves [B]: rows of the episode before this one."""
        device = self.ready.device
        own = {"moves": torch.zeros(columns, dtype=torch.int64, device=device)}
        return Batch(own | self.explorer.initial_state(columns, place, device))

    def record_spec(self, names: tuple[str, ...]) -> RowSpec:
        """Knows search_policy [B, A], searched [B] (whether it was this column's turn), value [B] (what the search
        found, or the network said) and log_prob [B]."""
        known: RowSpec = {
            "search_policy": Field((self.actions,), torch.float32),
            "searched": Field((), torch.bool),
            "value": Field((), torch.float32),
            "log_prob": Field((), torch.float32),
        }
        return {name: known[name] for name in names}

    # -- acting --------------------------------------------------------------------------------------------------------

    @torch.no_grad()  # a search is no function to be differentiated
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
        # With explore=false, training is greedy play after a search of as many simulations as ever.
        cfg = self.cfg if mode == "explore" else self.eval_cfg
        mode, device = self.explorer.mode(mode), is_first.device
        draws = np.random.default_rng(int(torch.randint(2**62, (), generator=rng, device=rng.device)))
        moves = torch.where(is_first, 0, state["moves"])  # type: ignore[arg-type]
        guess = self.guess(obs.map(lambda x: x.unsqueeze(0)))
        log_probs, value = guess.log_probs[0].clone(), guess.value[0].clone()
        policy, best = log_probs.exp(), log_probs.argmax(-1)
        rows, mine = split_state(obs[STATE].cpu().numpy())  # type: ignore[union-attr]
        mine &= self.game.known(rows)
        at = torch.from_numpy(np.flatnonzero(mine)).to(device)
        if len(at):
            found = self.plan(cfg, rows, mine, log_probs, value, mode, draws)
            policy[at] = torch.from_numpy(found.policy).to(device)
            best[at] = torch.from_numpy(found.best).to(device)
            value[at] = torch.from_numpy(found.value).to(device)
            if mode == "explore":
                log_probs[at] = self.tempered(found, mine, moves, clock).to(device)
        who = self.explorer.stand_in(mode, clock)
        dist = Categorical(log_probs).from_record(Batch(log_probs=log_probs))
        log_prob: Tensor | None = torch.zeros_like(value)
        changed: dict[str, Tensor] = {"moves": moves + 1}
        if who is not None:
            action, log_prob, more = self.explorer.choose(who, dist, obs, is_first, state, clock, rng)
            changed |= more
        elif mode == "greedy":
            action = best
        else:
            action = dist.sample(rng)
            log_prob = dist.log_prob(action)
        known = {
            "search_policy": policy,
            "searched": torch.from_numpy(mine).to(device),
            "value": value,
            "log_prob": torch.full_like(value, torch.nan) if log_prob is None else log_prob,
        }
        return Act(action, Batch({**state, **changed}), Batch({name: known[name] for name in record}))

    def plan(
        self,
        cfg: SearchConfig,
        rows: np.ndarray,
        mine: np.ndarray,
        log_probs: Tensor,
        value: Tensor,
        mode: Mode,
        rng: np.random.Generator,
    ) -> Searched:
        """Searches from the states rows [B, S] of the columns `mine` [B], of which the network said this. Random
        numbers are drawn for all columns, so that one does not depend on which others search."""
        root = Leaf(log_probs.float().cpu().numpy(), value.float().cpu().numpy())
        gumbel = None
        if mode == "explore":
            if cfg.root == "gumbel":
                gumbel = rng.gumbel(size=root.logits.shape).astype(np.float32)[mine]
            elif cfg.dirichlet_share > 0:
                root = noisy(cfg, root, rng)
        root = Leaf(root.logits[mine], root.value[mine])
        found = search(cfg, GuidedGame(self, rng), rows[mine], root, self.players, self.normalize, gumbel)
        self.game.forget()
        return found

    def greedy(self, obs: Batch, is_first: Tensor, state: Batch) -> tuple[Tensor | Batch, Batch]:
        """The network's first guess, which is greedy play with 0 simulations: a search is not a function of tensors."""
        return self.guess(obs.map(lambda x: x.unsqueeze(0))).log_probs[0].argmax(-1), state

    def best(self, state: np.ndarray) -> np.ndarray:
        """The actions [B] of greedy play in states [B, S] of the simulator."""
        root = self.look(self.game.observe(state))
        found = search(
            self.eval_cfg, GuidedGame(self, np.random.default_rng(0)), state, root, self.players, self.normalize
        )
        self.game.forget()
        return found.best

    def tempered(self, found: Searched, mine: np.ndarray, moves: Tensor, clock: Clock) -> Tensor:
        """The log-probabilities [n, A] with which training chooses among the moves that were searched: those of
        visits ** (1 / temperature), or, with root=gumbel, the best one for certain."""
        temperature = self.temperature(clock)
        certain = torch.from_numpy(np.eye(self.actions, dtype=np.float32)[found.best]).log()
        if self.cfg.root == "gumbel" or temperature == 0:
            return certain
        logs = torch.from_numpy(found.policy).double().log() / temperature
        made = torch.log_softmax(logs, -1).float()
        if self.temperature_moves is None:
            return made
        late = moves.cpu()[torch.from_numpy(mine)] >= self.temperature_moves
        return torch.where(late.unsqueeze(-1), certain, made)

    def look(self, rows: Rows) -> Leaf:
        """What the network says of observations [B, ...] of the simulator."""
        device = self.ready.device
        obs = nested(_tensors(rows)).map(lambda x: x.to(device).unsqueeze(0))
        with torch.inference_mode():
            guess = self.guess(obs)
        return Leaf(guess.log_probs[0].float().cpu().numpy(), guess.value[0].float().cpu().numpy())

    # -- ranked rewards ------------------------------------------------------------------------------------------------

    def begin_ranks(self, rng: np.random.Generator) -> None:
        """Fills the buffer of returns with games of random moves."""
        if self.ranked.initial_games:
            limit = self.spec.max_episode_steps
            self._add_returns(random_returns(self.game, rng, self.ranked.initial_games, limit))

    def _add_returns(self, returns: np.ndarray) -> None:
        for value in returns.tolist():
            self.ranked_returns[int(self.ranked_count) % len(self.ranked_returns)] = value
            self.ranked_count += 1
        held = self.ranked_returns[: min(int(self.ranked_count), len(self.ranked_returns))]
        if len(held):
            self.ranked_threshold.fill_(float(np.quantile(held.cpu().numpy(), self.ranked.percentile)))

    def moments(self, batch: Batch) -> Any:
        """What the filter learns, and the returns of the episodes that ended in a fragment."""
        made = super().moments(batch)
        if not self.ranked.enabled:
            return made
        ended = (batch["terminated"] | batch["truncated"]) & batch["valid"]  # type: ignore[operator]
        paid = batch["obs"][STATE][: len(ended)][..., -2]  # type: ignore[index, arg-type]
        return made, (paid[ended] + batch["reward"][ended]).double().cpu()  # type: ignore[index, operator]

    def absorb(self, moments, ranks: Ranks) -> None:
        if not self.ranked.enabled:
            super().absorb(moments, ranks)
            return
        super().absorb([made for made, _ in moments if made is not None], ranks)
        own = torch.cat([returns for _, returns in moments] or [torch.zeros(0, dtype=torch.float64)])
        self._add_returns(torch.cat([part.double() for part in ranks.gather(own)]).numpy())


class GuidedGame:
    """The simulator and the network as a search asks for them."""

    def __init__(self, policy: SearchPolicy, rng: np.random.Generator):
        self.policy, self.game, self.rng = policy, policy.game, rng
        self.threshold = float(policy.ranked_threshold) if policy.ranked.enabled else None

    def step(self, state: np.ndarray, action: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        after, reward, over = self.game.step(state, action)
        if self.threshold is not None:
            total = self.game.paid(state) + reward
            reward = np.where(over, self.labels(total), 0.0).astype(np.float32)
        return after, reward, over

    def labels(self, returns: np.ndarray) -> np.ndarray:
        """1 for returns [B] above the threshold and -1 for those below it. All are above a threshold of -inf, which is
        that of no games."""
        same = 1.0 if self.policy.ranked.ties == "won" else self.rng.choice([-1.0, 1.0], returns.shape)
        threshold = self.threshold or 0.0
        close = np.isfinite(threshold) & (np.abs(returns - threshold) <= CLOSE * max(1.0, abs(threshold)))
        label = np.where(close, same, np.where(returns > threshold, 1.0, -1.0))
        best = self.policy.ranked.best
        return label if best is None else np.where(returns >= best - CLOSE * max(1.0, abs(best)), 1.0, label)

    def evaluate(self, state: np.ndarray) -> Leaf:
        return self.policy.look(self.game.observe(state))


def _tensors(rows: Rows) -> dict:
    return {name: _tensors(part) if isinstance(part, dict) else torch.from_numpy(part) for name, part in rows.items()}
