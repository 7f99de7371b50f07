"""What every algorithm must do. The algorithms are found by listing the folder."""

import copy
import dataclasses
import re
import sys
from collections import deque
from collections.abc import Mapping

import numpy as np
import pytest
import torch
from conftest import small
from families import ANY_ACTION, BANDITS, BOX, DISCRETE, DREAMING, FRESH, MEMORY, ROWS, fits, remembering, simple
from test_actor_learner import run_wired
from wired import Wired

from rlrun.config.paths import inner_algorithm, options
from rlrun.core.optimizer import Optimizer
from rlrun.core.schedule import Clock
from rlrun.samplers.serial import SerialSampler

GTRXL = ["model=gtrxl", "model.memory.size=4", "model.memory.length=3"]
CASES = {
    "discrete": ["env=CartPole-v1"],
    "box": ["env=Pendulum-v1"],
    "lstm": ["env=CartPole-v1", "model=lstm", "model.memory.size=4"],
    "every space": ["env=rlrun/EverySpace-v0", "model.observation_filter=mean_std"],
    "every space with an image": [
        "env=rlrun/EverySpace-v0",
        "++env.kwargs.image=true",
        "model=lstm",
        "model.memory.size=4",
    ],
    "masked": ["env=rlrun/Masked-v0"],
    "beta": ["env=Pendulum-v1", "model.action_distribution=beta"],
    "squashed": ["env=Pendulum-v1", "model.action_distribution=squashed_gaussian"],
    "gtrxl, two trunks": ["env=CartPole-v1", *GTRXL, "model.share_value=false", "model.memory.layers=2"],
    "autoregressive": ["env=rlrun/EverySpace-v0", "model.autoregressive=true"],
    "agents": ["env=MultiAgentCartPole-v0"],
    "slates": ["env=rlrun/InterestEvolution-v0"],
    "agents' numbers": ["env=MultiAgentPendulum-v0"],
    "simulator": ["env=CartPoleSparse-v0", "++env.kwargs.max_steps=12"],
    "gru, two trunks": ["env=CartPole-v1", "model=gru", "model.memory.size=4", "model.share_value=false"],
}


def inside(algo, *words):
    """Returns the words, directed to the inner algorithm if there is one. A + keeps a word for the outer one."""
    if inner_algorithm(algo):
        words = [f"algo.inner.{word[5:]}" if word.startswith("algo.") else word for word in words]
    return [word.removeprefix("+") if word.startswith("+algo.") else word for word in words]


def recording(algorithm, also):
    """Returns the same algorithm, which also records the fields `also`."""

    class Recording(algorithm):
        @classmethod
        def needs(cls, cfg):
            needs = super().needs(cfg)
            return dataclasses.replace(needs, record=tuple({*needs.record, *also}))

    return Recording


def start(typed, algo, *words, also=()):
    config = typed(
        *small(algo, "tiny"), *remembering(algo, words), "resources=debug", "logger=[]", *inside(algo, *words)
    )
    wiring = Wired(dataclasses.replace(config, algorithm=recording(config.algorithm, also)) if also else config)
    made, sampler = wiring.algorithm(), wiring.sampler(0)
    assert isinstance(sampler, SerialSampler)
    sampler.publish(made.policy, Clock())
    return wiring, made, sampler


def batches(wiring, sampler, count):
    from rlrun.core.batch import stack_columns

    taken = []
    if wiring.needs.replay is not None:
        replay = wiring.replay(0)
        for _ in range(20):
            fragments = sampler.take(1)
            replay.add(fragments[0])
            sampler.free(fragments)
        return [replay.sample(wiring.needs.columns, Clock()) for _ in range(count)]
    for _ in range(count):
        fragments = sampler.take(wiring.needs.columns // sampler.columns)
        taken.append(stack_columns([f.batch for f in fragments]).clone())
        sampler.free(fragments)
    return taken


def words_of_metrics(algorithm):
    """The words of the Metrics sections of an algorithm's file, of those that it is a variant of, and of the algorithm
    inside. Numbers at the end of a word, or an N, are left out: there are as many as there are steps."""
    texts = [sys.modules[kind.__module__].__doc__ or "" for kind in type(algorithm).__mro__]
    told = " ".join(text.partition("Metrics:")[2].partition("Checked:")[0] for text in texts)
    inner = getattr(algorithm, "inner", None)
    words = {numberless(word) for word in re.findall(r"\w+", told)}
    return words | (words_of_metrics(inner) if inner is not None else set())


def numberless(name):
    return re.sub(r"_(\d+|N)$", "", name)


# docs/faq.md explains it for all.
OF_ALL = {"skipped_updates"}


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True))


