"""Populations, where outcomes are made up instead of training runs."""

import json
import math
import shutil
from pathlib import Path

import pytest

from rlrun.commands.sweep import main as sweep
from rlrun.config.signature import sign
from rlrun.core.errors import UserError
from rlrun.experiments.grid import parse
from rlrun.experiments.outcomes import Outcome
from rlrun.experiments.population import FACTORS, PopulationTraining, bounded, fits, take_over


def allowed(words, name):
    said = dict(word.split("=", 1) for word in words)
    return {"algo": {"lr": float(said["algo.lr"]), "optimizer": {"kind": said["algo.optimizer.kind"]}}}


def values_of(job):
    return dict(word.split("=", 1) for word in job.words)


SPACE = [
    "algo=pg",
    "env=CartPole-v1",
    "env_steps=400",
    "algo.lr=tag(log, interval(1e-5, 1e-1))",
    "algo.optimizer.kind=adam,rmsprop",
]


def population(folder, count=4, every=100, steps=400, **options):
    return PopulationTraining(parse(SPACE), count, every, steps, 0, folder, options.pop("check", allowed))


def test_schedules_of_a_population_last_as_long_as_the_sweep(tmp_path):
    """A member's first job ends after a generation. Its schedules do not, whether words or an algorithm's file say so."""

    def check(words, name):
        steps = dict(word.split("=", 1) for word in words)["env_steps"]
        return {"env_steps": int(steps), "algo": {"lr": 0.1, "actor_lr": f"0.3 to 0 over {steps} cosine"}}

    space = [*SPACE[:4], "algo.entropy_coef=0.1,0.01 to 0 over ${env_steps}", "algo.value_coef=1 to 0 over ${env_steps}"]
    made = PopulationTraining(parse(space), 8, 100, 400, 0, tmp_path, check)
    jobs = [dict(word.split("=", 1) for word in made.next().words) for _ in range(8)]
    assert {job["env_steps"] for job in jobs} == {"100"}
    assert {job["algo.actor_lr"] for job in jobs} == {"'0.3 to 0 over 400 cosine'"}
    assert {job["algo.value_coef"] for job in jobs} == {"1 to 0 over 400"}
    assert {job["algo.entropy_coef"] for job in jobs} == {"0.1", r"0.01\ to\ 0\ over\ 400"}


SCORES = {"member-00": 1.0, "member-01": 9.0, "member-02": 5.0, "member-03": 4.0}


def play(supply, folder, score, fails=()):
    """Plays all jobs that the supply gives out now: each leaves a checkpoint and a config, and scores score(name).

    fails: the names of those that fail instead.
    """
    done = []
    while (job := supply.next()) is not None:
        step = int(job.resume[0].removeprefix("env_steps="))
        if job.name in fails:
            done.append((job, step))
            continue
        place = job.run_dir / "checkpoints" / f"{step:012d}"
        place.mkdir(parents=True, exist_ok=True)
        (place / "policy.pt").write_text(job.name)
        if not (job.run_dir / "config.yaml").exists():
            (job.run_dir / "config.yaml").write_text(
                json.dumps({"algo": {"lr": values_of(job)["algo.lr"], "optimizer": {"kind": "adam"}}})
            )
        done.append((job, step))
    for job, step in done:
        status = "FAILED" if job.name in fails else "COMPLETED"
        supply.done(Outcome(job=job, status=status, summary={"return_mean": score(job.name), "env_steps": step}))
    return done


def test_members_go_on_by_parts_and_the_worst_takes_over(tmp_path, capsys):
    supply = population(tmp_path)
    before = {member.name: dict(member.values) for member in supply.members}
    steps = [step for _, step in play(supply, tmp_path, SCORES.get)]
    assert steps == [100] * 4 and "member-00 (return 1.00) takes over from member-01 (9.00)" in capsys.readouterr().out
    loser, winner = supply.members[0], supply.members[1]
    assert (tmp_path / "member-00" / "checkpoints" / f"{100:012d}" / "policy.pt").read_text() == "member-01"
    ratio = loser.values["algo.lr"] / winner.values["algo.lr"]
    drawn_anew = {
        key: value for key, value in loser.values.items() if value not in (winner.values[key], before["member-00"][key])
    }
    assert loser.values != before["member-00"] and (
        any(math.isclose(ratio, factor, rel_tol=1e-4) for factor in FACTORS) or "algo.lr" in drawn_anew
    )
    import yaml

    assert float(yaml.safe_load((tmp_path / "member-00" / "config.yaml").read_text())["algo"]["lr"]) == pytest.approx(
        loser.values["algo.lr"]
    )
    assert all(member.values == before[member.name] for member in supply.members[1:])
    for expected in (200, 300, 400):
        assert [step for _, step in play(supply, tmp_path, SCORES.get)] == [expected] * 4
    assert supply.next() is None and "member-01" in supply.best()
    assert population(tmp_path).next() is None, "a population at its end has nothing left to do"


