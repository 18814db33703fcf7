"""How the process of a replica starts and ends, and what is known of it."""

import gc
import logging
import os
import signal
import struct
import subprocess
import sys
import textwrap
from inspect import Parameter
from typing import Any

import anyio
import pytest

from replicas.local_replicas import dies, failure_of
from replicas.playing import MODULE, died, gone, is_alive, made, noted, playing
from replicas.process_backends import Plain
from shoal.batching.current import Identity
from shoal.errors import ReplicaDied, ReplicaNotStarted
from shoal.replicas.placements import ProcessOptions
from shoal.replicas.process import worker
from shoal.replicas.process.worker import Output
from shoal.testing.replicas.stage import Played
from worker_processes import children_of

pytestmark = [pytest.mark.real_time, pytest.mark.slow]


async def failed_start(target: Any, *init_args: Any, **options: Any) -> ReplicaNotStarted:
    """Plays a replica that does not become ready, and returns why."""
    before = children_of(os.getpid())
    async with playing(made(target, *init_args, **options)) as played:
        await played.ended.wait()
    assert isinstance(played.error, ReplicaNotStarted)
    assert children_of(os.getpid()) == before
    return played.error


# Starting


async def test_a_start_that_fails_says_what_the_code_raised_and_printed():
    error = await failed_start(f"{MODULE}:Prints")
    assert isinstance(error.__cause__, FileNotFoundError)
    assert "FileNotFoundError: weights.bin" in str(error)
    assert "the weights are missing" in str(error)


@pytest.mark.one_loop
async def test_what_a_failed_start_printed_is_told_though_nobody_has_read_it_yet(monkeypatch):
    monkeypatch.setattr(Output, "read", lambda _: anyio.sleep_forever())
    assert "the weights are missing" in str(await failed_start(f"{MODULE}:Prints"))


def test_a_worker_of_plain_code_loads_no_event_loop():
    code = "import anyio, sys; known = set(sys.modules); import shoal.replicas.process.child.main\n"
    code += "print(*set(sys.modules) - known)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert not {"trio", "asyncio", "anyio.from_thread"} & set(loaded.stdout.split())


async def test_a_start_that_takes_too_long_is_killed(folder):
    error = await failed_start(f"{MODULE}:Slow", folder.path, start_timeout_s=1.0)
    assert "not ready within 1 s" in str(error)


async def test_a_replica_that_is_stopped_while_it_starts_is_not_started(folder):
    played = Played(made(f"{MODULE}:Slow", folder.path))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(played.serve)
        await noted(folder, "constructing")
        played.replica.stop()
    assert isinstance(played.error, ReplicaNotStarted)
    assert "stopped before it was ready" in str(played.error)


@pytest.mark.one_loop
async def test_an_interpreter_that_is_not_there_is_told():
    error = await failed_start(f"{MODULE}:Plain", python="/no/such/python")
    assert "/no/such/python" in str(error)


@pytest.mark.one_loop
async def test_an_interpreter_without_shoal_says_so(tmp_path):
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S -I "$@"\n')
    python.chmod(0o755)
    error = await failed_start(f"{MODULE}:Plain", python=str(python))
    assert "exited with code 1" in str(error)
    assert "No module named" in str(error)


@pytest.mark.one_loop
async def test_a_worker_of_another_shoal_is_refused(monkeypatch):
    monkeypatch.setattr(worker, "PROTOCOL", 999)
    error = await failed_start(f"{MODULE}:Plain")
    assert "install the same version of Shoal in both" in str(error)


@pytest.mark.one_loop
async def test_code_that_can_not_be_sent_is_refused_with_what_would_do():
    error = await failed_start(lambda items: items)
    assert "'package.module:Name'" in str(error)
    assert isinstance(error.__cause__, TypeError)


@pytest.mark.one_loop
async def test_a_user_config_that_can_not_be_sent_is_refused():
    error = await failed_start(Plain, user_config=lambda: None)
    assert "the user_config of Plain can't be sent" in str(error)


