"""evaluate, watch, explain and benchmark, on a run that was actually trained."""

import copy
import json
import weakref
from pathlib import Path

import numpy as np
import pytest
import yaml
from conftest import SMALL, compose
from wired import checked

import rlrun.bench.replay
from rlrun.cli import _dispatch
from rlrun.config import saved
from rlrun.config.run import type_config
from rlrun.config.signature import sign
from rlrun.config.types import save_yaml
from rlrun.core.errors import RunFailed, UserError
from rlrun.replay.layout import PrioritizedReplayConfig, ReplayConfig
from rlrun.runtime import session
from rlrun.runtime.rundir import RunDir

SMALL_REPLAY = ["logger=[]", "resources=debug", "model.hidden=[8]", "replay.capacity=500", "algo.inner.learning_starts=50", "algo.inner.num_envs=2",
                "algo.inner.fragment_length=10", "algo.inner.batch_size=16"]  # fmt: skip


def trained(path, *words):
    values = compose("algo=impala", *SMALL, f"run_dir={path}", "env_steps=100", *words)
    directory = RunDir.create(path)
    save_yaml(values, path / "config.yaml")
    assert session.run(checked(type_config(values)), values, directory, None) == 0
    return path


@pytest.fixture(scope="module")
def pong(tmp_path_factory):
    pytest.importorskip("ale_py")
    return trained(tmp_path_factory.mktemp("pong") / "run", "env=Pong", "env.size=42", "env.max_frames=400")


@pytest.fixture(scope="module")
def identity(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("identity") / "run", "env=rlrun/Identity-v0")


def test_evaluate_plays_the_number_of_games_asked_for_and_repeats(identity, capsys):
    results = []
    for words in (["episodes=13"], ["episodes=13"], ["episodes=13", "seed=1"], ["episodes=13", "greedy=false"]):
        assert _dispatch(["evaluate", str(identity), *words, "--json"]) == 0
        results.append(json.loads(capsys.readouterr().out))
    first, again, other, sampled = (r["returns"] for r in results)
    assert len(first) == 13 and first == again and first != other and first != sampled
    assert results[0]["return_mean"] == pytest.approx(sum(first) / 13) and results[0]["episode_length_mean"] == 20
    low, high = results[0]["return_mean_95"]
    assert low <= results[0]["return_mean"] <= high


@pytest.mark.parametrize(
    "word, said",
    [("episodes=0", "at least 1"), ("episodess=3", "Did you mean episodes"), ("checkpoint=77", "no checkpoint")],
)
def test_evaluate_refuses_with_a_sentence(identity, word, said):
    with pytest.raises(UserError, match=said):
        _dispatch(["evaluate", str(identity), word])


def test_short_episodes_are_not_counted_more_often():
    """One of two columns has episodes a tenth as long. Each column must play its quota, not whichever ends first."""
    from types import SimpleNamespace

    import numpy as np
    import torch

    from rlrun.core.env import Step
    from rlrun.core.schedule import Clock
    from rlrun.core.seeding import Seeds
    from rlrun.samplers.evaluator import Evaluator

    class Uneven:
        spec = SimpleNamespace(columns_per_env=1, counts=np.ones(1, dtype=bool), joint=False, agents=None, max_episode_steps=None)
        count = 2
        lengths = np.array([3, 30])

        def reset(self, generation):
            self.t = np.zeros(2, dtype=int)
            return {"observation": np.zeros((2, 1), dtype=np.float32)}

        def step(self, action):
            self.t += 1
            began = self.t > self.lengths
            self.t[began] = 0
            ends = self.t == self.lengths
            return Step(
                {"observation": np.zeros((2, 1), dtype=np.float32)},
                (~began).astype(np.float32),
                ends,
                ends & False,
                ~began,
                began,
                {},
            )

    from counting import CountingPolicy

    made = Evaluator(lambda worker, count: Uneven(), 2, Seeds(0))
    assert sorted(ret for ret, _ in made.play(CountingPolicy(), 6, "greedy", Clock())) == [3.0] * 3 + [30.0] * 3
    assert isinstance(CountingPolicy().weight, torch.nn.Parameter)


