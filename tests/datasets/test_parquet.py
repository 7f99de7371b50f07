"""Files: everything that is written comes back, and whatever is damaged or foreign is named."""

import dataclasses
import json
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets_of_tests import FRAMES, PARTS, VECTOR, episode, facts, same
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlrun.core.errors import UserError
from rlrun.core.spec_json import spec_from_json, spec_to_json
from rlrun.datasets.open import open_source
from rlrun.datasets.parquet import ParquetSource
from rlrun.datasets.parquet_writer import FILE_SEC, Writer, set_references


@pytest.mark.parametrize("spec", (VECTOR, FRAMES, PARTS), ids=lambda spec: spec.name)
def test_what_is_written_comes_back(spec, written):
    """Known answer 14 of the reference: rows, ends, dead rows, records and facts."""
    given_ = [episode(n, 5 + n % 7, spec, terminated=n % 2 == 0, life=n % 3 == 0) for n in range(20)]
    given_[3] = dataclasses.replace(given_[3], agent=2, policy=1, whole=False)
    told = dataclasses.replace(facts(spec), policies=("tests", "others"))
    source = open_source(str(written(given_, told, group_rows=40)))
    assert source.pieces() > 2
    found = [one for piece in range(source.pieces()) for one in source.read(piece)]
    assert len(found) == len(given_)
    for one, other in zip(given_, found, strict=True):
        for name in ("obs", "action", "reward", "terminated", "truncated", "valid", "record"):
            assert same(getattr(one, name), getattr(other, name)), name
        facts_of = [(each.agent, each.policy, each.whole, each.ret, each.steps) for each in (one, other)]
        assert facts_of[0] == facts_of[1] and one.ret == other.ret and one.steps == other.steps
    assert source.facts.spec == spec and source.facts.policies == ("tests", "others")
    assert source.check_hashes() == 1
    assert spec_from_json(json.loads(json.dumps(spec_to_json(spec)))) == spec


def test_several_writers_and_references(written):
    folder = written([episode(0, 5)])
    written([episode(1, 6)], dataclasses.replace(facts(), policies=("others", "tests")), folder=folder.name)
    source = ParquetSource(folder)
    named = [source.facts.policies[one.policy] for piece in range(2) for one in source.read(piece)]
    assert sorted(named) == ["others", "tests"]
    set_references(folder, -1.5, 100.0)
    source = ParquetSource(folder)
    assert sum(source.rows_of) == 6 + 7 and (source.facts.random_return, source.facts.expert_return) == (-1.5, 100.0)
    with pytest.raises(UserError, match="must differ"):
        set_references(folder, 100.0, 100.0)
    with pytest.raises(UserError, match=r"has no dataset\.json"):
        set_references(folder.parent, -1.5, 100.0)
    with pytest.raises(UserError, match="holds other rows: observations"):
        written([episode(0, 5, FRAMES)], facts(FRAMES), folder=folder.name)
    (folder / "a.parquet").write_bytes(b"")


@pytest.mark.parametrize("change", [{"notes": ("\x1b]0;x\x07",)}, {"policies": ("a\x9bb",)}, {"env": {"a\r": 1}},
                                    {"spec": dataclasses.replace(VECTOR, name="Cart\x1b[2J")}])  # fmt: skip
def test_texts_of_data_cannot_steer_a_terminal(change, written):
    folder = written([episode(0, 5)], dataclasses.replace(facts(), **change))
    with pytest.raises(UserError, match="names or notes with characters that steer a terminal"):
        open_source(str(folder))


def test_a_killed_recording_leaves_only_finished_files(written, tmp_path):
    from rlrun.datasets.parquet_writer import Writer

    folder = written([episode(0, 5)])
    killed = Writer(folder, facts(), group_rows=1)
    killed.write(episode(1, 5))  # its file has no end
    assert sum(ParquetSource(folder).rows_of) == 6

    def files():
        return sorted(folder.glob(".part-*"))

    (left,) = files()
    os.utime(left, (0, 0))
    written([episode(2, 5)], folder=folder.name)
    assert files() == [left], "its process lives"
    os.close(killed.held)
    os.utime(left)
    written([episode(3, 5)], folder=folder.name)
    assert files() == [left], "where locks do not reach other machines, one of theirs may still write"
    os.utime(left, (0, 0))
    written([episode(4, 5)], folder=folder.name)
    assert not files() and sum(ParquetSource(folder).rows_of) == 24
    killed.file.close()