# Algorithms that take any action do not know which networks and spaces they have. The fast suite tries all of these
# cases with three of them, which hold their policies in different ways: ppo, appo with its target policy, and bc, which
# draws sequences. The slow suite tries them with all.
STAND_FOR_ALL = ("ppo", "appo", "bc")
OF_MODELS = ("lstm", "every space", "masked", "gtrxl, two trunks", "autoregressive", "gru, two trunks", "beta", "squashed")
# Of images, they are tried with those that reward what is new too, which have networks of their own.
SEE_IMAGES = (*STAND_FOR_ALL, "icm", "rnd", "re3")


def case_of(algo: str, case: str):
    again = algo in ANY_ACTION and algo not in STAND_FOR_ALL and case in OF_MODELS
    again = again or (case == "every space with an image" and algo in ANY_ACTION and algo not in SEE_IMAGES)
    return pytest.param(algo, case, marks=[pytest.mark.slow] if again else [])


@pytest.mark.parametrize("algo, case", [case_of(algo, case) for algo in options("algo") for case in CASES if fits(algo, case)])
def test_the_same_seed_gives_the_same_weights_and_a_restored_one_the_next_update(typed, algo, case):
    wiring, first, sampler = start(typed, algo, *CASES[case])
    data = batches(wiring, sampler, 3)
    _, second, _ = start(typed, algo, *CASES[case])
    initial = {k: v.clone() for k, v in first.state_dict().items()}
    for made in (first, second):
        for number, batch in enumerate(data[:2]):
            metrics = made.update(batch, Clock(100 * number, number)).metrics
            assert all(torch.isfinite(torch.as_tensor(float(v))) for v in metrics.values())
    assert {numberless(name) for name in metrics} <= words_of_metrics(first) | OF_ALL
    assert same(first, second) and any(not torch.equal(initial[k], v) for k, v in first.state_dict().items())
    _, third, _ = start(typed, algo, *CASES[case], "seed=9")
    assert not same(first, third)
    third.load_state(copy.deepcopy(first.state()))  # a deep copy shares no memory, as with a file
    for made in (first, third):
        made.update(data[2], Clock(200, 2))
    assert same(first, third)


@pytest.mark.parametrize(
    "algo, case", [(algo, case) for algo in FRESH for case in ("discrete", "box") if fits(algo, case)]
)
def test_what_stands_in_dead_rows_changes_nothing(typed, algo, case):
    wiring, _, sampler = start(typed, algo, *CASES[case])
    batch = batches(wiring, sampler, 1)[0]
    valid = batch.valid.clone()
    valid[2] = False
    batch = batch.replace(valid=valid)
    dirty = {
        "reward": torch.where(valid, batch.reward, 1e6),
        **{name: torch.where(valid, batch[name], torch.nan) for name in ("log_prob",) if name in batch},
        "action": torch.where(
            valid if batch.action.ndim == 2 else valid[..., None], batch.action, torch.ones_like(batch.action)
        ),
        "terminated": torch.where(valid, batch.terminated, True),
    }
    results = []
    for changed in (batch, batch.replace(**dirty)):
        _, made, _ = start(typed, algo, *CASES[case])
        made.update(changed, Clock())
        results.append(made)
    assert same(*results)
    seen = batch.obs.observation.clone()
    seen[2] += 1.0
    _, other, _ = start(typed, algo, *CASES[case])
    # These records belong to the observation.
    value = {name: batch[name] + ~valid for name in ("value", "q_max") if name in batch}
    other.update(batch.replace(obs=batch.obs.replace(observation=seen), **value), Clock())
    # Rows before a dead one bootstrap from its observation, except that a bandit's have nothing behind them.
    assert same(results[0], other) == (algo in BANDITS)


def identity(algo: str, env: str, bar: float):
    """Says which cases the slow suite alone runs. Algorithms that take any action see only its log probability, so PPO
    stands for all of them where actions are numbers. World models need a minute to learn choices, and a third of that
    to learn numbers, so the fast suite lets them learn numbers. Where other tests reach the same bar with the runners of
    a3c and apex, and with ddppo's learners as ppo's, it leaves these out."""
    again = algo in (*DREAMING, "a3c", "apex", "ddppo")
    if env != "rlrun/Identity-v0":
        again = algo in ANY_ACTION and algo != "ppo"
    return pytest.param(algo, env, bar, marks=[pytest.mark.slow] if again else [])


@pytest.mark.parametrize("algo, env, bar", [*(identity(algo, "rlrun/Identity-v0", 18.0) for algo in DISCRETE if algo != "bc"),
                                            *(identity(algo, "rlrun/IdentityBox-v0", -3.0) for algo in BOX if algo != "bc")])  # fmt: skip
