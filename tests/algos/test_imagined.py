"""Open-loop predictions of a world model: by hand, as metrics and pictures of a run, and as a film."""

import json

import numpy as np
import pytest
import torch
from conftest import small
from test_dreamerv3 import begun, counted, trained, weights

from rlrun.cli import _dispatch
from rlrun.core.batch import Batch
from rlrun.core.errors import UserError
from rlrun.core.open_loop import comparable, errors, excerpt
from rlrun.loggers.imagined import ImagineConfig
from rlrun.models.world_model import State


def test_open_loop_predictions_by_hand(typed):
    """Five rows by the posterior, one after another as the policy follows them, and then the prior's rollout."""
    made, (batch,) = begun(
        typed, "algo.batch_length=20", "algo.fragment_length=4", "algo.horizon=10", "algo.online_queue=false")  # fmt: skip
    policy, rssm, context = made.policy, made.policy.rssm, 5
    assert batch.is_first[1:context].any(), "an episode ends inside the context"
    before = made.ctx.rng.get_state()
    said = made.open_loop(batch, context, torch.Generator().manual_seed(3))
    assert torch.equal(made.ctx.rng.get_state(), before), "learning draws the same numbers afterwards"
    uniform = torch.rand(21, 4, rssm.stoch, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        memory = Batch(deter=batch.core.deter[0])
        for t in range(21):
            if t < context:
                h, chances = policy.believed(batch.obs[t], batch.is_first[t], memory)
            else:
                h = memory.deter
                chances = rssm.probabilities(rssm.prior(h))
            state = State(h, rssm.draw(chances, uniform[t]))
            numbers = made.decoder.predicted(state)["observation"]
            torch.testing.assert_close(said.said["observation"][t], numbers, atol=1e-3, rtol=1e-3)
            torch.testing.assert_close(said.rec[t], made.decoder.loss(state, batch.obs.observation[t]), atol=1e-3, rtol=1e-3)
            if t:
                reward = made.mean_of(made.reward(state.features))
                torch.testing.assert_close(said.reward[t - 1], reward, atol=1e-3, rtol=1e-3)
                go_on = (made.continues(state.features).squeeze(-1).sigmoid() / 0.9).clamp(max=1.0)
                torch.testing.assert_close(said.go_on[t - 1], go_on, atol=1e-4, rtol=1e-4)
            if t < 20:
                memory = Batch(deter=policy.after(state, batch.action[t]))
    torch.testing.assert_close(said.true["observation"], batch.obs.observation)


def test_errors_count_rows_before_the_first_break_alone(typed):
    made, batch = counted(typed)  # episodes of 3 steps
    said = made.open_loop(batch, 5, torch.Generator())
    rows = comparable(batch, 5)
    for column in range(4):
        alive = True
        for t in range(13):
            alive = alive and (t < 5 or bool(batch.valid[t - 1, column]))
            assert bool(rows[t, column]) == (alive and (t == 0 or bool(batch.valid[t - 1, column] | batch.is_first[t, column])))
    assert rows[5].any() and not rows[9].any()
    found = errors(said, batch)
    here = rows[5]
    assert set(found) == {"open_loop_rec_1", "open_loop_reward_1"}
    assert float(found["open_loop_reward_1"]) == pytest.approx(float((said.reward[4] - batch.obs.observation[5, :, 1])[here].abs().mean()), rel=1e-5)
    one = excerpt(said, batch, int(here.nonzero()[0]))
    assert 5 < len(one.seen) < 9 and one.seen.sum() == 5 and np.isnan(one.reward[0]).all()
    np.testing.assert_array_equal(one.reward[5], [batch.reward[4, int(here.nonzero()[0])], said.reward[4, int(here.nonzero()[0])]])


def test_watch_shows_what_was_imagined(tmp_path, capsys):
    imageio_ffmpeg = pytest.importorskip("imageio_ffmpeg")
    pytest.importorskip("pygame")
    run = tmp_path / "run"
    trained(run, "env=CartPole-v1", "env_steps=60", "resources=debug")
    assert _dispatch(["watch", str(run), "imagine=true", "max_steps=25", "episodes=100", "gif=false"]) == 0
    assert "errors behind the last observation that the model saw" in capsys.readouterr().out
    (movie,), (curves,) = ((run / "videos").glob(f"*-imagined.{kind}") for kind in ("mp4", "png"))
    reader = imageio_ffmpeg.read_frames(str(movie))
    width, height = next(reader)["size"]
    frames = [np.frombuffer(frame, np.uint8).reshape(height, width, 3) for frame in reader]
    # 26 observations; on the left two pictures of 360 x 240 in frames of 3 pixels, the curves of 6 numbers beside them.
    assert len(frames) == 26 and width == 366 + 640 and height >= 492
    frame = np.stack([frame[248:250, 20:340].mean((0, 1)) for frame in frames])  # the frame of what was imagined
    green = frame[:, 1] > frame[:, 0]
    assert green[:5].all() and not green[5] and curves.stat().st_size > 1000


def test_the_environment_draws_the_imagined_state():
    pytest.importorskip("pygame")
    from rlrun.envs.gym import GymConfig
    from rlrun.envs.redrawn import redrawn

    plain = {"family": "gym", "kwargs": {}, "max_episode_steps": None, "stack": 1, "reward_clip": "none", "observation": "own", "size": 64, "action_repeat": 1, "step_timeout_sec": None, "reset_timeout_sec": None}
    for name in ("CartPole-v1", "Pendulum-v1"):
        drawer = redrawn(GymConfig(name=name, wrappers=(), **plain))
        obs, _ = drawer.env.reset(seed=4)
        true = drawer.env.render()
        other = drawer.frame(-obs)
        assert not np.array_equal(true, other) and np.array_equal(drawer.frame(obs), true)
        drawer.frame(np.full(len(obs), 1e6))  # a bad dream
        drawer.close()
    assert redrawn(GymConfig(name="CartPole-v1", wrappers=("a:B",), **plain)) is None
    assert redrawn(GymConfig(name="Acrobot-v1", wrappers=(), **plain)) is None


def test_looks_become_rarer_or_stay_as_often():
    def looks(every, end):
        at, made = 0, []
        while (at := ImagineConfig(every=every).after(at)) <= end:
            made.append(at)
        return made

    assert looks(30, 100) == [30, 60, 90]
    often, rare = looks("auto", 1000), looks("auto", 100_000)
    assert often == list(range(100, 1001, 100)) == rare[:10] and 50 < len(rare) < 70


@pytest.mark.parametrize("env, kind", [("CartPole-v1", "png"), ("rlrun/IdentityImage-v0", "gif")])
def test_a_run_looks_at_its_world_model(env, kind, tmp_path):
    from PIL import Image
    from tensorboard.backend.event_processing.event_accumulator import IMAGES, EventAccumulator

    words = ["resources=debug", f"env={env}", "env_steps=120", "log_every_steps=20", "algo.batch_length=12"]
    words += ["model.depth=2", "++env.kwargs={height: 48, width: 64}"] if kind == "gif" else []
    on, off = tmp_path / "on", tmp_path / "off"
    sinks = ["tensorboard", "mlflow"] if kind == "png" else ["tensorboard"]
    trained(on, *words, f"logger=[{','.join(sinks)}]", f"runs_root={tmp_path}", "imagine.every=30", *(["logger.mlflow.wait_sec=120"] if kind == "png" else []))
    trained(off, *words, "imagine.every=null")
    assert not (off / "imagined").exists()
    one, other = weights(on), weights(off)
    assert all(torch.equal(value, other["module"][name]) for name, value in one["module"].items()), "looking changes nothing"
    files = sorted((on / "imagined").iterdir())
    assert len(files) >= 3 and all(file.suffix == f".{kind}" for file in files)
    rows = [json.loads(line) for line in (on / "progress.jsonl").read_text().splitlines()]
    seen = [row for row in rows if "learn/open_loop_rec_1" in row]
    assert len(seen) == len(files) and all(np.isfinite(row["learn/open_loop_reward_1"]) for row in seen)
    events = EventAccumulator(str(on), size_guidance={IMAGES: 0})
    events.Reload()
    shown = events.Images("imagined")
    assert [event.step for event in shown] == [int(file.stem) for file in files]
    assert shown[-1].encoded_image_string == files[-1].read_bytes()
    if "mlflow" in sinks:
        from mlflow import MlflowClient

        client = MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}")
        (found,) = client.search_runs(["1"])
        assert [file.path for file in client.list_artifacts(found.info.run_id, "imagined")] == [f"imagined/{file.name}" for file in files]
    with Image.open(files[-1]) as picture:
        assert (shown[-1].width, shown[-1].height) == picture.size
        assert getattr(picture, "n_frames", 1) == (1 if kind == "png" else 13)
    assert _dispatch(["report", str(on)]) == 0
    page = (on / "report.html").read_text()
    assert "Imagined beside true" in page and f"data:image/{kind};base64," in page and "learn/open_loop_rec_1" in page