def test_a_file_system_without_locks_keeps_unfinished_files(written, monkeypatch):
    """Nobody knows there whether somebody still writes them."""
    import fcntl

    folder = written([episode(0, 5)])
    left = folder / ".part-1-00000.parquet.unfinished"
    left.write_bytes(b"half")
    os.utime(left, (0, 0))

    def refuse(file, operation):
        if operation & fcntl.LOCK_NB:
            raise OSError("no locks available")

    monkeypatch.setattr("rlrun.datasets.unfinished.fcntl.flock", refuse)
    written([episode(1, 5)], folder=folder.name)
    assert left.exists() and sum(ParquetSource(folder).rows_of) == 12


def test_rows_do_not_wait_for_long_until_they_are_in_a_finished_file(tmp_path, monkeypatch):
    """A slow environment fills a row group in hours, and a process that is killed would lose them."""
    now = 1000.0
    monkeypatch.setattr("rlrun.datasets.parquet_writer.time.monotonic", lambda: now)
    writer = Writer(tmp_path / "set", facts())
    writer.write(episode(0, 5))
    now += FILE_SEC - 1
    writer.write(episode(1, 5))
    assert not list((tmp_path / "set").glob("*.parquet"))
    now += 2
    writer.write(episode(2, 5))
    assert sum(ParquetSource(tmp_path / "set").rows_of) == 18
    now += 2
    writer.write(episode(3, 5))
    assert sum(ParquetSource(tmp_path / "set").rows_of) == 18  # the next file has its own time
    writer.close()
    assert sum(ParquetSource(tmp_path / "set").rows_of) == 24


def damage(folder: Path, change) -> Path:
    (file,) = folder.glob("*.parquet")
    content = bytearray(file.read_bytes())
    file.write_bytes(change(content))
    return file