def test_watch_writes_a_film_that_plays(pong, capsys):
    imageio_ffmpeg = pytest.importorskip("imageio_ffmpeg")
    assert _dispatch(["watch", str(pong), "max_steps=30"]) == 0
    movie = next((pong / "videos").glob("*.mp4"))
    reader = imageio_ffmpeg.read_frames(str(movie))
    meta = next(reader)
    frames = list(reader)
    assert meta["codec"] == "h264" and meta["fps"] == pytest.approx(15) and meta["size"] == (320, 420)
    assert 28 <= len(frames) <= 32 and len(set(frames)) > 5, "the picture moves"
    assert next((pong / "videos").glob("*.gif")).stat().st_size > 1000


def test_watch_keeps_no_frames_and_leaves_nothing_when_it_is_interrupted(pong, monkeypatch):
    imageio_ffmpeg = pytest.importorskip("imageio_ffmpeg")
    from rlrun.commands import watch

    made, write, held, most = watch.drawn_env, imageio_ffmpeg.write_frames, [], 0

    def drawn_env(trained, seeds):
        drawn = made(trained, seeds)
        drawn.mirror.close()
        return drawn._replace(frame=picture, mirror=None)

    def picture():
        nonlocal most
        frame = np.full((64, 64, 3), len(held), np.uint8)
        held.append(weakref.ref(frame))
        most = max(most, sum(one() is not None for one in held))
        return frame

    def interrupted(*words, **options):
        writer = write(*words, **options)
        yield writer.send(None)
        for _ in range(20):
            yield writer.send(np.zeros((448, 448, 3), np.uint8))
        writer.close()
        raise KeyboardInterrupt

    monkeypatch.setattr(watch, "drawn_env", drawn_env)
    monkeypatch.setattr(watch, "GIF_FRAMES", 4)
    assert _dispatch(["watch", str(pong), "max_steps=30", "seed=5"]) == 0
    assert len(held) == 30 and most <= 4 + 2, "the gif's frames, and the newest two"
    before = sorted((pong / "videos").iterdir())
    assert {file.suffix for file in before if "seed5" in file.name} == {".mp4", ".gif"}
    monkeypatch.setattr(imageio_ffmpeg, "write_frames", interrupted)
    with pytest.raises(KeyboardInterrupt):
        _dispatch(["watch", str(pong), "max_steps=30", "seed=6"])
    assert sorted((pong / "videos").iterdir()) == before


@pytest.mark.parametrize("count", [1, 1000])
def test_a_film_on_a_full_disk_is_a_sentence(count):
    pytest.importorskip("imageio_ffmpeg")
    from rlrun.commands.watch import Film

    with pytest.raises(RunFailed, match="could not be written to its end"), Film(Path("/dev/full"), 0) as film:
        for _ in range(count):
            film.show(np.zeros((480, 480, 3), np.uint8), 30.0)


def test_watch_draws_gymnasium_environments(tmp_path):
    pytest.importorskip("pygame")
    pytest.importorskip("imageio_ffmpeg")
    path = trained(tmp_path / "run", "env=CartPole-v1")
    assert _dispatch(["watch", str(path), "gif=false"]) == 0
    assert next((path / "videos").glob("*.mp4")).stat().st_size > 1000 and not list((path / "videos").glob("*.gif"))


def measures_briefly(monkeypatch):
    """Lets a measurement be too short to say what a speed is: here it is only asked what is measured."""
    monkeypatch.setattr("rlrun.bench.parts.PART_SEC", 0.05)
    monkeypatch.setattr("rlrun.bench.arguments.SHORTEST", 1.0)


def test_throughput_prints_parts_bound_and_ratio(tmp_path, capsys, monkeypatch):
    measures_briefly(monkeypatch)
    file = tmp_path / "result.json"
    words = [
        "algo=impala",
        "env=CartPole-v1",
        "algo.fragment_length=5",
        "algo.batch_size=20",
        "resources.inference=local",
        "resources.num_samplers=1",
    ]
    assert _dispatch(["benchmark", "throughput", *words, "seconds=1.5", "--json", str(file)]) == 0
    result = json.loads(file.read_text())
    assert {"bound", "reached", "ratio", "parts"} <= set(result)
    parts = result["parts"]
    assert set(parts) == {"env", "inference", "learning"}
    assert result["bound"] == pytest.approx(result["cores"] / sum(1 / rate for rate in parts.values()))
    assert result["reached"] > 100 and result["ratio"] == pytest.approx(result["reached"] / result["bound"])
    updates = result["updates"]  # one for every 20 env steps
    assert updates["bound"] == pytest.approx(result["bound"] / 20) and updates["learning"] >= parts["learning"] / 20 * 0.999
    assert 0.3 < updates["reached"] / (result["reached"] / 20) < 3.0
    assert "bound of" in capsys.readouterr().out and result["memory_pss_mb"] > 100
    monkeypatch.undo()
    with pytest.raises(UserError, match="seconds must be a number of at least 5"):
        _dispatch(["benchmark", "throughput", *words, "seconds=1"])