def test_nobody_takes_over_from_a_run_that_is_at_its_end(tmp_path, capsys):
    """An update that is longer than a generation may end the run early. Nothing would be trained with the new values."""
    supply = population(tmp_path)
    before = [dict(member.values) for member in supply.members]
    jobs = []
    while (job := supply.next()) is not None:
        place = job.run_dir / "checkpoints" / f"{405:012d}"
        place.mkdir(parents=True)
        jobs.append(job)
    for job in jobs:
        summary = {"return_mean": SCORES[job.name], "env_steps": 405}
        supply.done(Outcome(job=job, status="COMPLETED", summary=summary))
    assert "takes over" not in capsys.readouterr().out
    assert [member.values for member in supply.members] == before


def test_a_population_goes_on_where_it_was(tmp_path):
    supply = population(tmp_path)
    job = supply.next()
    (job.run_dir / "checkpoints" / f"{100:012d}").mkdir(parents=True)
    supply.done(Outcome(job=job, status="COMPLETED", summary={"return_mean": 2.0, "env_steps": 100}))
    supply.done(Outcome(job=supply.next(), status="INTERRUPTED"))
    later = population(tmp_path)
    names = []
    while (job := later.next()) is not None:
        names.append(job.name)
    assert names == ["member-01", "member-02", "member-03"] and later.members[0].score == 2.0
    (tmp_path / "population.json").write_text("{")
    with pytest.raises(UserError, match="was not written by you"):
        population(tmp_path)
    sign(tmp_path / "population.json")
    with pytest.raises(UserError, match="is damaged"):
        population(tmp_path)


def test_members_that_fail_do_not_hold_up_the_others(tmp_path):
    supply = population(tmp_path)
    jobs = [supply.next() for _ in range(4)]
    supply.done(Outcome(job=jobs[0], status="FAILED"))
    for number, job in enumerate(jobs[1:]):
        (job.run_dir / "checkpoints" / f"{100:012d}").mkdir(parents=True)
        (job.run_dir / "config.yaml").write_text(json.dumps({"algo": {"lr": 0.1, "optimizer": {"kind": "adam"}}}))
        supply.done(Outcome(job=job, status="COMPLETED", summary={"return_mean": float(number), "env_steps": 100}))
    assert {job.name for job in iter(supply.next, None)} == {"member-01", "member-02", "member-03"}


@pytest.mark.parametrize("saved", ["today", "by an earlier version"])
def test_a_failed_member_that_is_tried_again_catches_up(tmp_path, capsys, saved):
    supply = population(tmp_path)
    for fails in ((), ("member-02",), ()):  # three members end the third generation, and one only the first
        play(supply, tmp_path, SCORES.get, fails)
    if saved != "today":
        path = tmp_path / "population.json"
        path.write_text(
            json.dumps({key: one for key, one in json.loads(path.read_text()).items() if key != "exploited"})
        )
        sign(path)
    capsys.readouterr()
    later = population(tmp_path)
    for expected in (200, 300):
        assert [(job.name, step) for job, step in play(later, tmp_path, SCORES.get)] == [("member-02", expected)]
    assert "takes over" not in capsys.readouterr().out, "the third generation's takeovers are decided already"
    assert [step for _, step in play(later, tmp_path, SCORES.get)] == [400] * 4 and later.next() is None


@pytest.mark.parametrize(("status", "lost"), [("INTERRUPTED", False), ("FAILED", True)])
def test_a_population_waits_for_a_member_that_was_interrupted_or_lost(tmp_path, status, lost):
    supply = population(tmp_path)
    first, *others = iter(supply.next, None)
    supply.done(Outcome(job=first, status=status, lost=lost))
    for job in others:
        supply.done(Outcome(job=job, status="COMPLETED", summary={"return_mean": 1.0, "env_steps": 100}))
    assert supply.next() is None and population(tmp_path).next().name == first.name


