"""rlrun check-env finds the mistakes of the example package's broken environments, and none in good ones."""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path
from typing import ClassVar

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from rlrun.cli import _dispatch
from rlrun.commands import check_env
from rlrun.core.plugins import only_installed
from rlrun.envs.check_report import Findings, Stop
from rlrun.envs.check_values import check_mask, check_space, draw
from rlrun.envs.misfits import misfit

EXAMPLE = Path(__file__).parents[1] / "example"


@pytest.fixture(autouse=True)
def in_the_example(monkeypatch):
    monkeypatch.chdir(EXAMPLE)
    monkeypatch.syspath_prepend(str(EXAMPLE))


def found(name: str, seconds: float = 0.5, **changes) -> dict[str, tuple[str, str, str, str]]:
    """What the checks find in this process, by the finding's short name: (kind, what, where, mend)."""
    heard = []
    report = Findings(heard.append)
    with only_installed(False):
        try:
            check_env.every(report, name, changes, seconds, 2)
        except Stop:
            pass
    made = [value for kind, value in heard if kind == "finding"]
    return {one.check: (one.kind, one.what, one.where, one.mend) for one in made}


def command(capsys, *words: str) -> tuple[int, str]:
    code = _dispatch(["check-env", *words, "seconds=0.5"])
    assert multiprocessing.active_children() == []
    return code, capsys.readouterr().out


# What the command says about each broken environment: (name and options, exit code, sentences).
BROKEN = [
    ("Old", 2, ["reset() takes no seed", "interface of Gym before 0.26", "step() returns 4 values with one `done`"]),
    ("Careless", 2, ["terminated is None (NoneType), which is no bool", "has the dtype float64, and the space promises"
                     " float32", "and the space allows -3.0 to 3.0"]),
    ("Unseeded", 2, ["the same seed does not give the same episode: the reward of step 1 differs, because it draws from"
                     " the global generator of random"]),
    ("Entangled", 2, ["instances in one process share state", "changes the observation that it returned before in place"]),
    ("Limited", 0, ["all ", " episodes ended with terminated=True after exactly 12 steps, which is the environment's"
                    " max_steps", "action_space is not bounded at [0]"]),
    ("Leaving", 2, ["it ended its process, which exited with code 7 (while it is reset and stepped for the first time)"]),
]  # fmt: skip


def look(name: str, code: int, sentences: list[str], capsys) -> None:
    got, said = command(capsys, f"my_rl.broken_envs:{name}")
    assert got == code, said
    for sentence in sentences:
        assert sentence in said
    assert said.count("\n  mend ") >= 1 and "Traceback" not in said


@pytest.mark.parametrize("name, code, sentences", BROKEN[:-1], ids=[one[0] for one in BROKEN[:-1]])
def test_the_command_says_what_is_wrong(capsys, monkeypatch, name, code, sentences):
    """With the checks in this process, because one of their own takes seconds to start."""

    def here(outcome, env, changes, seconds, silent):
        try:
            check_env.every(Findings(outcome.hear), env, changes, seconds, 2)
        except Stop:
            pass

    monkeypatch.setattr(check_env, "watch", here)
    look(name, code, sentences, capsys)


def test_the_command_survives_an_environment_that_ends_its_process(capsys):
    look(*BROKEN[-1], capsys)


@pytest.mark.slow
@pytest.mark.parametrize("name, code, sentences", BROKEN, ids=[one[0] for one in BROKEN])
def test_the_command_says_it_from_a_process_of_its_own(capsys, name, code, sentences):
    look(name, code, sentences, capsys)


def test_a_good_environment_has_no_error_and_says_its_speed(capsys):
    assert found("my_rl.broken_envs:Walk") == {}
    facts = {"steps_per_sec": 50.0, "step_sec": 0.02, "reset_sec": 0.1, "million_steps_sec": 1e4, "cores": 2}
    took = "A run of 1M steps takes at least 2.8 h on this machine's 2 cores, each with environments of its own"
    assert check_env.measured(facts)[1].strip() == f"{took}, without learning"
    code, said = command(capsys, "my_rl:Corridor-v0", "env.kwargs={length: 5}", "--json")
    told = json.loads(said)
    assert code == 0 and told["errors"] == 0 and told["warnings"] == 0 and told["measured"]["steps_per_sec"] > 0
    # Its walk is the same for every seed, which it says without calling it a mistake.
    assert [(one["kind"], one["check"]) for one in told["findings"]] == [("note", "seeds-alike")]


