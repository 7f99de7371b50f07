import pytest

from rlrun.core.errors import UserError
from rlrun.experiments.grid import Interval, Variation, grid, job_name, parse


def test_every_combination_is_a_job_and_the_last_word_varies_fastest():
    space = parse(
        [
            "algo=ppo,impala",
            "env_steps=1e4",
            "seed=range(1,4)",
            "logger=[]",
            "algo.lr={start: 1e-3, end: 0, steps: 100}",
        ]
    )
    assert (
        space.fixed == ("env_steps=1e4", "logger=[]", "algo.lr={start: 1e-3, end: 0, steps: 100}")
        and not space.intervals
    )
    words = [[variation.word for variation in job] for job in grid(space.choices)]
    assert words == [[f"algo={algo}", f"seed={seed}"] for algo in ("ppo", "impala") for seed in (1, 2, 3)]


def test_one_run_is_a_grid_too():
    assert grid(parse(["algo=ppo"]).choices) == [()]


def test_lists_and_quoted_commas_are_single_values():
    space = parse(["algo.head.hidden=[256],[512]", "algo.n_step=[2,5]", "env.name='a,b'"])
    assert space.choices == {"algo.head.hidden": ["[256]", "[512]"]} and space.fixed == (
        "algo.n_step=[2,5]",
        "env.name='a,b'",
    )


def test_names_of_classes_keep_their_colon():
    space = parse(["env=CartPole-v1,mine.envs:Maze", "model.encoder=a.b:C,auto", "callbacks=[a.b:D],[]"])
    assert list(space.choices.values()) == [["CartPole-v1", "mine.envs:Maze"], ["a.b:C", "auto"], ["[a.b:D]", "[]"]]


def test_globs_are_names_of_the_group():
    tuned = parse(["tuned=glob(impala/*)"]).choices["tuned"]
    assert "impala/cartpole" in tuned and all(name.startswith("impala/") for name in tuned) and len(tuned) > 4
    assert parse(["algo=glob([dqn,*ppo], exclude=dd*)"]).choices["algo"] == ["appo", "dqn", "ppo"]


def test_intervals_say_how_to_search():
    space = parse(
        [
            "algo.lr=tag(log, interval(1e-5, 1e-3))",
            "algo.num_epochs=int(interval(1, 8))",
            "algo.discount=interval(0.9, 1)",
            "algo.batch_size=tag(log,interval(1k,0.1M))",
        ]
    )
    assert space.intervals == {
        "algo.lr": Interval(1e-5, 1e-3, True, False), "algo.num_epochs": Interval(1, 8, False, True), "algo.discount": Interval(0.9, 1.0, False, False),
        "algo.batch_size": Interval(1000, 100_000, True, False),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["tuned=glob(nope/*)"], "without jobs"),
        (["seed=range(3,3)"], "without jobs"),
        (["seed=1,2", "seed=3,4"], "seed= is given twice"),
        (["seed=1,2", "seed=3"], "seed= is given twice"),
        (["seed=3", "seed=1,2"], "seed= is given twice"),
        (["seed=1,2", "++seed=3,4"], "seed= is given twice"),
        (["++seed=3", "seed=1,2"], "seed= is given twice"),
        (["seed=1,2,1"], "has 1 twice, which would run the same job twice"),
        (["seed"], "not of the form key=value"),
        (["algo.lr=glob(*)"], "needs a list of names"),
        (["algo.lr=interval(1e-3, 1e-5)"], "first number must be below its last"),
        (["algo.lr=tag(lgo, interval(0.1, 1))"], "there is no tag lgo"),
        (["algo.lr=tag(log, interval(0, 1))"], "above 0 with log"),
        (["algo.lr=interval(1e-3, inf)"], "both ends of an interval must be finite"),
        (["algo.lr=tag(log, interval(1e-3, 1e999))"], "both ends of an interval must be finite"),
        (["algo.lr=interval(-1e308, 1e308)"], "and their difference too"),
        (["algo.lr=interval(nan, 1)"], "both ends of an interval must be finite"),
    ],
)
def test_words_that_are_no_sweep(words, said):
    with pytest.raises(UserError, match=said):
        parse(words)


def test_names_of_folders():
    assert (
        job_name(3, [Variation("algo", "ppo"), Variation("env", "ALE/Pong-v5"), Variation("seed", "2")])
        == "003-ppo-ALE_Pong-v5-seed2"
    )
    assert job_name(0, []) == "000"
    assert job_name(12, [Variation("algo.lr", "0.001"), Variation("algo@algo.inner", "a2c")]) == "012-lr0.001-a2c"
    assert "/" not in job_name(1, [Variation("env", "../../x:y z")])
