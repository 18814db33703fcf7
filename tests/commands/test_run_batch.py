"""``shoal run-batch``: what it writes, how it goes on, and mistakes."""

import fcntl
import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from shoal.commands.support.batch_lines import ResultFiles
from shoal.commands.support.output import CommandError
from time_limits import HANG_S

COMMAND = "run-batch"

HANDLERS = """
from pathlib import Path

import anyio
from pydantic import BaseModel

import shoal


def note(numbers):
    with Path("calls.txt").open("a") as file:
        file.write("".join(f"{number}\\n" for number in numbers))


async def double(numbers: list[int]) -> list[int | ValueError]:
    note(numbers)
    return [ValueError(f"no {one}") if one % 7 == 0 else 2 * one for one in numbers]


async def steps(numbers: list[int]) -> list[int | ValueError]:
    await anyio.sleep(0.001)
    return await double(numbers)


async def hangs(numbers: list[int]) -> list[int]:
    print("it hangs", flush=True)
    with anyio.CancelScope(shield=True):
        await anyio.sleep_forever()


async def sums(a: list[int], b: list[int]) -> list[dict[str, int]]:
    return [{"sum": x + y} for x, y in zip(a, b, strict=True)]


async def keyword_sums(a: list[int], *, b: list[int]) -> list[dict[str, int]]:
    return await sums(a, b)


class Text(BaseModel):
    text: str


async def lengths(texts: list[Text]) -> list[int]:
    return [len(one.text) for one in texts]


async def rows(found: list[dict]) -> list[dict | ValueError]:
    return [{"twice": 2 * one["n"]} if one["n"] else ValueError("zero") for one in found]


async def shout(texts: list[str]) -> list[str]:
    return [text.upper() for text in texts]


@shoal.batch(max_batch_size=4)
async def sizes(numbers: list[int]) -> list[int]:
    return [len(numbers)] * len(numbers)


class Times:
    def __init__(self, factor: int) -> None:
        if factor == 13:
            raise OSError("no weights")
        self.factor = factor

    async def __call__(self, numbers: list[int]) -> list[int]:
        return [self.factor * one for one in numbers]


async def fails(numbers: list[int]) -> list[int]:
    raise LookupError("bad day")


async def odd(numbers: list[int]) -> list[object]:
    return [object() if one == 2 else "\\ud800\\u2028" for one in numbers]


async def streams(numbers: list[int]):
    yield numbers


async def one_item(number: int) -> int:
    return number
"""