def test_throughput_counts_an_update_by_the_env_steps_it_stands_for(tmp_path, monkeypatch):
    measures_briefly(monkeypatch)
    file = tmp_path / "result.json"
    words = [
        "algo=dqn",
        "env=CartPole-v1",
        "resources.inference=serial",
        "algo.learning_starts=100",
        "algo.batch_size=8",
        "algo.replay_ratio=2",
    ]
    assert _dispatch(["benchmark", "throughput", *words, "seconds=1.5", "--json", str(file)]) == 0
    result = json.loads(file.read_text())
    assert set(result["parts"]) == {"env", "inference", "learning", "replay"} and 0.2 < result["ratio"] < 1.3
    assert (
        result["learning_alone"].keys() == {"learning"}
        and result["of_learning_alone"] == result["reached"] / result["parts"]["learning"]
    )


def test_throughput_says_what_threads_are_worth(tmp_path, capsys, monkeypatch):
    measures_briefly(monkeypatch)
    monkeypatch.setattr("rlrun.machine.machine.cores", lambda: 2)
    file = tmp_path / "result.json"
    words = [
        "algo=dqn",
        "env=CartPole-v1",
        "resources.inference=serial",
        "algo.learning_starts=100",
        "algo.batch_size=128",
        "algo.replay_ratio=64",
    ]
    assert _dispatch(["benchmark", "throughput", *words, "seconds=1.5", "--json", str(file)]) == 0
    result = json.loads(file.read_text())
    parts, alone = result["parts"], result["learning_alone"]
    assert set(parts) == {"env", "inference", "learning", "replay"}, (
        "measurements with more threads do not enter the bound"
    )
    assert alone.keys() == {"learning, 2 threads"} and "learning, 2 threads" in capsys.readouterr().out
    assert result["of_learning_alone"] == pytest.approx(result["reached"] / max(parts["learning"], *alone.values()))


def test_throughput_of_evolution(tmp_path, monkeypatch):
    measures_briefly(monkeypatch)
    file = tmp_path / "result.json"
    batch = ["algo.episodes_per_batch=8", "algo.env_steps_per_batch=0"]
    words = ["algo=es", "env=CartPole-v1", "resources.inference=serial", "algo.noise_size=100000", *batch]
    assert _dispatch(["benchmark", "throughput", *words, "seconds=1.5", "--json", str(file)]) == 0
    result = json.loads(file.read_text())
    parts = result["parts"]
    assert set(parts) == {"env", "inference", "learning"} and result["bound"] == pytest.approx(
        1 / sum(1 / rate for rate in parts.values())
    )
    assert result["reached"] > 10 and result["policy_lag"] == 0


def test_throughput_of_a_replay_that_never_fills_is_refused(tmp_path, monkeypatch):
    measures_briefly(monkeypatch)
    monkeypatch.setattr("rlrun.bench.throughput.FILL_SEC", 1.0)
    words = [
        "algo=dqn",
        "env=CartPole-v1",
        "resources.inference=serial",
        "algo.learning_starts=49000",
        "replay.capacity=50000",
    ]
    with pytest.raises(UserError, match=r"0 updates .* algo.learning_starts=49000"):
        _dispatch(["benchmark", "throughput", *words, "seconds=2.5"])