@pytest.mark.one_loop
async def test_an_annotation_that_can_not_be_had_here_is_left_out(tmp_path, monkeypatch):
    (tmp_path / "own_code_9.py").write_text(
        "class Item: ...\n"
        "class Code:\n"
        "    def __call__(self, item: Item, other: int, third: 'NotThere') -> str: ...\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    async with playing(made("own_code_9:Code")) as played:
        signature = played.description.method("__call__").signature
    annotations = [p.annotation for p in signature.parameters.values()]
    assert annotations[:2] == [Parameter.empty, int]
    assert signature.return_annotation is str
    assert "own_code_9" not in sys.modules


@pytest.mark.one_loop
async def test_a_worker_has_its_environment_and_its_cpus():
    cpus = sorted(os.sched_getaffinity(0))
    entries = [[cpus[0]], cpus]
    for number in (0, 1, 2):
        replica = made(number=number, env={"SHOAL_TEST": "on"}, cpu_affinity=entries)
        async with playing(replica) as played:
            assert await played.run("environment", ["SHOAL_TEST"]) == ["on"]
            assert await played.run("environment", ["PATH"]) == [os.environ["PATH"]]
            assert await played.run("cpus", [0]) == [entries[number % 2]]


SCRIPT = """
    import sys
    import anyio
    from shoal.replicas.contract import Blueprint
    from shoal.batching.current import Identity
    from shoal.replicas.code.definition import Definition
    from shoal.replicas.process.replica import ProcessReplica

    print("runs as", __name__)

    class Code:
        def __call__(self, items: list[int]) -> list[str]:
            return [f"{item} in {__name__}" for item in items]

    async def main():
        replica = ProcessReplica(
            Blueprint(identity=Identity("a", "a#1"), definition=Definition(Code))
        )
        async with anyio.create_task_group() as tasks:
            await tasks.start(lambda task_status: replica.serve(task_status=task_status))
            print(await replica.run("__call__", [1]))
            replica.stop()
"""


GUARDED = f'{SCRIPT}\n    if __name__ == "__main__":\n        anyio.run(main)\n'


async def run_script(path: Any, text: str, *arguments: str, cwd: Any = None) -> tuple[str, str]:
    path.write_text(textwrap.dedent(text))
    command = [sys.executable, *arguments]
    done = await anyio.run_process(command, check=False, cwd=cwd or path.parent)
    return done.stdout.decode(), done.stderr.decode()


@pytest.mark.one_loop
@pytest.mark.parametrize("how", [["script_9.py", "argument"], ["-m", "script_9"]])
async def test_code_of_the_main_script_is_found_by_running_it_under_another_name(tmp_path, how):
    out, errors = await run_script(tmp_path / "script_9.py", GUARDED, *how)
    assert "['1 in __mp_main__']" in out, errors


@pytest.mark.one_loop
async def test_a_script_that_starts_workers_without_a_guard_is_told_so(tmp_path):
    unguarded = f"{SCRIPT}\n    anyio.run(main)\n"
    out, errors = await run_script(tmp_path / "script_9.py", unguarded, "script_9.py")
    assert "in __mp_main__" not in out
    assert 'if __name__ == "__main__":' in errors


# Ending


async def test_an_exit_fails_the_work_with_its_code_and_the_last_words():
    async with playing(made()) as played:
        with pytest.raises(ReplicaDied, match="last words") as caught:
            await played.run("exit", [7])
        await played.ended.wait()
    for error in (caught.value, played.error):
        assert (error.exit_code, error.signal, error.replica) == (7, None, "model#0")
        assert error.last_lines == "last words"


async def test_what_was_not_read_when_a_worker_ended_is_among_its_last_words(tmp_path):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho one >&2\nprintf two >&2\nexit 7\n")
    python.chmod(0o755)
    identity = Identity("model", "model#0")
    ended = worker.Worker(identity, ProcessOptions(python=str(python)))
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)  # noqa: ASYNC222 - it ends at once
    ended.close()
    death = ended.death(ended.how_it_ended())
    assert (death.exit_code, death.last_lines) == (7, "one\ntwo")


@pytest.mark.one_loop
async def test_a_crash_fails_the_work_and_shows_where_it_was():
    async with playing(made()) as played:
        with pytest.raises(ReplicaDied) as caught:
            await played.run("crash", [0])
    assert caught.value.signal == "SIGSEGV"
    assert "process_backends.py" in caught.value.last_lines


