"""The rules of this test tree.

* An asynchronous test runs on trio and on asyncio, and in virtual time on both: time moves only
  when every task waits, at once, to the next deadline. So no test sleeps, and a wait of an hour is
  as good as one of a second. Where threads, processes or sockets take part virtual time would run
  ahead of them: such a test is marked ``real_time`` and waits for events, never for a time to pass.
* What is about the words of a protocol, which are read and written in the same way whatever runs
  them, is marked ``one_loop``, and runs on trio alone; that its requests are served on both loops
  is shown by the tests with a client of others. A parameter is marked so where it starts a process
  whose code would do the same on another loop; what workers do is tested on both in tests/replicas.
* Each test of the engine and of the server runs on both loops in `make test`. What is above them
  meets the loop through them: its tests on asyncio are marked ``second_loop``, and `make test`
  leaves them to `make test-slow`, as it does the slow tests. Continuous integration runs both.
* asyncio is as `asyncio.run` leaves it. anyio's own runner tells each callback and task that the
  loop is asyncio, so that anyio works where a user's program would meet ``NoEventLoopError``; here
  it does not. What is marked ``real_time`` runs in that laxer way as well, on uvloop, where
  ``SHOAL_TEST_UVLOOP`` is set, as `make test-lowest` does.
* Warnings are errors, so an un-awaited coroutine or an unclosed stream fails the test that left it.
* A test that takes as long as ``time_limits`` says hangs, and fails; one that takes seconds of a
  processor by itself is marked ``slow``, and has more time, since others run beside it.
* What starts processes is marked ``real_time`` as well: `make check` runs what is neither that nor
  slow.
* `make check` and `make test-lowest` set ``SHOAL_TEST_EACH_ONCE``: they run each test function with
  one set of its parameters. `make test` and `make test-slow` run all.
* A handler that must be held waits on an event of the test.
* Each worker of pytest-xdist imports all files. What takes half a second to import is imported by
  the tests that use it.
"""

import faulthandler
import gc
import importlib.util
import os
import signal
import sys
import zlib
from collections import Counter, defaultdict
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key
from _pytest.runner import runtestprotocol
from hypothesis import settings

from event_loops import backend_of
from time_limits import SLOW_TEST_S, TEST_S

ONCE = "failed once"
# A script's background job ignores Ctrl-C, and what `nohup` starts ignores the end of its terminal.
# So would the programs that the tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# The programs that the tests start hold their output back, as those of most users do.
os.environ.pop("PYTHONUNBUFFERED", None)

# Each client of HTTP reads which authorities it may trust, for 30 ms. No test speaks TLS.
os.environ.pop("SSL_CERT_FILE", None)
os.environ["SSL_CERT_DIR"] = os.path.dirname(__file__)

# In each process pydantic looks for plugins among all packages that are installed: for 20 ms.
os.environ["PYDANTIC_DISABLE_PLUGINS"] = "__all__"

# jsonschema checks the format `iri` with this package, which takes seconds to import.
sys.modules["rfc3987_syntax"] = None

TESTS = Path(__file__).parent
LOOPS = ["trio", "asyncio"]
# The folders whose tests run on asyncio in `make test-slow` alone.
ABOVE_THE_LOOPS = {
    *("commands", "conformance", "examples", "front_ends", "http", "http_client", "integrations"),
    *("observe", "replicas", "serving"),
}
if os.environ.get("SHOAL_TEST_UVLOOP") and importlib.util.find_spec("uvloop") is not None:
    LOOPS.append("uvloop")

# Tests that need a package of the dependency groups `interop` or `release`, which may be missing.
OF_OTHERS = {
    "check_jsonschema": ["test_workflows.py"],
    "kubernetes_validate": ["examples/test_deploy.py"],
    "fastapi": [
        "http/test_mounting.py",
        "integrations/test_cancel_on_disconnect.py",
        "integrations/test_under_servers.py",
    ],
    "jsonschema": ["http/openapi/test_openapi_forms.py"],
    "limits": ["examples/test_access.py"],
    "openapi_spec_validator": ["http/openapi/test_openapi.py"],
    "tritonclient": ["http/oip/test_oip_clients.py"],
}
collect_ignore = [
    file
    for name, files in OF_OTHERS.items()
    if importlib.util.find_spec(name) is None
    for file in files
]

settings.register_profile("repeatable", derandomize=True, deadline=None, database=None)
settings.register_profile("searching", deadline=None)


def pytest_configure(config: pytest.Config) -> None:
    """Has Hypothesis draw the same examples in each run, but look for others in the soak tests."""
    settings.load_profile("searching" if config.option.markexpr == "soak" else "repeatable")
    if hasattr(config, "workerinput") and config.option.durations is None:
        config.pluginmanager.register(Worker())


class Worker:
    """Runs the tests of a worker of pytest-xdist.

    It sends no word that a test begins or ends, and of a setup or a teardown only that it failed or
    skipped: each message is half as much work as a test that does nothing. A failed test in real
    time runs once more, because processes, browsers and sockets may stop for seconds on a busy
    machine. The summary lists those that pass only then; one that fails twice has failed.
    """

    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
        failure = next((report for report in reports if report.failed), None)
        if failure is not None and item.get_closest_marker("real_time") is not None:
            reports = runtestprotocol(item, log=False, nextitem=nextitem)
            if not any(report.failed for report in reports):
                failure.outcome = ONCE
                reports.append(failure)
        for report in reports:
            if report.when == "call" or not report.passed:
                item.ihook.pytest_runtest_logreport(report=report)
        return True