@pytest.mark.parametrize(
    ("words", "count", "every", "said"),
    [
        (["algo.lr=interval(0.1,0.2)"], 1, 100, "2 or more"),
        (["algo.lr=interval(0.1,0.2)"], 4, 500, "would never take over"),
        (["algo.optimizer.kind=adam,rmsprop"], 4, 100, r"algo\.optimizer\.kind: a population can change numbers"),
        (["algo=pg,a2c"], 4, 100, "algo: a population can change numbers"),
        (["env.kwargs.x=1,2"], 4, 100, "can change numbers"),
        (["resources.num_samplers=1,2"], 4, 100, "can change numbers"),
    ],
)
def test_populations_that_make_no_sense(words, count, every, said):
    config = {
        "env_steps": 400,
        "algo": {"name": "pg", "lr": 0.1, "optimizer": {"kind": "adam"}},
        "resources": {"num_samplers": 1},
    }
    with pytest.raises(UserError, match=said):
        fits(parse(words), config, count, every)
    fits(parse(["algo.lr=interval(0.1,0.2)"]), config, 2, 400)


@pytest.mark.parametrize(
    ("algo", "values", "said"),
    [
        ("qr_dqn", ["algo.num_quantiles=4,8"], "other shapes"),
        ("ppo", ["algo.kl_coef=interval(0.2,0.4)", "algo.kl_target=0.01"], "only sets where a run begins"),
        ("sac", ["algo.target_entropy=-1,auto"], "can change numbers"),
        ("ppo", ["algo.lr=interval(1e-4,1e-3)", "algo.discount=0.9,0.99"], None),
        ("ppo", ["algo.lr=1e-3,[[0,1e-3],[400,0]]"], None),
    ],
)
def test_a_population_changes_only_what_a_resumed_run_reads_again(tmp_path, algo, values, said):
    words = [f"algo={algo}", "env=CartPole-v1", "model.hidden=[4]", "env_steps=400", "logger=[]", *values]
    flags = ["--search", "pbt", "--trials", "2", "--every", "100", "--dry-run", "--dir", str(tmp_path / "s")]
    if said is None:
        assert sweep([*words, *flags]) == 0
        return
    with pytest.raises(UserError, match=said):
        sweep([*words, *flags])


def test_members_have_seeds_of_their_own(tmp_path):
    supply = population(tmp_path)
    words = [supply.next().words for _ in range(4)]
    assert [one[-2] for one in words] == ["seed=0", "seed=1", "seed=2", "seed=3"]