def test_damage_is_named_with_file_and_row_group(written):
    whole = [episode(n, 300) for n in range(30)]
    file = damage(written(whole, folder="cut"), lambda b: b[: len(b) // 2])
    with pytest.raises(UserError, match=r"cut.*parquet is damaged"):
        open_source(str(file.parent))
    # Without its list, and by itself, it is still a damaged file and not one of a format that nobody knows.
    (file.parent / "dataset.json").unlink()
    for path in (file, file.parent):
        with pytest.raises(UserError, match=f"{file.name} is damaged, or is no Parquet file: "):
            open_source(str(path))
    # A flipped byte in the rows of one group.
    folder = written(whole, folder="flipped", group_rows=2000)
    file = damage(folder, lambda b: b)
    place = pq.ParquetFile(file).metadata.row_group(2).column(4).data_page_offset + 100
    damage(folder, lambda b: b[:place] + bytes([b[place] ^ 4]) + b[place + 1 :])
    source = open_source(str(folder))
    list(source.read(1))
    with pytest.raises(UserError, match=f"{file.name} is damaged in row group 2: "):
        list(source.read(2))
    with pytest.raises(UserError, match="sha256"):
        source.check_hashes()
    (folder / "dataset.json").write_text('{"facts": {}}')
    with pytest.raises(UserError, match=r"dataset.json is damaged"):
        open_source(str(folder))


def test_what_is_no_data_is_refused(tmp_path, written):
    for name, content in (("x.parquet", b"PAR1"), ("y.parquet", b""), ("z.parquet", b"PAR1" + b"\0" * 100 + b"PAR1")):
        (tmp_path / "odd").mkdir(exist_ok=True)
        for old in (tmp_path / "odd").iterdir():
            old.unlink()
        (tmp_path / "odd" / name).write_bytes(content)
        with pytest.raises(UserError, match="odd"):
            open_source(str(tmp_path / "odd"))
    (tmp_path / "empty").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text("")
    with pytest.raises(UserError, match="rlrun record"):
        open_source(str(tmp_path / "run"))
    for path in ("empty", "nowhere"):
        with pytest.raises(UserError, match=path):
            open_source(str(tmp_path / path))
    folder = written([episode(0, 5)])
    next(folder.glob("*.parquet")).unlink()
    with pytest.raises(UserError, match="no finished data"):
        open_source(str(folder))


def rewritten(folder: Path, change) -> Path:
    """The same table with other contents, written by somebody else."""
    (file,) = folder.glob("*.parquet")
    table = change(pq.read_table(file))
    pq.write_table(table, file)
    (folder / "dataset.json").unlink()
    return file


@pytest.mark.parametrize(
    "change, said",
    [
        (lambda t: t.drop_columns(["reward"]), "no column reward"),
        (lambda t: t.replace_schema_metadata({b"rlrun": b"[]"}), "format"),
        (lambda t: t.replace_schema_metadata({b"rlrun": t.schema.metadata[b"rlrun"].replace(b'"float32"', b'"object"')}), "no kind of number"),
        (lambda t: t.replace_schema_metadata({b"rlrun": t.schema.metadata[b"rlrun"].replace(b'"shape": [2]', b'"shape": [999999999, 99]')}), "no shape"),
        (lambda t: t.set_column(t.schema.get_field_index("reward"), "reward", pa.array(["x"] * len(t))), "string"),
        (lambda t: t.set_column(t.schema.get_field_index("obs/observation"), "obs/observation", pa.array([b"123"] * len(t), pa.binary(3))), "fixed_size_binary"),
        (lambda t: t.set_column(t.schema.get_field_index("valid"), "valid", pa.array([True] * len(t))), "has no end"),
        (lambda t: t.set_column(t.schema.get_field_index("reward"), "reward", pa.array([None] * len(t), pa.float32())), "missing"),
        (lambda t: t.set_column(t.schema.get_field_index("reward"), "reward", pa.array([np.nan] * len(t), pa.float32())), "row group 0: reward holds a number that is not finite"),
        (lambda t: t.set_column(t.schema.get_field_index("obs/observation"), "obs/observation", pa.array([np.full(2, np.inf, np.float32).tobytes()] * len(t), pa.binary(8))), "row group 0: obs/observation holds a number that is not finite"),
        (lambda t: t.set_column(t.schema.get_field_index("action"), "action", pa.array([99] * len(t), pa.int64())), "row group 0: action holds a choice that .* does not have"),
    ],
)  # fmt: skip
def test_files_of_others_are_checked(change, said, written):
    file = rewritten(written([episode(n, 5) for n in range(3)]), change)
    with pytest.raises(UserError, match=rf"{file.name}.*{said}"):
        source = ParquetSource(file.parent)
        for piece in range(source.pieces()):
            list(source.read(piece))


def test_a_small_file_does_not_fill_the_memory(written, monkeypatch):
    """A row that is repeated a hundred million times takes a few bytes of a file."""
    file = rewritten(written([episode(0, 5)]), lambda table: pa.concat_tables([table] * 20_000).combine_chunks())
    monkeypatch.setattr("rlrun.datasets.parquet.LARGEST", 1 << 20)
    read = []
    monkeypatch.setattr(pq.ParquetFile, "read_row_group", lambda *words, **more: read.append(words))
    assert file.stat().st_size * 32 < 120_000 * 40
    with pytest.raises(UserError, match=r"row group 0 would take [\d,]+ bytes of memory, and the file has [\d,]+: write"):
        ParquetSource(file.parent).block(0)
    assert not read


@pytest.mark.parametrize("spec", (VECTOR, PARTS), ids=lambda spec: spec.name)
@pytest.mark.parametrize("life", (False, True))
def test_the_observation_at_the_end_of_rows_is_checked(spec, life, written):
    """Critics read it, also behind a terminal step, and 0 times NaN is NaN. What is seen in other dead rows is not."""
    one = episode(0, 5, spec, life=life)
    ends = np.flatnonzero(~one.valid)
    part = one.obs["observation"]
    values, wrong = (part, np.nan) if spec is VECTOR else (part["a"], 4)
    for row in ends:
        was = values[row].copy()
        values[row] = wrong
        with pytest.raises(UserError, match=r"in row group 0: obs/observation.* (not finite|does not have)"):
            list(ParquetSource(written([episode(1, 5, spec), one], facts(spec), folder=f"row{row}")).read(0))
        values[row] = was
    one.valid[ends[0] - 1] = False
    values[ends[0]] = wrong
    list(ParquetSource(written([one], facts(spec))).read(0))


@given(data=st.data())
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_random_damage_is_a_sentence(data, written, tmp_path_factory):
    from rlrun.datasets.parquet_writer import Writer

    folder = tmp_path_factory.mktemp("fuzz") / "set"
    writer = Writer(folder, facts())
    for n in range(4):
        writer.write(episode(n, 20))
    writer.close()
    (file,) = folder.glob("*.parquet")
    content = bytearray(file.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    file.write_bytes(content)
    try:
        source = open_source(str(folder))
        found = [one for piece in range(source.pieces()) for one in source.read(piece)]
        assert all(np.isfinite(one.steps) for one in found)
    except UserError as error:
        assert str(folder) in str(error)
