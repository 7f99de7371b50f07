"""A run that goes on notices that the files of a foreign data set are others now, though as many rows are in them."""

import contextlib
import hashlib
import shutil
import zipfile

import pyarrow.parquet as pq
import pytest
from datasets_of_tests import data_of
from rllib_files import episode, line
from test_minari import episode as minari_episode
from test_minari import numbers, two
from test_rllib_json import write as write_json
from test_rllib_parquet import newer
from test_rllib_parquet import write as write_parquet
from test_rows import made, needs

from rlrun.core.errors import UserError
from rlrun.datasets.open import open_source, would_read


def json_files(folder, changed):
    columns = episode(30)
    if changed:
        columns["rewards"][3] = 1.5e10
    write_json(folder, line(columns))


def archive(folder, changed):
    """The changed lines have as many characters."""
    folder.mkdir(exist_ok=True)
    text = line(episode(30))
    with zipfile.ZipFile(folder / "out.zip", "w", zipfile.ZIP_STORED) as made:
        made.writestr("output.json", text.replace("1.0", "7.0", 1) if changed else text)


def rllib_parquet(folder, changed):
    columns = newer(episode(30))
    if changed:
        columns["rewards"][3] = 1.5
    write_parquet(folder / "a.parquet", columns)


def minari(folder, changed):
    two(folder)
    if changed:
        file = minari_episode(folder, 1, *numbers(4, 7), ends=(True, False), infos=[-1.0] * 5)
        pq.write_table(pq.read_table(file), file, compression="none")


def own(folder, changed):
    data_of("CartPole-v1", folder)


@pytest.mark.parametrize("write", (json_files, archive, rllib_parquet, minari))
def test_other_files_are_noticed_and_a_set_may_be_moved(write, tmp_path):
    write(tmp_path / "set", changed=False)

    def rows():
        source = open_source(str(tmp_path / "set"))
        return made(source, needs(source.facts.spec))

    before = rows()
    state = before.state()
    shutil.move(tmp_path / "set", tmp_path / "elsewhere")
    shutil.copytree(tmp_path / "elsewhere", tmp_path / "set")
    rows().load(state, None)
    write(tmp_path / "set", changed=True)
    assert before.state()["shelves"][0]["held"] == state["shelves"][0]["held"], "it has the rows of the files before"
    now = rows()
    with pytest.raises(UserError, match="set has changed since the checkpoint was made"):
        now.load(state, None)
    # A checkpoint of an earlier version knows the number of pieces alone.
    pieces = f"{now.shelves[0].source.pieces()} pieces"
    state["shelves"][0]["held"] = hashlib.sha256(pieces.encode()).hexdigest()
    now.load(state, None)


@pytest.mark.parametrize("write, inside", ((own, False), (json_files, False), (archive, False), (rllib_parquet, True), (minari, True)))  # fmt: skip
def test_what_is_recorded_into_a_folder_changes_a_set_where_that_is_said(write, inside, tmp_path):
    """RLlib's Parquet files and Minari's may be in folders inside. Those of the others may not."""
    path = tmp_path / "set"
    write(path, changed=False)
    (tmp_path / "link").symlink_to(path)
    source, folder = open_source(str(path)), path / "data" / "new"
    assert would_read(source, folder) is would_read(source, tmp_path / "link" / "data" / "new") is inside
    assert would_read(source, path / "data" if write is minari else tmp_path / "other" / ".." / "set")
    assert not would_read(source, tmp_path) and not would_read(source, tmp_path / "set-2")
    data_of("CartPole-v1", tmp_path / "set-2")
    assert list(open_source(str(path)).identity) == list(source.identity)
    data_of("CartPole-v1", folder)
    with pytest.raises(UserError, match="its columns are") if write is rllib_parquet else contextlib.nullcontext():
        assert (list(open_source(str(path)).identity) != list(source.identity)) is inside