def test_naming_what_is_seen_is_learnt(typed, tmp_path, algo, env, bar):
    """The best return is 20. A random policy gets 5, or about -17 with continuous actions. bc learns it from data, in
    test_offline.py."""
    words = [
        "resources=debug",
        "logger=[]",
        f"env={env}",
        f"env_steps={20000 if algo == 'dreamerv3' else 150000}",
        f"stop.return_mean={bar}",
        "episode_window=20",
        "log_every_sec=0.01",
    ]
    _, job, rows = run_wired(Wired(typed(*small(algo, "quick"), *words)), tmp_path)
    assert next(row["sample/return_mean"] for row in rows if row["sample/return_mean"] is not None) < bar
    assert job.status == "STOPPED" and job.episodes.mean >= bar


def unsaved(x, saved: set[int], path: str = "", seen: set[int] | None = None) -> dict[str, object]:
    """Returns {path: value} of everything reachable from x that state() does not save.

    saved holds the ids of parameters and buffers."""
    seen = set() if seen is None else seen
    if (
        id(x) in saved
        or id(x) in seen
        or isinstance(x, Optimizer | torch.Generator | type)
        or (callable(x) and not isinstance(x, torch.nn.Module))
    ):
        return {}
    if x is None or isinstance(x, bool | int | float | str | bytes):
        return {path: x}
    if isinstance(x, torch.Tensor | np.ndarray):
        return {path: torch.as_tensor(x).detach().clone().flatten().tolist()}
    seen.add(id(x))
    if isinstance(x, Mapping):
        parts = list(x.items())
    elif isinstance(x, list | tuple | deque):
        parts = list(enumerate(x))
    elif isinstance(x, set | frozenset):
        return {path: repr(sorted(map(repr, x)))}
    else:
        parts = (
            [(name, value) for name, value in vars(x).items() if not name.endswith("_hooks")]
            if hasattr(x, "__dict__")
            else []
        )
    return {k: v for name, value in parts for k, v in unsaved(value, saved, f"{path}.{name}", seen).items()}


def changed_by_an_update(made, batch) -> list[str]:
    saved = {id(t) for t in [*made.parameters(), *made.buffers()]}
    before = unsaved(made, saved)
    made.update(batch, Clock())
    after = unsaved(made, saved)
    return [path for path in before.keys() | after.keys() if before.get(path) != after.get(path)]


@pytest.mark.parametrize("algo", ROWS)
def test_everything_that_changes_is_saved(typed, algo):
    """Only parameters, buffers, Optimizers and Generators may change: a checkpoint would lose anything else."""
    wiring, made, sampler = start(
        typed, algo, f"env={simple(algo)}", *(["model=lstm", "model.memory.size=4"] if algo in MEMORY else [])
    )
    batch = batches(wiring, sampler, 1)[0]
    writes = made.update(batch, Clock()).writes or {}  # What the first update creates is allowed.
    if wiring.needs.replay is not None:
        assert ("priority" in writes) is wiring.needs.replay.priorities
    assert changed_by_an_update(made, batch) == []
    update = made.update
    name, net = next(made.policy.named_children())

    def forgetful(batch, clock):
        made.policy.history["seen"].append(np.ones(2))
        net.count = getattr(net, "count", 0) + 1
        return update(batch, clock)

    made.policy.history, made.update = {"seen": deque()}, forgetful
    assert sorted(changed_by_an_update(made, batch)) == [
        f"._modules.policy._modules.{name}.count",
        "._modules.policy.history.seen.0",
    ]


@pytest.mark.parametrize(
    "algo", [pytest.param(algo, marks=[] if algo in STAND_FOR_ALL else [pytest.mark.slow]) for algo in ANY_ACTION]
)
@pytest.mark.parametrize(
    "memory", [["model=lstm", "model.memory.size=4"], GTRXL, [*GTRXL, "model.memory.layers=2", "model.memory.length=9"]]
)
def test_recurrent_state_is_what_unrolling_reproduces(typed, algo, memory):
    """Acting row by row, with state carried over fragments, sees the same past as learning from whole fragments."""
    wiring, made, sampler = start(typed, algo, "env=CartPole-v1", *memory, also=("log_prob",))
    for parameter in made.policy.parameters():  # large enough to make the past matter
        torch.nn.init.normal_(parameter, 0.0, 0.5, generator=torch.Generator().manual_seed(parameter.numel()))
    for batch in batches(wiring, sampler, 12):
        dist, _ = made.policy.unroll(batch)[:2]
        torch.testing.assert_close(
            dist[:-1].log_prob(batch.action)[batch.valid], batch.log_prob[batch.valid], atol=1e-5, rtol=1e-5
        )
