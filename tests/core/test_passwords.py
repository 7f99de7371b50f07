"""A password in MLflow's address is used, and is in nothing that a run writes or prints."""

from pathlib import Path

import pytest

from rlrun.cli import _dispatch
from rlrun.core.errors import UserError
from rlrun.core.passwords import WHOLE, check_known, check_logger, masked, masked_values, whole

URI = "http://me:S3cret%2F@127.0.0.1:9/x"


def test_passwords_are_masked_in_any_text():
    assert masked(f"could not reach {URI}: refused") == "could not reach http://***@127.0.0.1:9/x: refused"
    for secret in ("u:p@ss@host/db", "me:se/cret@host", "token@host", "me@corp:secret@h", "me%3Asecret@h"):
        assert masked(f"uri=postgresql://{secret}") == f"uri=postgresql://***@{secret.rpartition('@')[2]}"
    asked = "mssql://host/db?pwd=a&access_token=b&odbc_connect=PWD%3Dc&sslmode=require"
    assert masked(asked) == "mssql://host/db?pwd=***&access_token=***&odbc_connect=***&sslmode=require"
    for plain in ("sqlite:////tmp/mlflow.db", "http://host:5000/a", "my_package.envs:Maze-v0", "lr=[[0,1e-3]]"):
        assert masked(plain) == plain


@pytest.mark.parametrize("secret", ["pa'ss", 'pa"ss', "pa ss"])
def test_a_password_with_a_quote_or_a_blank_is_asked_for_in_other_letters(secret):
    mlflow = {"uri": f"postgresql://me:{secret}@host/db"}
    assert masked_values({"mlflow": mlflow}) == {"mlflow": {"uri": "postgresql://***@host/db"}}
    for enabled in (True, False):
        with pytest.raises(UserError, match=r"write %27 for '.*%20 for a blank") as caught:
            check_logger({"logger": {"mlflow": mlflow | {"enabled": enabled}}})
        assert secret not in str(caught.value)
    check_logger({"logger": {"mlflow": {"uri": "sqlite:////home/o'brien/a b/mlflow.db", "enabled": True}}})


def test_what_is_no_address_of_a_store_is_said_before_a_run_begins():
    for uri in ("nonsense", "mlruns/here"):
        with pytest.raises(UserError, match=f"logger.mlflow.uri={uri} is no address"):
            check_logger({"logger": {"mlflow": {"uri": uri, "enabled": True}}})
    with pytest.raises(UserError, match=r"no store of the kind postgres\. Did you mean postgresql\? It has http,"):
        check_logger({"logger": {"mlflow": {"uri": "postgres://me:secret@host/runs", "enabled": True}}})
    for uri in (None, "databricks", "mysql+pymysql://host/runs", "file:///tmp/x", "sqlite:///store.db", "http://host:5000"):
        check_logger({"logger": {"mlflow": {"uri": uri, "enabled": True}}})


def test_addresses_of_other_options_keep_what_is_no_secret():
    """A job of a sweep runs from sweep.json, and a resumed run from config.yaml."""
    mine = {"env": {"kwargs": {"url": "http://host:8000/game?level=3&sign=x"}}}
    assert masked_values(mine) == mine | {"env": {"kwargs": {"url": "http://host:8000/game?level=3&sign=***"}}}
    words = ["env.kwargs.url=http://host/game?level=3", "logger.mlflow.uri=mssql://host/db?level=3"]
    assert masked_values(words) == [words[0], "logger.mlflow.uri=mssql://host/db?level=***"]
    assert masked_values({"mlflow": {"uri": "mssql://host/db?level=3"}}) == {"mlflow": {"uri": "mssql://host/db?level=***"}}
    for saved in (masked_values(mine), ["env.kwargs.url=http://***@host/game"]):
        with pytest.raises(UserError, match=r"env.kwargs.url.* had a password or a secret in its address"):
            check_known(saved, "config.yaml")
    check_known({"logger": {"mlflow": {"uri": "http://***@host"}}, "a": ["logger.mlflow.uri=http://***@h", "b=***"]}, "x")


def test_the_whole_address_is_known_where_it_was_given(monkeypatch):
    monkeypatch.setenv(WHOLE, "")  # restored after the test
    with pytest.raises(UserError, match="saves no passwords"):
        whole(masked(URI))
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "x")
    assert whole(masked(URI)) == "http://127.0.0.1:9/x"
    assert whole(URI) == URI and whole(masked(URI)) == URI and whole(None) is None
    with pytest.raises(UserError):
        whole("postgresql://***@host/db")


def test_no_file_and_no_line_of_a_run_has_the_password(tmp_path, monkeypatch, capfd):
    monkeypatch.setenv(WHOLE, "")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    words = ["algo=pg", "env=CartPole-v1", "resources=debug", "model.hidden=[8]", "env_steps=200", "logger=[mlflow]"]
    monkeypatch.setattr("sys.orig_argv", ["python", "rlrun", "train", f"logger.mlflow.uri={URI}"])
    assert _dispatch(["train", *words, f"logger.mlflow.uri={URI}", "run_dir=run"]) == 0
    assert _dispatch(["resume", "run", "env_steps=1500"]) == 0, "this process was given the password"
    assert _dispatch(["report", "run"]) == 0
    assert _dispatch(["sweep", *words, f"logger.mlflow.uri={URI}", "seed=1,2", "--dir", "s", "--dry-run"]) == 0
    monkeypatch.setenv(WHOLE, "")
    with pytest.raises(UserError, match="saves no passwords"):
        _dispatch(["resume", "run", "env_steps=400"])
    said = capfd.readouterr()
    assert "S3cret" not in said.out + said.err
    for path in Path().rglob("*"):
        assert not path.is_file() or b"S3cret" not in path.read_bytes(), path