async def test_a_kill_fails_all_work_under_way_and_each_has_its_own_error(folder):
    errors = []

    async def call(name):
        errors.append(await failure_of(played.run("hold_async", [name])))

    async with playing(made(f"{MODULE}:Async", folder.path)) as played:
        [pid] = await played.run("pid", [0])
        async with anyio.create_task_group() as tasks:
            for name in ("a", "b", "c"):
                tasks.start_soon(call, name)
                await noted(folder, f"holds {name}")
            os.kill(pid, signal.SIGKILL)
    assert [error.signal for error in errors] == 3 * ["SIGKILL"]
    assert len({id(error) for error in errors}) == 3


async def test_a_worker_that_dies_at_rest_ends_its_replica():
    async with playing(made()) as played:
        [pid] = await played.run("pid", [0])
        os.kill(pid, signal.SIGTERM)
        await died(played)
        assert played.error.signal == "SIGTERM"
        with pytest.raises(ReplicaDied):
            await played.run("pid", [0])


@pytest.mark.one_loop
async def test_an_interrupt_of_the_terminal_is_not_for_workers():
    async with playing(made()) as played:
        [pid] = await played.run("pid", [0])
        os.kill(pid, signal.SIGINT)
        assert await played.run("pid", [0]) == [pid]
        assert os.getpgid(pid) == pid


@pytest.mark.one_loop
async def test_what_a_worker_has_started_ends_with_it():
    async with playing(made()) as played:
        [pid] = await played.run("start_child", [0])
        assert is_alive(pid)
    assert played.error is None
    await gone(pid)


async def test_a_worker_that_closes_its_connection_is_killed(folder):
    async with playing(made(cancel_grace_s=0.05)) as played:
        with pytest.raises(ReplicaDied, match="closed its connection"):
            await played.run("close_files", [0])


@pytest.mark.one_loop
async def test_an_error_in_close_is_printed_and_the_end_is_a_good_one(caplog):
    caplog.set_level(logging.INFO, "shoal.replica.model")
    async with playing(made(f"{MODULE}:BadClose")) as played:
        pass
    assert played.error is None
    assert "model#0: ValueError: close failed" in caplog.messages


async def test_a_close_that_does_not_end_is_killed(folder, monkeypatch):
    monkeypatch.setattr("shoal.replicas.process.conversing.CLOSING_S", 0.05)
    replica = made(f"{MODULE}:StuckClose", folder.path, cancel_grace_s=0.05)
    async with playing(replica) as played:
        [pid] = await played.run("pid", [0])
    assert played.error is None
    assert "closing" in folder.notes()
    assert not is_alive(pid)


async def test_a_replica_that_is_cancelled_leaves_no_process(folder):
    before = children_of(os.getpid())
    async with playing(made(Plain, folder.path)) as played, anyio.create_task_group() as tasks:
        tasks.start_soon(dies, played.run("hold", ["a"]))
        await noted(folder, "holds a")
        played.scope.cancel()
        await played.ended.wait()
    assert children_of(os.getpid()) == before


# Knowing


async def test_what_a_worker_writes_is_logged(caplog):
    caplog.set_level(logging.INFO, "shoal.replica.model")
    async with playing(made()) as played:
        await played.run("write", [0])
    logged = [record.getMessage() for record in caplog.records if "shoal.replica." in record.name]
    assert sorted(logged) == ["model#0: no end of line", "model#0: to stderr", "model#0: to stdout"]


@pytest.mark.one_loop
async def test_a_worker_that_writes_much_is_not_held_back(caplog):
    caplog.set_level(logging.INFO, "shoal.replica.model")
    async with playing(made()) as played:
        assert await played.run("flood", [20_000]) == [20_000]
    assert caplog.messages[-3:] == ["model#0: 19997", "model#0: 19998", "model#0: 19999"]


def test_of_a_flood_of_lines_only_some_are_logged(caplog):
    caplog.set_level(logging.INFO, "shoal.replicas")
    readable, writable = os.pipe()
    with open(readable, "rb") as ours, open(writable, "wb", buffering=0) as theirs:
        output = Output(ours, logging.getLogger("shoal.replicas"), "a#0")
        theirs.write(b"\n" * 2**16)
        output.read_available()
    assert len(caplog.messages) < 500
    assert caplog.messages[0].endswith("lines are left out: too much output)")