def test_one_that_hangs_is_ended_and_its_line_is_named(capsys):
    code, said = command(capsys, "my_rl.broken_envs:Stuck", "env.step_timeout_sec=1")
    assert code == 2 and "it hangs: it has been in step() for" in said
    line = next(n for n, text in enumerate((EXAMPLE / "my_rl/broken_envs.py").read_text().splitlines(), 1)
                if "time.sleep" in text)  # fmt: skip
    assert f"broken_envs.py, line {line}, in step" in said


def test_others_of_the_example(capsys):
    assert found("my_rl.broken_envs:Limited", **{"kwargs.nan": True})["reward-finite"][1] == "the reward is nan"
    assert "step 7 after reset(" in found("my_rl.broken_envs:Limited", **{"kwargs.nan": True})["reward-finite"][2]
    assert "1.0 is too much" in found("my_rl.broken_envs:Timid")["as-in-training"][1]
    left = found("my_rl.broken_envs:Leftover")
    assert list(left) == ["reset-leaves"] and left["reset-leaves"][0] == "warning"
    assert "leaves no legal action" in found("my_rl.broken_envs:Masked")["action-mask"][1]
    assert "is a plain class" in found("my_rl.broken_envs:Nothing")["base"][1]
    said = found("my_rl.broken_envs:Walkk")["make"][1]
    assert said.startswith("the module my_rl.broken_envs has no Walkk") and said.endswith("Did you mean Walk?")
    assert "There is no option env.max_steps" in found("my_rl.broken_envs:Walk", max_steps=3)["make"][1]
    assert "unexpected keyword argument" in found("my_rl.broken_envs:Walk", kwargs={"size": 3})["make"][1]


def test_an_environment_that_draws_from_its_own_action_space_is_found():
    said = found("my_rl.broken_envs:Opposed")["seeding"]
    assert "the same seed does not give the same episode: the reward of step" in said[1] and "spaces" in said[3]


@pytest.mark.parametrize(
    ("space", "free"),
    [
        (spaces.Box(0, np.inf, (2,), np.int64), True),
        (spaces.Box(-np.inf, 3, (2,), np.int32), True),
        (spaces.Box(0, 10, (2,), np.uint64), False),
        (spaces.Box(0, 255, (2,), np.uint8), False),
    ],
)
def test_whole_actions_without_bounds_are_told(space, free):
    report = Findings(lambda event: None)
    assert check_space(report, space, "action_space", True, "self.action_space")
    assert ("infinite-action" in report.seen) == free


@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_a_number_without_an_axis_is_drawn_as_an_action(dtype):
    space = spaces.Box(-2, 3, (), dtype)
    drawn = [draw(space, None, np.random.default_rng(seed)) for seed in range(20)]
    assert all(space.contains(one) for one in drawn) and len({float(one) for one in drawn}) > 3


@pytest.mark.parametrize("name", ["rlrun/Counting-v0", "zoo:CountingAgents"])
def test_an_environment_that_counts_its_episodes_is_no_mistake(name):
    """As a curriculum does. The other checks go on, and take no instance that has counted for one that shares state."""
    made = found(name)
    kind, what, _, mend = made["reset-leaves"]
    assert kind == "warning" and "does not put everything back" in what and "unless this is meant" in mend
    assert "shared-state" not in made and all(one[0] != "error" for one in made.values())


def test_a_mask_of_several_choices_must_leave_a_value_to_each():
    found = []
    report = Findings(lambda message: found.append(message[1].what))
    for mask, over, legal in (([1, 1, 0, 0, 0], False, False), ([0, 1, 0, 0, 1], False, True), ([0] * 5, True, False)):
        assert check_mask(report, np.array(mask), spaces.MultiDiscrete([2, 3]), over, "step 1") is legal
    assert found == ["the action_mask leaves no legal value of one of its choices, although the episode goes on"]


def test_memory_that_grows_is_said():
    kind, what, _, mend = found("my_rl.broken_envs:Growing", 5.0)["memory"]
    assert kind == "warning" and "GiB in a run of 1M steps" in what and "list" in mend


def test_agents_are_looked_at():
    assert found("my_rl.broken_envs:Pair") == {}
    assert found("zoo:NumberedAgents")["possible-agents"][1] == "possible_agents holds 0, which is no text"
    kind, what, where, _ = found("my_rl.broken_envs:Pair", kwargs={"stays": True})["agents"]
    assert (kind, what, where) == (
        "error", "first has ended and is still in self.agents", "step 4 after reset(seed=1)")  # fmt: skip