@pytest.mark.parametrize("during", ["PopulationTraining.explored", "take_over", "save_config"])
def test_a_takeover_is_done_after_a_kill(tmp_path, monkeypatch, during):
    """The kill comes while it is decided, before its first step, or after the checkpoints are exchanged."""
    supply = population(tmp_path)
    monkeypatch.setattr(f"rlrun.experiments.population.{during}", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        play(supply, tmp_path, SCORES.get)
    monkeypatch.undo()
    later = population(tmp_path)
    assert (tmp_path / "member-00" / "checkpoints" / f"{100:012d}" / "policy.pt").read_text() == "member-01"
    assert later.members[0].history[-1]["took_over"] == "member-01" and later.next().resume == ("env_steps=200",)


def test_a_takeover_changes_what_follows_the_values(tmp_path):
    """An option that follows a searched one changes with it, and a schedule is written as the run reads it."""

    def check(words, name):
        lr = float(dict(word.split("=", 1) for word in words)["algo.lr"])
        return {"algo": {"lr": lr, "optimizer": {"kind": [[0, lr], [400, 0]]}, "critic_lr": lr / 2, "clip": 0.2}}

    supply = population(tmp_path, check=check)
    play(supply, tmp_path, SCORES.get)
    taken = json.loads((tmp_path / "population.json").read_text())["members"][0]["values"]["algo.lr"]
    import yaml

    algo = yaml.safe_load((tmp_path / "member-00" / "config.yaml").read_text())["algo"]
    assert algo == {"lr": taken, "critic_lr": taken / 2, "optimizer": {"kind": [[0, taken], [400, 0]]}}


def test_small_whole_numbers_move():
    interval = parse(["algo.n=int(interval(1, 9))"]).intervals["algo.n"]
    assert bounded(1 + 1, interval) == 2
    space = parse(["algo.n=int(interval(1, 9))"])
    made = PopulationTraining.__new__(PopulationTraining)
    import numpy as np

    made.space, made.rng = space, np.random.default_rng(0)
    seen = {made.explored({"algo.n": 2})["algo.n"] for _ in range(200)}
    assert {1, 3} <= seen


@pytest.mark.parametrize("log", [False, True])
def test_the_ends_of_whole_numbers_are_as_likely_as_the_others(log):
    """On a logarithmic scale, a number's share is the length of its logarithms, from half a unit below to half above."""
    import numpy as np

    made = PopulationTraining.__new__(PopulationTraining)
    made.space = parse([f"algo.n={'tag(log, int(interval(1, 4)))' if log else 'int(interval(1, 4))'}"])
    made.rng = np.random.default_rng(0)
    drawn = [made._one("algo.n") for _ in range(4000)]
    for n in (1, 2, 3, 4):
        share = math.log((n + 0.5) / (n - 0.5)) / math.log(4.5 / 0.5) if log else 0.25
        assert drawn.count(n) / len(drawn) == pytest.approx(share, abs=0.02)


def test_values_stay_within_their_interval():
    space = parse(["algo.n=int(interval(2, 5))", "algo.lr=interval(0.1, 0.2)"]).intervals
    assert (
        bounded(7.9, space["algo.n"]) == 5
        and bounded(3.4, space["algo.n"]) == 3
        and bounded(0.05, space["algo.lr"]) == 0.1
    )
    close_to_1 = parse(["algo.discount=interval(0.9, 0.9999999)"]).intervals["algo.discount"]
    assert bounded(0.99999985, close_to_1) == 0.99999985 and bounded(0.95123456, close_to_1) == 0.951235


def test_a_takeover_leaves_one_checkpoint_the_winners(tmp_path):
    for name, steps in (("winner", (100, 200)), ("loser", (100, 190))):
        for step in steps:
            place = tmp_path / name / "checkpoints" / f"{step:012d}"
            place.mkdir(parents=True)
            (place / "run.json").write_text(name)
        (tmp_path / name / "config.yaml").write_text(json.dumps({"algo": {"lr": 0.1}, "seed": name == "winner"}))
    (tmp_path / "loser" / "summary.json").write_text(json.dumps({"status": "COMPLETED", "return_mean": 9.5}))
    take_over(tmp_path / "winner", tmp_path / "loser", {"algo.lr": 0.3})
    said = json.loads((tmp_path / "loser" / "summary.json").read_text())
    assert said["status"] == "INTERRUPTED", "its return was that of weights that are gone"
    assert [path.name for path in (tmp_path / "loser" / "checkpoints").iterdir()] == [f"{200:012d}"]
    assert (tmp_path / "loser" / "checkpoints" / f"{200:012d}" / "run.json").read_text() == "winner"
    import yaml

    assert yaml.safe_load((tmp_path / "loser" / "config.yaml").read_text()) == {"algo": {"lr": 0.3}, "seed": False}


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_a_member_whose_takeover_fails_keeps_its_own(tmp_path, monkeypatch, capsys, error):
    """The error comes between the two renames of the checkpoints: a kill, after which the winner is lost too, or a disk
    that refuses."""
    rename = Path.rename

    def refuse(path, target):
        if path.name == "checkpoints.new":
            raise error
        return rename(path, target)

    supply = population(tmp_path)
    values = dict(supply.members[0].values)
    monkeypatch.setattr(Path, "rename", refuse)
    if error is OSError:
        play(supply, tmp_path, SCORES.get)
    else:
        with pytest.raises(KeyboardInterrupt):
            play(supply, tmp_path, SCORES.get)
        shutil.rmtree(tmp_path / "member-01" / "checkpoints")
        supply = population(tmp_path)
    assert (tmp_path / "member-00" / "checkpoints" / f"{100:012d}" / "policy.pt").read_text() == "member-00"
    assert json.loads((tmp_path / "member-00" / "config.yaml").read_text())["algo"]["lr"] == str(values["algo.lr"])
    assert supply.members[0].values == values and not (tmp_path / "member-00" / "checkpoints.old").exists()
    assert [job.name for job in iter(supply.next, None)] == list(SCORES)
    said = capsys.readouterr().out
    assert "member-00 could not take over" in said
    assert ("member-01 has lost its checkpoints and begins anew" in said) == (error is KeyboardInterrupt)
