import os
import random
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from shoal.core.traffic import Shadow
from shoal.errors import NotDurable, StateRefused
from shoal.serving.state_file import StateFile
from shoal.serving.state_records import BackendRecord, DeclaredState, Deleted, EndpointRecord

EMBED = BackendRecord(
    tag="embed",
    import_path="models:Embed",
    init_args=("a path", 3, 0.1, None, True, [1, {"deep": []}]),
    init_kwargs={"z": "ö\0\n\ud800", "a": 2**80, "": {}},
    config={"num_replicas": 2, "user_config": {"b": 1, "a": 2}},
)
SHOWN = EndpointRecord(
    name="shown",
    route="/shown",
    methods=("GET", "POST"),
    traffic={"embed": 0.1, "other": 0.9},
    shadows={"third": Shadow(0.25, compare="models:alike")},
)
HIDDEN = EndpointRecord(name="hidden", traffic={"embed": 1})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.db"


@pytest.fixture
def written(path: Path) -> Path:
    with closing(StateFile.open(path)) as state:
        state.apply(EMBED)
        state.apply(SHOWN, HIDDEN)
        state.apply(*[BackendRecord(tag=f"more-{n}", import_path="a:B") for n in range(20)])
        state.apply(*[Deleted("backend", f"more-{n}") for n in range(10)])
    return path


def load(path: Path) -> DeclaredState:
    with closing(StateFile.open(path)) as state:
        return state.load()


def refusal(path: Path) -> str:
    """Says why a file is refused, and checks that it stays as it is."""
    files = {file: file.read_bytes() for file in path.parent.glob(f"{path.name}*")}
    with pytest.raises(StateRefused) as caught:
        StateFile.open(path)
    for file, data in files.items():
        if not file.name.endswith("-shm"):  # that is an index in shared memory, and holds nothing
            assert file.read_bytes() == data
    assert str(path) in str(caught.value)
    return str(caught.value)


def alter(path: Path, statement: str, *values: object) -> None:
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(statement, values)


def test_a_file_that_is_reopened_has_all_that_was_declared(path: Path) -> None:
    with closing(StateFile.open(path)) as state:
        state.apply(EMBED)
        state.apply(SHOWN)
        state.apply(HIDDEN)
        now = state.load()
    assert now == load(path)
    assert now.backends == {"embed": EMBED}
    assert now.endpoints == {"shown": SHOWN, "hidden": HIDDEN}


def test_a_change_that_can_not_be_written_changes_nothing(written: Path) -> None:
    before = load(written)
    with closing(StateFile.open(written)) as state:
        state._database.execute(
            "CREATE TEMP TRIGGER no BEFORE INSERT ON state "
            "BEGIN SELECT RAISE(FAIL, 'the disk is full'); END"
        )
        with pytest.raises(StateRefused, match="the disk is full"):
            state.apply(Deleted("backend", "embed"), Deleted("endpoint", "shown"))
        assert state.load() == before
        state._database.execute("DROP TRIGGER no")
        state.apply(Deleted("endpoint", "shown"))
    assert load(written).endpoints.keys() == {"hidden"}


def test_every_change_is_synced_in_full(path: Path) -> None:
    with closing(StateFile.open(path)) as state:
        with_the_directory = 3
        assert state._database.execute("PRAGMA synchronous").fetchone() == (with_the_directory,)
        assert state._database.execute("PRAGMA journal_mode").fetchone() == (b"delete",)


def test_a_copy_of_a_file_in_use_is_a_backup(path: Path, tmp_path: Path) -> None:
    with closing(StateFile.open(path)) as state:
        state.apply(EMBED, SHOWN)
        copy = tmp_path / "copy.db"
        copy.write_bytes(path.read_bytes())
        assert load(copy) == state.load()


def test_only_the_owner_can_read_a_new_file(path: Path) -> None:
    StateFile.open(path).close()
    assert path.stat().st_mode & 0o777 == 0o600


def test_an_empty_file_is_not_taken_for_a_new_one(written: Path) -> None:
    os.truncate(written, 0)
    written.with_name("state.db.lock").unlink()
    assert "remove it" in refusal(written)
    assert written.stat().st_size == 0
    written.unlink()
    assert load(written) == DeclaredState()