def pytest_report_teststatus(report: pytest.TestReport) -> tuple[str, str, str] | None:
    return (ONCE, "R", ONCE.upper()) if report.outcome == ONCE else None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for report in terminalreporter.getreports(ONCE):
        lines = report.longreprtext.splitlines()
        terminalreporter.write_line(
            f"{ONCE.upper()} {report.nodeid} - {lines[-1] if lines else ''}"
        )


def pytest_sessionstart(session: pytest.Session) -> None:
    """Has the signal of a test whose time is over show all stacks, before it ends the process."""
    shown_at = session.config.stash[fault_handler_stderr_fd_key]
    faulthandler.register(signal.SIGALRM, file=shown_at, chain=True)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Makes a test of each event loop; of uvloop, which has no virtual time, in real time only."""
    if "anyio_backend" not in metafunc.fixturenames:
        return
    marks = metafunc.definition.iter_markers("parametrize")
    if not any("anyio_backend" in mark.args[0] for mark in marks):
        is_in_real_time = metafunc.definition.get_closest_marker("real_time") is not None
        loops = [loop for loop in LOOPS if is_in_real_time or loop != "uvloop"]
        if metafunc.definition.get_closest_marker("one_loop") is not None:
            loops = loops[:1]
        room = metafunc.definition.path.relative_to(TESTS).parts[0]
        again = [pytest.mark.second_loop] * (room in ABOVE_THE_LOOPS)
        params = [pytest.param(loop, marks=again * (loop == "asyncio")) for loop in loops]
        metafunc.parametrize("anyio_backend", params, indirect=True)


@pytest.fixture
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    is_in_real_time = request.node.get_closest_marker("real_time") is not None
    return backend_of(request.param, is_in_real_time)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Spares the collection of tests, which keeps what it makes, the search for garbage."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Gives slow tests more time, and leaves out the soak tests unless asked for with ``-m``.

    The files that are likely to take longest come first, so that at the end no worker is left with
    one of them while the others have nothing to do.
    """
    items[:] = [item for item in items if not is_on_a_further_loop(item)]
    if os.environ.get("SHOAL_TEST_EACH_ONCE"):
        kept = each_once(items)
        config.hook.pytest_deselected(items=list({*items} - {*kept}))
        items[:] = kept
    work: Counter[Path] = Counter()
    for item in items:
        is_slow = item.get_closest_marker("slow") is not None
        if is_slow and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW_TEST_S))
        work[item.path] += 30 if is_slow else 5 if item.get_closest_marker("real_time") else 1
    items.sort(key=lambda item: -work[item.path])
    if config.option.markexpr:
        return
    soak = {item for item in items if item.get_closest_marker("soak")}
    items[:] = [item for item in items if item not in soak]
    if soak:
        config.hook.pytest_deselected(items=list(soak))


def is_on_a_further_loop(item: pytest.Item) -> bool:
    """Whether a parameter that is marked ``one_loop`` meets another event loop than the first."""
    callspec = getattr(item, "callspec", None)
    return (
        callspec is not None
        and any(mark.name == "one_loop" for mark in callspec.marks)
        and callspec.params["anyio_backend"] != LOOPS[0]
    )


def each_once(items: list[pytest.Item]) -> list[pytest.Item]:
    """Returns one test of each function; of the engine and the server, on each loop in real time.

    The name of the function chooses its parameters, so each run has the same tests.
    """
    tests: defaultdict[Any, list[pytest.Item]] = defaultdict(list)
    for item in items:
        name, params = getattr(item, "originalname", item.name), {}
        room = item.path.relative_to(TESTS).parts[0]
        if item.get_closest_marker("real_time") is not None and room not in ABOVE_THE_LOOPS:
            params = item.callspec.params if hasattr(item, "callspec") else {}
        tests[item.parent, name, params.get("anyio_backend")].append(item)
    return [
        same[zlib.crc32(same[0].nodeid.split("[")[0].encode()) % len(same)]
        for same in tests.values()
    ]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Ends the process when a test's time is over, and shows all stacks first.

    A hung event loop does not end by an exception in the main thread. Of a process that ends so
    pytest-xdist says which test it ran, and starts another. A timer of the system does it, since
    faulthandler's own is a thread for each test, whose end is waited for while others run.
    """
    marker = item.get_closest_marker("timeout")
    limit_s = marker.args[0] if marker else TEST_S
    if not item.config.option.usepdb:
        signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


@pytest.fixture(scope="module", autouse=True)
def what_was_there_is_not_collected() -> None:
    """Has the garbage collector pass over what came before this file: a hundred thousand objects.

    They make each `gc.collect` of a test ten times as long.
    """
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, dict[str, Any], dict[str, Any]]:
    """Escapes what UTF-8 has no form for: a worker of pytest-xdist could not send it."""
    data = yield
    # Names are escaped already.
    has_more = data.get("sections") or data.get("user_properties")
    return data if data.get("outcome") == "passed" and not has_more else _sendable(data)


def _sendable(value: Any) -> Any:
    match value:
        case str():
            return value.encode("utf-8", "backslashreplace").decode("utf-8")
        case dict():
            return {_sendable(key): _sendable(inner) for key, inner in value.items()}
        case list() | tuple():
            return type(value)(_sendable(inner) for inner in value)
    return value
