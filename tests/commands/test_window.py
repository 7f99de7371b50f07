"""rlrun watch RUN_DIR window=true."""

import numpy as np
import pytest

from rlrun.cli import _dispatch
from rlrun.core.errors import UserError


@pytest.fixture
def run(tmp_path):
    small = ["resources=debug", "logger=[]", "env_steps=200"]
    assert _dispatch(["train", "algo=pg", "env=CartPole-v1", *small, f"run_dir={tmp_path / 'run'}"]) == 0
    return tmp_path / "run"


def test_without_a_display_there_is_a_sentence(run, monkeypatch):
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    with pytest.raises(UserError, match="needs a display, and there is none"):
        _dispatch(["watch", str(run), "window=true"])
    assert not (run / "videos").exists()


def test_a_window_shows_every_frame_and_can_be_closed(run, monkeypatch, capsys):
    pygame = pytest.importorskip("pygame")
    from rlrun.commands import window

    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")  # pygame's driver without a screen
    shown = []
    show = window.Window.show

    def seen(self, frame, rate):
        assert frame.shape == (400, 600, 3) and rate == 50
        shown.append(frame)
        if len(shown) == 5:
            pygame.event.post(pygame.event.Event(pygame.KEYDOWN, key=pygame.K_ESCAPE))
        return show(self, frame, 1000)

    monkeypatch.setattr(window.Window, "show", seen)
    assert _dispatch(["watch", str(run), "window=true"]) == 0
    assert len(shown) == 5 and not np.array_equal(shown[0], shown[-1])
    assert "return unknown: no game ended" in capsys.readouterr().out
    with pytest.raises(UserError, match="imagine=true writes its pictures to files"):
        _dispatch(["watch", str(run), "window=true", "imagine=true"])


def test_a_report_shows_the_newest_video(run):
    (run / "videos").mkdir()
    for name in ("000000000100-seed0.mp4", "000000000200-seed0.gif", "000000000200-seed0.mp4", "000000000300-seed0-imagined.mp4"):
        (run / "videos" / name).write_bytes(name.encode())
    assert _dispatch(["report", str(run)]) == 0
    text = (run / "report.html").read_text()
    assert text.count("<video") == 1 and "after 200 env steps" in text and "data:video/mp4;base64," in text
    (run / "videos" / "000000000200-seed0.mp4").unlink()
    assert _dispatch(["report", str(run)]) == 0
    assert "data:image/gif;base64," in (run / "report.html").read_text()