@pytest.mark.parametrize("command, said", [
    (["train", "algo=ppo", "env=CartPole-v1", "imagine.every=100"], "it is for algorithms with a world model"),
    (["watch", "imagine=true"], "imagine=true needs a world model, and pg has none"),
])  # fmt: skip
def test_runs_without_a_world_model_cannot_be_looked_at(command, said, tmp_path):
    run = tmp_path / "run"
    if command[0] == "watch":
        assert _dispatch(["train", *small("pg", "tiny"), "env=CartPole-v1", "model.hidden=[8]", "logger=[]", "env_steps=20", f"run_dir={run}"]) == 0
        command = [command[0], str(run), *command[1:]]
    with pytest.raises(UserError, match=said) as caught:
        _dispatch(command)
    assert "\n" not in str(caught.value)


def test_a_picture_that_cannot_be_drawn_costs_a_warning(tmp_path, capsys):
    from rlrun.loggers.sinks import Sinks

    shown = []
    sink = type("Shows", (), {"log": lambda self, row: shown.append(row), "show": lambda self, *told: shown.append(told), "close": lambda self, *told: None})
    sinks = Sinks([], {"one": sink})
    for steps, draw in ((1, lambda: tmp_path / "missing" / "folder"), (2, lambda: 1 / 0)):
        sinks.picture(steps, draw)
    sinks.log({"env_steps": 3})
    sinks.close("COMPLETED", {})
    assert shown == [(1, tmp_path / "missing" / "folder"), {"env_steps": 3}]
    assert "pictures: division by zero" in capsys.readouterr().err
