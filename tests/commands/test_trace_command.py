"""``shoal trace`` against a server, and what ``shoal simulate`` makes of its file."""

import json
import re
import signal
import threading
import time
from contextlib import asynccontextmanager, nullcontext

import anyio
import pytest
from driven_server import served

import shoal
from time_limits import HANG_S

pytestmark = pytest.mark.real_time
RECORDING = "shoal.serving.clients.remote_client.RemoteClient.recording"
BEGIN = b'{"record":"trace"}'
END = b'{"record":"end","at":1,"requests":0,"why":"time"}'


@pytest.fixture(autouse=True)
def in_a_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("traffic")
def test_a_recording_can_be_simulated_without_anything_else(url, run, tmp_path):
    code, out, err = run("trace", "--seconds", "1", "--url", url)
    assert (code, err) == (0, "")
    assert re.match(r"recorded [\d,]+ requests in 1(\.\d+)? s", out)
    lines = [json.loads(line) for line in (tmp_path / "trace.jsonl").read_text().splitlines()]
    kinds = [line.get("record") for line in lines]
    assert (kinds[0], kinds[1], kinds[-1]) == ("trace", "batcher", "end")
    assert "progress" not in kinds
    assert kinds.count(None) == lines[-1]["requests"] > 0
    code, out, err = run(
        *("simulate", "trace.jsonl", "--option", "max_batch_size=8", "--json"),
        *("--compare", "batch_wait_timeout_s=0.1 max_concurrent_batches=2"),
    )
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["requests"] == kinds.count(None)
    recorded, today, first, second = found["compared"]
    assert [one["name"] for one in found["compared"]] == ["recorded", "today", "A", "B"]
    assert recorded["batches"] == kinds.count("batch")
    assert "max_batch_size=4" in today["options"]
    assert first["options"] == "max_batch_size=8"
    assert second["options"] == "batch_wait_timeout_s=0.1, max_concurrent_batches=2"
    assert second["mean_batch"] > first["mean_batch"]


def test_ctrl_c_keeps_what_there_is(url, terminal):
    process = terminal.popen("trace", "--seconds", "600", "--url", url)
    path = terminal.directory / "trace.jsonl"
    give_up_at = time.monotonic() + HANG_S
    while not path.exists():
        assert time.monotonic() < give_up_at
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=HANG_S)
    assert (process.returncode, err) == (0, "")
    assert out.startswith("recorded 0 requests")
    first, *_, last = [json.loads(line) for line in path.read_text().splitlines()]
    assert first["record"] == "trace"
    assert (last["record"], last["why"]) == ("end", "interrupted")


def test_a_server_that_ends_leaves_what_there_is(run, tmp_path):
    with served() as url:
        told = []
        thread = threading.Thread(
            target=lambda: told.append(run("trace", "--seconds", "600", "--url", url))
        )
        # Signals can't be awaited in this thread.
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("shoal.commands.server.client.anyio.open_signal_receiver", never)
            thread.start()
            path = tmp_path / "trace.jsonl"
            while not path.exists():
                assert thread.is_alive()
            with shoal.connect(url) as client:
                client.shutdown()
            thread.join(HANG_S)
    [(code, out, err)] = told
    assert (code, err) == (1, "shoal: the server has ended\n")
    assert out.startswith("recorded 0 requests")
    assert json.loads(path.read_text().splitlines()[-1])["why"] == "server ended"


def test_a_server_that_falls_silent_is_not_a_file_that_cannot_be_written(monkeypatch, run):
    async def lines():
        yield BEGIN
        raise TimeoutError("the server took too long")

    monkeypatch.setattr(RECORDING, lambda *_, **__: nullcontext(lines()))
    code, _, err = run("trace", "--url", "http://server")
    assert (code, err) == (1, "shoal: the server took too long\n")


def test_ctrl_c_after_the_last_line_changes_nothing(monkeypatch, run, tmp_path):
    async def lines():
        yield BEGIN
        yield END

    @asynccontextmanager
    async def recording(*_, **__):
        yield lines()
        signal.raise_signal(signal.SIGINT)
        await anyio.sleep_forever()

    monkeypatch.setattr(RECORDING, recording)
    code, _, err = run("trace", "--url", "http://server")
    assert (code, err) == (0, "")
    assert (tmp_path / "trace.jsonl").read_bytes() == BEGIN + b"\n" + END + b"\n"


class never:
    def __init__(self, *signals):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        pass

    def __aiter__(self):
        return self

    async def __anext__(self):
        await anyio.sleep_forever()


def test_progress_is_json_for_programs(url, run):
    code, out, err = run("trace", "--seconds", "0.1", "--url", url, "--json", "-o", "x.jsonl")
    assert (code, err) == (0, "")
    told = json.loads(out)
    assert (told["file"], told["requests"], told["why"]) == ("x.jsonl", 0, "time")


def test_mistakes_are_told_in_one_line(url, mistake, tmp_path):
    (tmp_path / "trace.jsonl").write_text("mine")
    told = mistake("trace", "--url", url, code=2)
    assert told == "shoal: trace.jsonl exists; name another file with -o, or delete it\n"
    assert (tmp_path / "trace.jsonl").read_text() == "mine"
    for code, arguments, line in [
        (1, ["--backend", "absent"], "there is no backend"),
        (2, ["--max-requests", "100000000"], "most_requests must be at most"),
        (2, ["--seconds", "1e7"], "seconds must be more than 0, and at most 86400"),
        (1, ["-o", "absent/x.jsonl", "--seconds", "1"], "can't write absent/x.jsonl"),
    ]:
        told = mistake("trace", "-o", "other.jsonl", *arguments, "--url", url, code=code)
        assert line in told
        assert not (tmp_path / "other.jsonl").exists()


@pytest.mark.usefixtures("traffic")
def test_a_disk_that_is_full_is_told_in_one_line(url, run, tmp_path):
    """Also where the last lines are written only when the file is closed."""
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (600, limits[1]))
    try:
        code, _, err = run("trace", "--seconds", "1", "--url", url)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (code, err) == (1, "shoal: can't write trace.jsonl: File too large\n")
    assert (tmp_path / "trace.jsonl").stat().st_size == 600