@pytest.mark.one_loop
async def test_the_memory_of_a_worker_is_known_while_it_lives():
    replica = made()
    assert replica.memory_bytes() is None
    async with playing(replica):
        assert replica.memory_bytes() > 5_000_000
    assert replica.memory_bytes() is None


async def test_work_that_takes_twice_the_memory_is_killed(folder):
    replica = made(Plain, folder.path, max_memory_bytes=100_000_000)
    async with playing(replica) as played:
        with pytest.raises(ReplicaDied, match="more than twice max_memory_bytes=100,000,000"):
            await played.run("eat", [400_000_000])


# Other platforms


async def test_a_replica_works_where_there_is_no_pidfd_and_no_shared_memory(monkeypatch, folder):
    def not_here(*_args: Any) -> Any:
        raise OSError("not here")

    monkeypatch.setattr(worker, "_pidfd", not_here)
    monkeypatch.setattr("os.memfd_create", not_here)
    async with playing(made()) as played:
        [echo] = await played.run("echo", [b"x" * 100_000])
        assert echo == b"x" * 100_000
        with pytest.raises(ReplicaDied) as caught:
            await played.run("exit", [7])
        assert caught.value.exit_code == 7


@pytest.mark.parametrize(("parent_lives", "printed"), [(True, b"lives\n"), (False, b"")])
def test_a_worker_ends_at_once_if_its_parent_is_gone_already(parent_lives, printed):
    held, ours = os.pipe()
    if not parent_lives:
        os.close(ours)
    code = (
        "import sys; from shoal.replicas.process.child.main import die_with_the_parent;"
        f"die_with_the_parent({held}); print('lives')"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, pass_fds=[held], capture_output=True, check=False)
    os.close(held)
    if parent_lives:
        os.close(ours)
    assert done.stdout == printed


NO_SUCH_KIND = b"\x63" + bytes(23)
HUGE = struct.pack("<BBxxIQQ", 10, 0, 0, 1, 2**61)
NOT_LENT = struct.pack("<BBxxIQQQ", 10, 1, 0, 1, 0, 4096)


@pytest.mark.parametrize(
    ("channel", "rubbish"),
    [("data", NO_SUCH_KIND), ("data", HUGE), ("data", NOT_LENT), ("control", NO_SUCH_KIND)],
)
async def test_a_worker_that_sends_what_is_no_frame_is_killed(channel, rubbish):
    async with playing(made()) as played:
        with pytest.raises(ReplicaDied, match="sent an invalid frame"):
            await played.run("send_rubbish", [(channel, rubbish)])
        await died(played)


@pytest.mark.parametrize("shared_memory_bytes", [2**62, 2**50])
async def test_a_worker_that_finds_no_memory_leaves_nothing_open(shared_memory_bytes):
    await failed_start(f"{MODULE}:Plain", shared_memory_bytes=shared_memory_bytes)
    gc.collect()
    before = os.listdir("/proc/self/fd")
    await failed_start(f"{MODULE}:Plain", shared_memory_bytes=shared_memory_bytes)
    gc.collect()
    assert os.listdir("/proc/self/fd") == before


def memories() -> int:
    """How many pieces of shared memory are open."""
    links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    return sum("memfd:" in os.readlink(link) for link in links if os.path.lexists(link))


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_the_memory_of_a_worker_that_has_ended_is_closed_at_once(is_cancelled):
    gc.collect()
    before = memories()
    gc.disable()
    try:
        async with playing(made()) as played:
            assert memories() == before + 1
            [pid] = await played.run("pid", [0])
            played.scope.cancel() if is_cancelled else os.kill(pid, signal.SIGKILL)
            await played.ended.wait()
            assert isinstance(played.error, ReplicaDied) is not is_cancelled
            played.error = None
            assert memories() == before
    finally:
        gc.enable()


@pytest.mark.one_loop
async def test_a_worker_takes_no_module_from_the_current_directory(tmp_path):
    script, elsewhere = tmp_path / "script.py", tmp_path / "elsewhere"
    elsewhere.mkdir()
    for name in ("runpy", "pickle", "socket"):
        (elsewhere / f"{name}.py").write_text("raise SystemExit('this is not the library')\n")
    out, errors = await run_script(script, GUARDED, str(script), cwd=elsewhere)
    assert "['1 in __mp_main__']" in out, errors