@pytest.mark.parametrize(
    "name",
    ["CartPole-v1", "Pendulum-v1", "FrozenLake-v1", "Taxi-v4", "rlrun/EverySpace-v0", "rlrun/Masked-v0",
     "ParametricActionsCartPole-v0", "TwoStepGame-v0", "TicTacToe-v0", "MultiAgentCartPole-v0", "zoo:UnlikeTuples",
     "zoo:TupleOfMasks"],
)  # fmt: skip
def test_no_false_alarm(name):
    made = found(name)
    assert not {check: one for check, one in made.items() if one[0] != "note" and check != "slow-step"}


# lbforaging's reset() places each player while the others still stand where the last game left them, so an earlier game
# can change the first observation. Whether a check meets such a game is chance, and the warning is right when it does.
@pytest.mark.parametrize("name, package, right", [
    ("tictactoe_v3", "pettingzoo", set()), ("simple_v3", "mpe2", set()), ("Pong", "ale_py", set()),
    ("Foraging-8x8-2p-3f-v3", "lbforaging", {"reset-leaves"}),
])  # fmt: skip
def test_no_false_alarm_on_other_packages(name, package, right):
    pytest.importorskip(package)
    alarms = {check for check, one in found(name).items() if one[0] != "note"}
    assert alarms <= {"slow-step"} | right


class Turns:
    """Two agents that move in turn, with PettingZoo's AEC interface; `wrong` chooses a mistake."""

    metadata: ClassVar[dict] = {"name": "turns"}
    render_mode = None
    agent_selection = ""

    def __init__(self, wrong: str = ""):
        self.wrong, self.possible_agents, self.agents = wrong, ["x", "y"], []
        self.space = spaces.Box(-1, 1, (1,), np.float32)
        self.choice = spaces.Discrete(2)
        if wrong == "state":
            self.state_space = spaces.Box(0, 1, (2,), np.float32)

    @property
    def unwrapped(self):
        return self

    def observation_space(self, agent):
        return self.space if self.wrong != "spaces" else spaces.Box(-1, 1, (1,), np.float32)

    def action_space(self, agent):
        return self.choice

    def state(self):
        return np.full(2, 7, np.float32)

    def reset(self, seed=None, options=None):
        self.agents, self.moves, self.agent_selection = list(self.possible_agents), 0, "x"
        self.rewards, self.terminations, self.truncations, self.infos = (
            dict.fromkeys(self.agents, 0.0), dict.fromkeys(self.agents, False), dict.fromkeys(self.agents, False),
            {agent: {} for agent in self.agents})  # fmt: skip

    def observe(self, agent):
        return np.full(1, 3 if self.wrong == "range" else self.moves / 10, np.float32)

    def step(self, action):
        if self.terminations[self.agent_selection]:
            if self.wrong != "bury":
                self.agents.remove(self.agent_selection)
                self.agent_selection = self.agents[0] if self.agents else ""
            return
        self.moves += 1
        self.agent_selection = "y" if self.agent_selection == "x" else "x"
        self.rewards = {"x": "much" if self.wrong == "reward" else 1.0, "y": 0.0}
        if self.moves == 6:
            self.terminations = {"x": True, "y": True}

    def render(self): ...

    def close(self): ...


@pytest.mark.parametrize("wrong, check, sentence", [
    ("", None, ""),
    ("spaces", "observation_space-changes", "makes another space each time"),
    ("range", "observation", "holds 3.0 at [0], and the space allows -1.0 to 1.0"),
    ("reward", "reward", "the reward of x is 'much' (str), which is no number"),
    ("bury", "agents", "agents that have ended are not taken out by step(None)"),
    ("state", "state", "state() holds 7.0 at [0]"),
])  # fmt: skip
def test_turns(wrong, check, sentence, monkeypatch):
    import my_rl.broken_envs as module

    monkeypatch.setattr(module, "Turns", Turns, raising=False)
    made = found("my_rl.broken_envs:Turns", kwargs={"wrong": wrong})
    if check is None:
        assert all(one[0] == "note" for one in made.values()), made
    else:
        assert sentence in made[check][1]


@pytest.mark.parametrize("told, sentence, mend", [
    ("reset", "it tells an action_mask in some of its infos, and not in this one", "tell one in every info"),
    ("one", "an environment over tuples has a mask for each agent", "tell a tuple of 2"),
])  # fmt: skip
def test_masks_of_tuples(told, sentence, mend):
    kind, what, _, mended = found("zoo:TupleOfMasks", kwargs={"told": told})["action-mask"]
    assert kind == "error" and sentence in what and mended == mend