APP = """
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import Route

seen = []


async def answer(request):
    body = await request.json()
    seen.append(body)
    if body.get("busy") and seen.count(body) < 3:
        return PlainTextResponse("later", 503)
    if body.get("fails"):
        raise LookupError("bad day")
    status = body.get("status", 200)
    return JSONResponse({"got": body, "word": request.state.word}, status)


@asynccontextmanager
async def lifespan(app):
    yield {"word": "open"}


@asynccontextmanager
async def no_lifespan(app):
    raise LookupError("no weights")
    yield


routes = [Route("/v1/answers", answer, methods=["POST"])]
app = Starlette(routes=routes, lifespan=lifespan)
broken = Starlette(lifespan=no_lifespan)
"""
LIMITED = """
import resource, sys
from shoal.cli import main
from shoal.commands.support.batch_lines import ResultFiles
from shoal.commands.support.output import CommandError
resource.setrlimit(resource.RLIMIT_FSIZE, (101, 101))
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture(autouse=True)
def directory(tmp_path, monkeypatch):
    (tmp_path / "jobs.py").write_text(HANDLERS)
    (tmp_path / "site_of_jobs.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    for name in ("jobs", "site_of_jobs"):
        sys.modules.pop(name, None)


@pytest.fixture
def job(told):
    """Runs a job over values, to ``out.jsonl``; gives its output, line by line."""

    def job(handler, values, *arguments, code=0):
        Path("in.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in values))
        told(handler, "in.jsonl", "out.jsonl", *arguments, code=code)
        job.said = told.err
        return lines("out.jsonl")

    return job


def lines(path):
    return [json.loads(line) if line else None for line in Path(path).read_text().splitlines()]


def doubled(count):
    return [None if one % 7 == 0 else 2 * one for one in range(1, count + 1)]


@pytest.mark.parametrize("loop", ["trio", "asyncio"])
def test_each_line_has_its_result_and_errors_have_a_file(job, loop):
    assert job("jobs:double", range(1, 31), "--event-loop", loop, code=1) == doubled(30)
    assert lines("out.errors.jsonl") == [
        {
            "line": one,
            "error": {
                "type": "ValueError",
                "title": "The call failed",
                "detail": f"ValueError: no {one}",
            },
        }
        for one in (7, 14, 21, 28)
    ]
    assert "line 7 failed, the first in this run: " in job.said
    assert "run-batch: 30 of 30 items (100%), " in job.said
    assert job.said.rstrip().endswith("a second; 4 failed, see out.errors.jsonl")
    assert job.said.count("out.jsonl: 30 lines in ") == 1


def test_without_errors_there_is_no_file_of_them(job):
    assert job("jobs:double", [1, 2], "--quiet") == [2, 4]
    assert job.said == ""
    assert not Path("out.errors.jsonl").exists()


def test_lines_are_checked_as_over_http(told):
    Path("in.jsonl").write_text(
        '{"text": "eel"}\n\n  \n{"text": 3}\n{"text"\n\xff\n{"text": "ray"}'
    )
    told("jobs:lengths", "in.jsonl", "out.jsonl", "--errors", "bad.jsonl", code=1)
    assert Path("out.jsonl").read_text() == "3\n\n\nnull\nnull\nnull\n3\n"
    errors = {one["line"]: one["error"] for one in lines("bad.jsonl")}
    assert {line: one["type"] for line, one in errors.items()} == {
        4: "urn:shoal:problem:invalid-item",
        5: "urn:shoal:problem:invalid-json",
        6: "urn:shoal:problem:invalid-json",
    }
    assert errors[4]["errors"][0]["loc"] == ["text"]
    assert not {"status", "instance"} & errors[4].keys()


def test_many_bad_lines_stay_in_their_places(told):
    bad = 3000
    Path("in.jsonl").write_text("1\n" + "x\n" * bad + "2\n" + "\n" * bad + "3\n")
    told("jobs:double", "in.jsonl", "out.jsonl", code=1)
    assert lines("out.jsonl") == [2, *[None] * bad, 4, *[None] * bad, 6]
    assert [one["line"] for one in lines("out.errors.jsonl")] == list(range(2, bad + 2))


@pytest.mark.parametrize("handler", ["sums", "keyword_sums"])
def test_several_parameters_are_an_object(job, handler):
    assert job(f"jobs:{handler}", [{"a": 1, "b": 2}, {"b": 1}, {"a": 3, "b": 4}], code=1) == [
        {"sum": 3},
        None,
        {"sum": 7},
    ]


def test_what_is_no_json_is_an_error_of_its_line(job):
    assert job("jobs:odd", [1, 2, 3], code=1) == ["�\u2028", None, "�\u2028"]
    assert Path("out.jsonl").read_bytes().count(b"\n") == 3


def test_a_handler_that_raises_fails_its_lines(job):
    assert job("jobs:fails", [1, 2], code=1) == [None, None]
    assert "LookupError: bad day" in lines("out.errors.jsonl")[1]["error"]["detail"]


def test_options_of_batches(job):
    assert job("jobs:sizes", range(8)) == [4] * 8
    assert job("jobs:sizes", range(8), "--overwrite", "--option", "max_batch_size=2") == [2] * 8
    assert job("jobs:sizes", range(8), "--overwrite", "--window", "1") == [1] * 8
    assert job("jobs:sizes", range(9), "--overwrite", "--option", "max_batch_size=3") == [3] * 9
    assert job("jobs:Times", [1, 2], "--overwrite", "--arg", "3") == [3, 6]


def test_a_limit_and_the_same_command_again(job):
    assert job("jobs:double", range(1, 31), "--limit", "10", code=1) == doubled(10)
    assert "20 lines are left; the same command goes on with line 11" in job.said
    assert job("jobs:double", range(1, 31), code=1) == doubled(30)
    assert "out.jsonl has 10 lines: going on with line 11" in job.said
    assert "20 lines in" in job.said
    assert "30 in all; 4 failed" in job.said
    calls = Path("calls.txt").read_text()
    assert job("jobs:double", range(1, 31), code=1) == doubled(30)
    assert Path("calls.txt").read_text() == calls
    assert [int(call) for call in calls.split()] == list(range(1, 31))


def test_it_goes_on_from_whatever_a_kill_leaves(job):
    job("jobs:double", range(1, 41), code=1)
    output, errors = Path("out.jsonl").read_bytes(), Path("out.errors.jsonl").read_bytes()
    # Errors are written first, so those of all lines in the output are there.
    ends = [errors.index(b"\n", at) + 1 for at in range(len(errors)) if errors[at:][:1] == b"{"]
    chosen = random.Random(5)
    points = [0, 1, len(output) - 1, *(chosen.randrange(len(output)) for _ in range(40))]
    for at in points:
        left = output[:at]
        failed = left.split(b"\n")[:-1].count(b"null")
        least = sorted({0, *ends})[failed]
        size = chosen.choice([least, chosen.randint(least, len(errors)), len(errors)])
        Path("out.jsonl").write_bytes(left)
        Path("out.errors.jsonl").write_bytes(errors[:size])
        Path("calls.txt").unlink()
        done = left.count(b"\n") + 1
        job("jobs:double", range(1, 41), "--limit", "1", code=int(done >= 7))
        assert Path("out.jsonl").read_bytes() == b"".join(output.splitlines(True)[:done])
        assert lines_in("out.errors.jsonl") == done // 7
        job("jobs:double", range(1, 41), code=1)
        assert Path("out.jsonl").read_bytes() == output
        assert Path("out.errors.jsonl").read_bytes() == errors
        computed = [int(one) for one in Path("calls.txt").read_text().split()]
        assert computed == list(range(left.count(b"\n") + 1, 41))


def started(directory, *arguments):
    command = [sys.executable, "-m", "shoal", COMMAND, *arguments]
    pipes = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen(command, cwd=directory, text=True, **pipes)


def run_until(directory, has_come, signum, *arguments):
    """Starts a job, sends a signal once it has come far enough; gives its code, and its stderr."""
    process = started(directory, *arguments)
    try:
        while process.poll() is None and not has_come(process):
            time.sleep(0.005)
        process.send_signal(signum)
        _, said = process.communicate(timeout=HANG_S)
    finally:
        process.kill()
    return process.returncode, said


def lines_in(path):
    with suppress(FileNotFoundError):
        return Path(path).read_bytes().count(b"\n")
    return 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loop", "signum", "code"),
    [("trio", signal.SIGKILL, -9), ("asyncio", signal.SIGINT, 130), ("trio", signal.SIGTERM, 143)],
)
def test_a_stopped_job_loses_no_line_and_writes_none_twice(directory, told, loop, signum, code):
    count = 1500
    Path("in.jsonl").write_text("".join(f"{one}\n" for one in range(1, count + 1)))
    chosen = random.Random(signum)
    command = ["jobs:steps", "in.jsonl", "out.jsonl", "--event-loop", loop]
    command += ["--option", "max_batch_size=8"]
    written = 0
    for _ in range(2):
        enough = written + chosen.randrange(1, 250)
        found, said = run_until(
            directory, lambda _, enough=enough: lines_in("out.jsonl") >= enough, signum, *command
        )
        assert found == code, said
        assert lines_in("out.jsonl") >= enough
        written = lines_in("out.jsonl")
        assert written < count
        if code > 0:
            assert "stopping; once more to stop at once" in said
            assert f"lines are left; the same command goes on with line {written + 1:,}" in said
        Path("calls.txt").unlink()
        told(*command, "--limit", "10", code=1)
        written += 10
        first = int(Path("calls.txt").read_text().split()[0])
        assert first == written - 9
    told(*command, code=1)
    assert lines("out.jsonl") == doubled(count)
    assert [one["line"] for one in lines("out.errors.jsonl")] == list(range(7, count + 1, 7))


@pytest.mark.slow
def test_a_second_signal_stops_a_handler_that_does_not_end(directory):
    Path("in.jsonl").write_text("1\n")
    process = started(directory, "jobs:hangs", "in.jsonl", "out.jsonl")
    try:
        assert process.stdout.readline() == "it hangs\n"
        process.send_signal(signal.SIGINT)
        while "stopping" not in process.stderr.readline():
            pass
        process.send_signal(signal.SIGINT)
        assert process.wait(HANG_S) == 130
    finally:
        process.kill()
        process.communicate()


@pytest.mark.slow
def test_a_pipe_is_read_as_it_is_written(directory):
    command = [sys.executable, "-m", "shoal", COMMAND, "jobs:sums", "-", "out.jsonl", "--quiet"]
    process = subprocess.Popen(command, cwd=directory, stdin=subprocess.PIPE)
    with process.stdin as pipe:
        for number in (1, 2, 3):
            pipe.write(b'{"a": %d, "b": 1}\n{"a": 0' % number)
            pipe.flush()
            while lines_in("out.jsonl") < 2 * number - 1:
                assert process.poll() is None
            pipe.write(b', "b": 0}\n')
        pipe.write(b'{"a": 9, "b": 9}')
    assert process.wait(HANG_S) == 0
    assert [one["sum"] for one in lines("out.jsonl")] == [2, 0, 3, 0, 4, 0, 18]
    again = subprocess.run(
        command, cwd=directory, input=b"1\n", stderr=subprocess.PIPE, check=False
    )
    assert again.returncode == 2
    assert b"a pipe begins again: give --overwrite" in again.stderr


@pytest.mark.slow
def test_an_endless_input_is_read_only_as_far_as_the_limit(directory):
    with subprocess.Popen(["yes", "3"], stdout=subprocess.PIPE) as endless:
        command = [sys.executable, "-m", "shoal", COMMAND, "jobs:double", "-", "out.jsonl"]
        done = subprocess.run(
            [*command, "--limit", "5000"],
            cwd=directory,
            stdin=endless.stdout,
            timeout=HANG_S,
            check=False,
        )
        endless.kill()
    assert done.returncode == 0
    assert lines("out.jsonl") == [6] * 5000


def table(path, **columns):
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    if columns:
        parquet.write_table(arrow.table(columns), path)
        return None
    return parquet.read_table(path).to_pydict()


def test_rows_of_parquet_become_columns(told):
    table("in.parquet", n=[3, 0, 5], name=["a", "b", "c"])
    told("jobs:rows", "in.parquet", "out.parquet", "--limit", "2", code=1)
    assert not Path("out.parquet").exists()
    assert Path("out.parquet.part.jsonl").read_text() == '{"twice":6}\nnull\n'
    told("jobs:rows", "in.parquet", "out.parquet", code=1)
    assert table("out.parquet") == {"twice": [6, None, 10]}
    assert lines("out.errors.jsonl")[0]["line"] == 2
    left = {path.name for path in Path().iterdir() if path.name.startswith("out.")}
    assert left == {"out.parquet", "out.errors.jsonl"}
    told("jobs:rows", "in.parquet", "out.parquet", code=1)
    assert "out.parquet is complete; --overwrite computes it again" in told.err


@pytest.mark.parametrize(
    ("numbers", "computed"), [([1, 2], {"result": [2, 4]}), ([], {"result": []})]
)
def test_a_parquet_file_that_was_not_written_is_written_by_the_same_command(
    told, numbers, computed
):
    Path("in.jsonl").write_text("".join(f"{one}\n" for one in numbers))
    Path("out.parquet.part.jsonl").write_text("".join(f"{2 * one}\n" for one in numbers))
    told("jobs:double", "in.jsonl", "out.parquet")
    assert not Path("calls.txt").exists()
    assert table("out.parquet") == {"result": [2 * one for one in numbers]}
    assert not Path("out.parquet.part.jsonl").exists()


def test_a_column_of_parquet_and_a_column_of_results(told):
    table("in.parquet", word=["eel", "ray"], number=[1, 2])
    told("jobs:shout", "in.parquet", "out.parquet", "--column", "word")
    assert table("out.parquet") == {"result": ["EEL", "RAY"]}
    table("one.parquet", anything=[1, 2, 7])
    told("jobs:double", "one.parquet", "out.jsonl", code=1)
    assert lines("out.jsonl") == [2, 4, None]
    told("jobs:shout", "in.parquet", "x.jsonl", "--column", "size", code=2)
    assert "in.parquet has no column 'size'; it has word, number" in told.err
    table("bad.parquet", word=["eel", None])
    told("jobs:shout", "bad.parquet", "bad.jsonl", code=1)
    assert lines("bad.errors.jsonl")[0]["error"]["type"] == "urn:shoal:problem:invalid-item"


@pytest.mark.parametrize("values", [(1, "x"), ({}, {}), (1, 2**64)])
def test_results_that_fit_no_parquet_file_stay(job, told, values):
    told_values = [{"a": one} for one in values]
    Path("in.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in told_values))
    Path("same.py").write_text(
        "async def same(found: list[dict]) -> list[dict]:\n    return found\n"
    )
    told("same:same", "in.jsonl", "out.parquet", code=1)
    assert "the results fit no Parquet file, and stay in out.parquet.part.jsonl: " in told.err
    assert lines("out.parquet.part.jsonl") == told_values


def test_results_stay_where_no_parquet_file_can_be_written(told):
    Path("in.jsonl").write_text("1\n")
    Path("out.parquet.part").mkdir()
    told("jobs:double", "in.jsonl", "out.parquet", code=1)
    assert "can't write out.parquet, and the results stay in out.parquet.part.jsonl: " in told.err
    assert lines("out.parquet.part.jsonl") == [2]


def test_parquet_without_its_package(told, monkeypatch):
    monkeypatch.setattr("shoal.core.extras.find_spec", lambda _: None)
    Path("in.jsonl").write_text("1\n")
    told("jobs:double", "in.jsonl", "out.parquet", code=1)
    assert "a Parquet file needs pyarrow, which is not installed: pip install 'shoal[parquet]'" in (
        told.err
    )


def test_without_the_extra_serve_it_is_named(told, monkeypatch):
    Path("in.jsonl").write_text("1\n")
    monkeypatch.setattr("shoal.core.extras.find_spec", lambda _: None)
    told("jobs:double", "in.jsonl", "out.jsonl", code=1)
    assert "shoal run-batch needs pydantic, which is not installed: pip install 'shoal[serve]'" in (
        told.err
    )


def request(custom_id, **body):
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/answers", "body": body}


@pytest.mark.parametrize("loop", ["trio", "asyncio"])
def test_openais_lines_are_requests_to_an_application(job, loop):
    asked = [
        request("good", n=1),
        request("busy", busy=True),
        request("bad", status=400),
        request("raises", fails=True),
        request("streamed", stream=True),
        {**request("lost", n=1), "url": "/v1/nothing"},
        {**request("read", n=1), "method": "GET"},
        {**request("far", n=1), "url": "http://example.com/"},
        {**request("whole", n=1), "body": []},
        {"method": "POST"},
        3,
    ]
    answers = job("site_of_jobs:app", asked, "--event-loop", loop, code=1)
    assert [one.keys() for one in answers] == [{"id", "custom_id", "response", "error"}] * 11
    assert [one["custom_id"] for one in answers[:9]] == [one["custom_id"] for one in asked[:9]]
    good = answers[0]["response"]
    assert good["status_code"] == 200
    assert good["body"] == {"got": {"n": 1}, "word": "open"}
    statuses = [one["response"] and one["response"]["status_code"] for one in answers]
    assert statuses == [200, 200, 400, None, None, 404, *[None] * 5]
    codes = [one["error"] and one["error"]["code"] for one in answers]
    assert (
        codes
        == [None, None, None, "request_failed", "invalid_request", None] + ["invalid_request"] * 5
    )
    errors = lines("out.errors.jsonl")
    assert [one.pop("line") for one in errors] == list(range(3, 12))
    assert errors == answers[2:]


def test_an_application_that_does_not_start(job):
    job("site_of_jobs:broken", [request("a")], code=1)
    assert "no weights" in job.said


MISTAKES = [
    (["jobs:double", "no.jsonl", "out.jsonl"], "there is no file no.jsonl"),
    (["jobs:double", "in.jsonl", "in.jsonl"], "in.jsonl would be overwritten"),
    (["jobs:double", "in.jsonl", "out.jsonl", "--errors", "in.jsonl"], "would be overwritten"),
    (["jobs:double", "in.jsonl", "out.jsonl", "--errors", "out.jsonl"], "need two files"),
    (["jobs:double", "in.jsonl", "out.jsonl", "--errors", "notes.txt"], "is no file of errors"),
    (["jobs:double", "in.jsonl", "long.jsonl"], "long.jsonl has 3 lines, and in.jsonl only 1"),
    (["jobs:double", "in.jsonl", "."], ". is a directory"),
    (["jobs:double", ".", "out.jsonl"], "can't read .: Is a directory"),
    (["jobs:double", "in.jsonl", "/dev/null"], "is no regular file"),
    (["jobs:double", "in.jsonl", "no/where.jsonl"], "can't write no/where.jsonl"),
    (["jobs:double", "in.jsonl", "out.jsonl", "--column", "a"], "--column is for a Parquet file"),
    (["jobs:streams", "in.jsonl", "out.jsonl"], "answers with streams"),
    (["jobs:sizes", "in.jsonl", "out.jsonl", "--option", "max_batch_size=-1"], "at least 1"),
    (["jobs:one_item", "in.jsonl", "out.jsonl"], "takes one item at a time"),
    (["jobs:double", "in.jsonl", "out.jsonl", "--option", "size=3"], "size"),
    (["jobs:double", "in.jsonl", "out.jsonl", "--arg", "3"], "takes no --arg or --kwarg"),
    (["jobs:double", "in.jsonl", "out.jsonl", "--kwarg", "n=3"], "double is not a class"),
    (
        ["jobs:Times", "in.jsonl", "out.jsonl"],
        "Times can't be instantiated: missing a required argument: 'factor'; give its arguments",
    ),
    (["site_of_jobs:app", "in.jsonl", "out.jsonl", "--arg", "3"], "has its own options"),
    (["double", "in.jsonl", "out.jsonl"], "is not an import path"),
]


@pytest.mark.parametrize(("arguments", "said"), MISTAKES)
def test_mistakes_in_the_command(arguments, said, told):
    files = {"in.jsonl": "1\n", "long.jsonl": "1\n2\n3\n", "notes.txt": "my notes"}
    for name, text in files.items():
        Path(name).write_text(text)
    told(*arguments, code=2)
    assert said in told.err
    assert {name: Path(name).read_text() for name in files} == files


def test_a_class_that_fails_to_start(told):
    Path("in.jsonl").write_text("1\n")
    told("jobs:Times", "in.jsonl", "out.jsonl", "--arg", "13", code=1)
    assert "OSError: no weights" in told.err
    assert "Times could not be instantiated, see above" in told.err
    assert not Path("out.jsonl").exists()


def test_a_second_run_of_the_same_output_is_refused(told):
    Path("in.jsonl").write_text("1\n")
    with Path("out.jsonl").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        told("jobs:double", "in.jsonl", "out.jsonl", code=2)
    assert "another run writes out.jsonl" in told.err


def test_results_that_could_not_be_written_leave_no_gap(told, monkeypatch):
    tried = []

    def write(files, results):
        if results:
            tried.append(len(results))
            raise CommandError("can't write out.jsonl", 1)

    monkeypatch.setattr(ResultFiles, "write", write)
    Path("in.jsonl").write_text("1\n2\n3\n")
    told("jobs:double", "in.jsonl", "out.jsonl", code=1)
    assert tried == [3]


@pytest.mark.slow
def test_a_full_disk_ends_the_job_which_goes_on_later(directory, told):
    numbers = [one for one in range(1, 301) if one % 7]
    Path("in.jsonl").write_text("".join(f"{one}\n" for one in numbers))
    command = ["jobs:shown", "in.jsonl", "out.jsonl"]
    Path("jobs.py").write_text("async def shown(n: list[int]) -> list[int]:\n    return n\n")
    full = subprocess.run(
        [sys.executable, "-c", LIMITED, COMMAND, *command],
        cwd=directory,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert full.returncode == 1
    assert "can't write out.jsonl: File too large" in full.stderr
    assert Path("out.jsonl").stat().st_size == 101
    told(*command)
    assert "dropped the last line, which was not written to its end" in told.err
    assert lines("out.jsonl") == numbers