def test_the_replay_alone_is_measured(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("rlrun.bench.replay.SECONDS", 0.05)
    file, made = tmp_path / "result.json", []
    plain = rlrun.bench.replay.Replay
    monkeypatch.setattr("rlrun.bench.replay.Replay", lambda cfg, *rest: made.append(type(cfg)) or plain(cfg, *rest))
    words = ["capacity=3000,4000", "replay.alpha=0.7", "--json", str(file)]
    assert _dispatch(["benchmark", "replay", *words]) == 0
    cells = json.loads(file.read_text())["cells"]
    assert [(cell["name"], cell["capacity"]) for cell in cells] == [
        (name, size) for size in (3000, 4000) for name in ("uniform", "prioritized")
    ]
    assert made == [ReplayConfig, PrioritizedReplayConfig] * 2
    assert all(
        cell["adds"] > 0 and min(cell["draws"].values()) > 0 and cell["planned_gb"] > 3000 * 7056e-9 for cell in cells
    )
    assert "rows stored/s" in capsys.readouterr().out
    with pytest.raises(UserError, match="at least 2000 rows"):
        _dispatch(["benchmark", "replay", "capacity=10"])
    for word in ("replay.capacity=3000", "env=Pendulum-v1", "replay=prioritized"):
        with pytest.raises(UserError, match=f"{word}: benchmark replay takes capacity=ROWS"):
            _dispatch(["benchmark", "replay", word])


def test_an_env_that_cannot_be_made_is_a_sentence():
    with pytest.raises(UserError, match="cannot be made"):
        _dispatch(["train", "algo=impala", "env=rlrun/Identity-v0", "env.kwargs.nn=3"])


def test_explain_shows_what_an_algorithm_is_based_on_and_what_is_inside(capsys):
    assert _dispatch(["explain", "a3c"]) == 0
    said = capsys.readouterr().out
    assert (
        "A2C: synchronous" in said
        and "Options of a2c" in said
        and "async_gradients" in said
        and "explained_variance" in said
    )
    assert _dispatch(["explain", "icm"]) == 0
    said = capsys.readouterr().out
    assert "algo@algo.inner=<name>" in said and "algo.inner.discount" in said and "Options of its runner" in said


def test_a_run_that_is_older_than_some_options_goes_on(tmp_path, capsys):
    run = tmp_path / "run"
    words = ["algo=apex", "runner=replay", "env=CartPole-v1", *SMALL_REPLAY, "env_steps=300", f"run_dir={run}"]
    assert _dispatch(["train", *words]) == 0
    values = yaml.safe_load((run / "config.yaml").read_text())
    whole = copy.deepcopy(values)
    assert values["algo"]["inner"].pop("input_priorities") and not values["algo"]["inner"]["head"].pop("encoder_layer")
    values["model"].pop("layer_norm")
    values.pop("callbacks")
    (run / "config.yaml").write_text(yaml.safe_dump(values))
    sign(run / "config.yaml")
    capsys.readouterr()
    assert _dispatch(["resume", str(run), "env_steps=600"]) == 0
    said = capsys.readouterr().err
    assert "is older than" in said and all(
        name in said for name in ("algo.inner.input_priorities", "algo.inner.head.encoder_layer", "model.layer_norm")
    )
    assert yaml.safe_load((run / "config.yaml").read_text()) == {**whole, "env_steps": 600}
    values["algo"]["inner"]["head"]["dueling_at_last"] = True
    (run / "config.yaml").write_text(yaml.safe_dump(values))
    with pytest.raises(UserError, match=r"no option algo.inner.head.dueling_at_last"):
        _dispatch(["evaluate", str(run)])


def test_defaults_of_old_runs_are_those_of_their_own_groups():
    pong = compose("algo=dqn", "env=Pong", "resources=debug")
    assert pong["algo"].pop("reward_clip") == "sign" and pong["checkpoint"].pop("every_sec", 0) is None
    filled = saved.defaults_of(pong)
    assert filled["algo"]["reward_clip"] == "sign" and filled["checkpoint"]["every_sec"] is None and "env" not in filled
    own = compose("algo=dqn", "env=CartPole-v1")
    own["algo"] |= {"name": "my_dqn", "module": "my_rl.my_dqn"}
    assert "algo" not in saved.defaults_of(own) and "model" in saved.defaults_of(own)


def test_explain_says_the_outer_algorithms_runner_and_names(capsys):
    assert _dispatch(["explain", "apex"]) == 0
    said = capsys.readouterr().out
    assert "name: distributed_replay" in said and "num_shards: 1" in said
    (row,) = [line for line in said.splitlines() if line.split()[:1] == ["optimizer_class"]]
    assert "AsyncReplayOptimizer is runner=distributed" in row