BOX = spaces.Box(0, 1, (2,), np.float32)


@pytest.mark.parametrize("space, value, serious, sentence", [
    (BOX, np.zeros(2, np.float32), None, ""),
    (BOX, np.zeros(3, np.float32), True, "x has the shape (3,), and the space says (2,)"),
    (BOX, np.zeros(2), False, "x has the dtype float64"),
    (BOX, np.zeros(2, np.int64), False, "x has the dtype int64, and the space promises float32"),
    (BOX, [0.0, 1.0], False, "x is a list and no NumPy array"),
    (BOX, [[0.0], [1.0, 2.0]], True, "x is [[0.0], [1.0, 2.0]] (list)"),
    (BOX, np.array([0, np.nan], np.float32), True, "x holds nan at [1]"),
    (spaces.Box(-np.inf, np.inf, (2,), np.float64), np.array([0, 1e39]), True, "x holds 1e+39 at [1], and rlrun keeps observations in float32"),
    (BOX, np.array([0, 2], np.float32), True, "x holds 2.0 at [1], and the space allows 0.0 to 1.0"),
    (BOX, None, True, "x is None"),
    (spaces.Box(0, 255, (1,), np.uint8), np.zeros(1, np.float32), True, "has the dtype float32, and the space promises uint8"),
    (spaces.Discrete(3, start=1), 0, True, "x is 0, and Discrete(3, start=1) holds 1 to 3"),
    (spaces.Discrete(3), 1.0, True, "x is 1.0 (float)"),
    (spaces.MultiDiscrete([2, 3]), np.array([1, 3]), True, "x holds 3 at [1]"),
    (spaces.MultiBinary(2), np.array([0, 2]), True, "x holds 2 at [1]"),
    (spaces.Dict(a=BOX), {"b": 0}, True, "x lacks ['a'] and has ['b'] in addition"),
    (spaces.Dict(a=BOX), {"a": np.full(2, 3, np.float32)}, True, "x['a'] holds 3.0 at [0]"),
    (spaces.Tuple([BOX, BOX]), (np.zeros(2, np.float32),), True, "x has 1 parts, and the space has 2"),
])  # fmt: skip
def test_misfits(space, value, serious, sentence):
    got = misfit(space, value, "x")
    if serious is None:
        assert got is None
    else:
        assert got.serious is serious and sentence in got.what and got.mend


def space_findings(observation, action) -> dict:
    class Spaced(gymnasium.Env):
        observation_space, action_space = observation, action

    import my_rl.broken_envs as module

    module.Spaced = Spaced
    try:
        return found("my_rl.broken_envs:Spaced")
    finally:
        del module.Spaced


@pytest.mark.parametrize("observation, action, check, sentence", [
    (None, spaces.Discrete(2), "observation-space", "observation_space is None"),
    (BOX, [0, 1], "action-space", "action_space is [0, 1], which is no Gymnasium space but a list"),
    (BOX, spaces.Box(np.array([1, 0], np.float32), np.array([1, 1], np.float32)), "action-bounds", "has the lowest value 1.0 as its highest at [0]"),
    (spaces.Box(0, 1, (0,)), spaces.Discrete(2), "observation-bounds", "holds no numbers"),
    (spaces.Sequence(BOX), spaces.Discrete(2), "supported-space", "rlrun takes Box, Discrete"),
    (spaces.Dict({0: BOX, 1: BOX}), spaces.Discrete(2), "supported-space", "with 0 as the name of a part"),
])  # fmt: skip
def test_spaces(observation, action, check, sentence):
    got = space_findings(observation, action)
    assert got[check][0] == "error" and sentence in got[check][1]


def test_the_command_itself_is_used_rightly(capsys):
    from rlrun.core.errors import UserError

    with pytest.raises(UserError, match="takes one environment"):
        _dispatch(["check-env", "a:B", "c:D"])
    with pytest.raises(UserError, match="seconds must be"):
        _dispatch(["check-env", "CartPole-v1", "seconds=-1"])
    with pytest.raises(UserError, match="takes seconds= and options of the environment"):
        _dispatch(["check-env", "CartPole-v1", "algo.lr=1"])
    with pytest.raises(UserError, match="is not a flag here"):
        _dispatch(["check-env", "CartPole-v1", "--fast"])
    assert _dispatch(["check-env", "--help"]) == 0 and "rlrun check-env my_package:MyEnv" in capsys.readouterr().out
