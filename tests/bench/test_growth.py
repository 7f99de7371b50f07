"""rlrun benchmark growth: points that every run accepts, the knee, and the sentence about it."""

import json

import pytest

from rlrun.bench.growth import Setting, axes, doubling, explained, impossible, knee, main, setting_of, table
from rlrun.core.errors import UserError


def result(reached, **more):
    made = {"reached": reached, "bound": 2 * reached, "ratio": 0.5, "cores": 2, "memory_pss_mb": 900.0, "policy_lag": 1.5, "learner_time": {"wait": 0.0},
            "parts": {"env": 1000.0, "inference": 4000.0, "learning": 500.0}, "resources": {"inference": "local"}}  # fmt: skip
    return made | more


def test_doubling_ends_where_it_is_told():
    assert (
        doubling(1, 256) == [1, 2, 4, 8, 16, 32, 64, 128, 256]
        and doubling(1, 6) == [1, 2, 4, 6]
        and doubling(1, 1) == [1]
    )


def test_the_knee_is_the_first_that_is_nearly_the_best():
    assert (
        knee([100.0, 180.0, 195.0, 200.0, 190.0]) == 1 and knee([50.0, None, 10.0]) == 0 and knee([None, None]) is None
    )
    assert knee([10.0, 20.0, 40.0, 80.0]) == 3


def test_what_holds_a_run_is_said():
    assert explained(result(400.0)) == "the learner never waits; 50% of what 2 cores can do, of which learning is 62%"
    assert explained(result(400.0, learner_time={"wait": 0.4})).startswith(
        "the learner waits 40% of its time for samplers"
    )
    assert explained(result(400.0, resources={"inference": "serial"})).startswith("one process does all in turn")


def test_the_table_marks_the_knee_and_keeps_what_failed():
    rows = [
        {"label": "1", "result": result(100.0)},
        {"label": "2", "result": result(190.0)},
        {"label": "4", "failed": "not here"},
    ]
    said = table("sampler processes", rows)
    assert next(line for line in said.splitlines() if "knee" in line).split()[:2] == ["2", "190"]
    assert "not here" in said and said.splitlines()[-1].startswith("Knee at 2: ")


MADE = Setting(rows=50, columns=10, minibatch=1, replay=False, image=True, cores=2, inner=False, inference="local", learners=1, samplers=2, groups=1,
               every_process_learns=False)  # fmt: skip
LOCAL = "resources.inference=local"


@pytest.mark.parametrize(
    "algo, words, replay",
    [
        ("impala", [], False),
        ("ppo", [LOCAL], False),
        ("ppo", [LOCAL, "resources.num_learners=2"], False),
        ("dqn", [LOCAL], True),
        ("dqn", ["resources.inference=serial"], True),
        ("apex", [], True),
        ("icm", [LOCAL], False),
        ("ddppo", [], False),
    ],
)
def test_every_point_is_a_run_that_can_be(typed, algo, words, replay):
    """Each point is planned as rlrun train would plan it, and differs from the others only in what its axis changes."""
    from wired import Wired

    base = [f"algo={algo}", "env=CartPole-v1", *words]
    setting = setting_of(base)
    assert setting.replay == replay and not setting.image
    found = axes(setting._replace(cores=2))
    assert ("learners" in found) != setting.every_process_learns
    if algo == "apex":
        (more,) = (point for point in found.pop("learners") if point.label == "2")
        assert "has one learner" in impossible([*base, *more.words])
    for name, points in found.items():
        made = [Wired(typed(*base, *point.words)) for point in points]
        if name == "samplers":
            assert [one.resources.num_samplers for one in made] == [int(point.label) for point in points]
        elif name == "learners":
            assert [one.resources.num_learners for one in made] == [int(point.label) for point in points] == [1, 2]
            assert len({one.resources.num_samplers for one in made}) <= 1 + (setting.samplers == 1)
        else:
            assert (
                len({(one.resources.inference, one.resources.num_learners, one.resources.num_samplers) for one in made})
                == 1
            )
        if name == "envs":
            assert [one.resources.envs_per_group for one in made] == [int(point.label) for point in points]
        if name == "fragment":
            assert [one.plan.fragment_rows for one in made] == [int(point.label) for point in points]


def test_envs_and_rows_are_what_the_axis_says():
    found = axes(MADE)
    assert [point.label for point in found["samplers"]] == ["1", "2", "4"]
    words = dict(word.split("=", 1) for word in next(point for point in found["envs"] if point.label == "64").words)
    assert words["resources.envs_per_sampler"] == "64" and int(words["algo.batch_size"]) % (64 * 50) == 0
    rows = dict(word.split("=", 1) for word in next(point for point in found["fragment"] if point.label == "100").words)
    assert rows["algo.fragment_length"] == "100" and int(rows["algo.batch_size"]) == 600, (
        "about as many rows as before, shared among the samplers"
    )


def test_models_of_images_are_options_that_exist(typed):
    points = axes(MADE)["model"]
    sizes = [
        (made.run.model.encoder, made.env.size)
        for made in (typed("algo=impala", "env=Pong", *point.words) for point in points)
    ]
    assert len(set(sizes)) == 3 and sizes[0][1] == 42


def test_the_command_measures_prints_and_draws(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["rlrun"])
    asked = []

    def measure(words, seconds):
        asked.append(words)
        return "no room" if "resources.num_samplers=1" in words else result(100.0 * len(asked))

    words = [
        "algo=impala",
        "env=CartPole-v1",
        "--axes",
        "samplers,model",
        "--seconds",
        "6",
        "--json",
        str(tmp_path / "g.json"),
        "--plot",
        str(tmp_path / "g.png"),
    ]
    assert main(words, measure) == 0
    assert all(words[:2] == ["algo=impala", "env=CartPole-v1"] for words in asked)
    said = capsys.readouterr().out
    assert "no room" in said and said.count("Knee at") == 1  # models have no order and so no knee
    told = json.loads((tmp_path / "g.json").read_text())
    assert list(told["axes"]) == ["samplers", "model"] and (tmp_path / "g.png").stat().st_size > 5000


@pytest.mark.parametrize(
    "words, said",
    [
        (["--axes", "sampler"], "Did you mean samplers"),
        (["--seconds", "2"], "at least 5"),
        (["--seconds", "0"], "at least 5"),
        (["--seconds", "nan"], "at least 5"),
        (["--seconds", "inf"], "a number of at least 5"),
        (["--axes", ""], "--axes needs a value"),
        (["--plot="], "--plot needs a value"),
        (["algo=es", "env=CartPole-v1"], "has none of these axes"),
        (["algo=ddppo", "env=CartPole-v1", "--axes", "envs,learners"], "every process of this algorithm learns"),
        (["algo=impala", "env=Pongg"], "Did you mean Pong"),
        (["env=CartPole-v1", "--json", "/nowhere/g.json"], "--json /nowhere/g.json: there is no such folder"),
        (["env=CartPole-v1", "--json", "/"], "--json '/': this is not the name of a file"),
        (["env=CartPole-v1", "--plot", "g.gif"], "must end with .png or .svg"),
    ],
)
def test_what_cannot_be_is_said_before_anything_is_measured(words, said, monkeypatch):
    monkeypatch.setattr("sys.argv", ["rlrun"])
    with pytest.raises(UserError, match=said):
        main(words, lambda *_: pytest.fail("measured"))