def test_what_a_killed_maker_left_is_in_nobodys_way(path: Path) -> None:
    for end in ("", "-journal"):
        path.with_name(f"state.db.new{end}").write_bytes(b"left over")
    assert load(path) == DeclaredState()
    assert {file.name for file in path.parent.iterdir()} == {"state.db", "state.db.lock"}


def test_a_link_leads_to_the_file(written: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.db"
    link.symlink_to(written)
    assert load(link) == load(written)
    with closing(StateFile.open(link)):
        assert "in use" in refusal(written)


def test_a_path_may_have_any_characters(tmp_path: Path) -> None:
    odd = tmp_path / "a ?mode=ro#%41ö.db"
    with closing(StateFile.open(odd)) as state:
        state.apply(EMBED)
    assert load(odd).backends == {"embed": EMBED}
    assert odd.exists()


def test_a_file_in_use_is_refused(written: Path) -> None:
    with closing(StateFile.open(written)) as state:
        assert "in use" in refusal(written)
        state.apply(Deleted("backend", "embed"))
    assert "embed" not in load(written).backends


@pytest.fixture
def other_process(written: Path) -> Iterator[subprocess.Popen[bytes]]:
    code = (
        "import sys; from shoal.serving.state_file import StateFile\n"
        "state = StateFile.open(sys.argv[1]); print('open', flush=True); sys.stdin.read()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(written)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"open\n"
    yield process
    process.kill()
    process.communicate()


def test_a_killed_holder_blocks_nobody(written, other_process):
    assert "in use" in refusal(written)
    other_process.kill()
    other_process.wait()
    assert load(written).backends["embed"] == EMBED


def test_no_other_program_writes_to_a_file_in_use(written: Path) -> None:
    with (
        closing(StateFile.open(written)),
        closing(sqlite3.connect(written, timeout=0)) as other,
        pytest.raises(sqlite3.OperationalError, match="locked"),
    ):
        other.execute("DELETE FROM state")


def test_a_closed_file_takes_no_changes(written: Path) -> None:
    state = StateFile.open(written)
    state.close()
    state.close()
    with pytest.raises(StateRefused, match="closed"):
        state.apply(Deleted("backend", "embed"))
    with pytest.raises(StateRefused, match="closed"):
        state.load()


def test_a_newer_file_is_refused(written: Path) -> None:
    alter(written, "ALTER TABLE state ADD COLUMN more TEXT")
    alter(written, "UPDATE state SET version = 2")
    assert "version 2, of a newer Shoal" in refusal(written)


def test_another_programs_database_is_refused(path: Path) -> None:
    alter(path, "CREATE TABLE header (version)")
    assert "another program" in refusal(path)


def test_another_programs_database_with_a_live_log_stays_as_it_is(path: Path) -> None:
    with closing(sqlite3.connect(path)) as other:
        other.execute("PRAGMA journal_mode = WAL")
        other.execute("CREATE TABLE things (one)")
        assert path.with_name("state.db-wal").stat().st_size > 0
        assert "another program" in refusal(path)


@pytest.mark.parametrize("data", [b"\0", b"not a database", b"x" * 5000, b"SQLite format 3\0"])
def test_what_is_no_database_is_refused(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    refusal(path)


def test_what_is_no_plain_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(StateRefused, match="not a regular file"):
            StateFile.open(path)
    assert (tmp_path / "pipe").is_fifo()


def test_a_directory_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(StateRefused, match="no directory"):
        StateFile.open(tmp_path / "missing" / "state.db")
    assert not (tmp_path / "missing").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read and write anything")
@pytest.mark.parametrize("mode", [0o000, 0o400])
def test_a_file_that_may_not_be_read_and_written_is_refused(written: Path, mode: int) -> None:
    written.chmod(mode)
    with pytest.raises(StateRefused):
        StateFile.open(written)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read and write anything")
def test_a_directory_that_may_not_be_written_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(StateRefused):
        StateFile.open(tmp_path / "state.db")
    tmp_path.chmod(0o700)


def test_a_log_without_its_file_is_refused(written: Path) -> None:
    written.with_name("state.db-journal").write_bytes(b"x" * 100)
    written.unlink()
    assert "its log is still there" in refusal(written)
    written.touch()
    assert "its log is still there" in refusal(written)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_a_damaged_byte_is_seen_or_changes_nothing(written: Path, part: int) -> None:
    whole = written.read_bytes()
    expected = load(written)
    rng = random.Random(part)
    header, rest = range(108), range(108, len(whole))
    offsets = [*header[part::4], *rng.sample(rest, 150)]
    refused = 0
    for offset in offsets:
        damaged = bytearray(whole)
        damaged[offset] ^= rng.randrange(1, 256)
        written.write_bytes(damaged)
        try:
            found = load(written)
        except StateRefused:
            assert written.read_bytes() == damaged
            refused += 1
        else:
            assert found == expected
    assert 20 < refused < len(offsets)


def test_a_file_that_was_cut_off_is_refused(written: Path) -> None:
    whole = written.read_bytes()
    for length in [*range(1, 200, 7), *range(512, len(whole), 512)]:
        written.write_bytes(whole[:length])
        refusal(written)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE state SET declared = replace(declared, '0.1', '0.2')",
        "UPDATE state SET declared = 0",
        "UPDATE state SET checksum = ''",
        "UPDATE state SET version = 0",
        "INSERT INTO state SELECT * FROM state",
        "DELETE FROM state",
        "DROP TABLE state",
    ],
)
def test_a_file_that_something_else_changed_is_refused(written: Path, statement: str) -> None:
    alter(written, statement)
    refusal(written)


def test_damage_beside_what_is_declared_is_refused(written: Path) -> None:
    data = bytearray(written.read_bytes())
    data[39] ^= 1  # how many free pages there are
    written.write_bytes(data)
    assert "damaged" in refusal(written)


def test_a_refusal_shows_nothing_of_what_is_declared(path: Path) -> None:
    with closing(StateFile.open(path)) as state:
        state.apply(BackendRecord(tag="b", import_path="a:B", init_args=("secret",)))
    path.write_bytes(path.read_bytes().replace(b"secret", b"secre\xff"))
    assert "damaged" in refusal(path)
    assert "secre" not in refusal(path)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (float("nan"), "init_args of the backend 'b'\\[0\\]"),
        (float("inf"), "JSON"),
        ((1, 2), "lists for tuples"),
        ({1: 2}, "text for keys"),
        ({"a": [0, {"b": object}]}, "\\['a'\\]\\[1\\]\\['b'\\].*import path"),
        (b"bytes", "of type bytes"),
        ({1, 2}, "of type set"),
    ],
)
def test_an_init_arg_that_json_would_change_is_not_kept(value: object, says: str) -> None:
    with pytest.raises(NotDurable, match=says):
        BackendRecord(tag="b", import_path="a:B", init_args=(value,))
    with pytest.raises(NotDurable):
        BackendRecord(tag="b", import_path="a:B", init_kwargs={"x": value})
    with pytest.raises(NotDurable):
        BackendRecord(tag="b", import_path="a:B", config={"user_config": value})


def test_a_number_too_long_for_json_is_not_kept() -> None:
    with pytest.raises(NotDurable, match="JSON"):
        BackendRecord(tag="b", import_path="a:B", init_args=(10**5000,))


def test_what_holds_itself_is_not_kept() -> None:
    endless: list[object] = []
    endless.append(endless)
    with pytest.raises(NotDurable, match="too deeply"):
        BackendRecord(tag="b", import_path="a:B", init_args=(endless,))


def test_code_and_comparisons_are_kept_by_their_import_paths(path: Path) -> None:
    code: object = len
    with pytest.raises(NotDurable, match=r"the code of the backend 'b'.*import path"):
        BackendRecord(tag="b", import_path=code)  # type: ignore[arg-type]
    shadows = {"b": Shadow(1, compare=len)}
    with closing(StateFile.open(path)) as state:
        with pytest.raises(NotDurable, match="import path"):
            state.apply(EndpointRecord(name="e", shadows=shadows))
        state.apply(HIDDEN)
    assert load(path).endpoints == {"hidden": HIDDEN}


def test_a_record_is_not_changed_by_what_it_was_made_of() -> None:
    user_config = {"a": [1]}
    backend = BackendRecord(tag="b", import_path="a:B", config={"user_config": user_config})
    user_config["a"].append(2)
    assert backend.config == {"user_config": {"a": [1]}}
