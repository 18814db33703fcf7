"""What the tests of commands share."""

import json
import threading
from functools import partial

import pytest
from driven_server import served
from processes import Terminal

import shoal
from shoal.cli import main
from time_limits import HANG_S


@pytest.fixture
def terminal(tmp_path):
    terminal = Terminal(tmp_path)
    yield terminal
    terminal.close()


@pytest.fixture
def serving(request, terminal, directory):
    return partial(terminal.serving, "serve", request.module.SERVED, "--port", "0")


@pytest.fixture
def run(capsys, monkeypatch):
    """Runs a command in this process; gives its exit code, output, and what it said beside."""
    monkeypatch.delenv("COLUMNS", raising=False)

    def run(*arguments):
        try:
            code = main([*arguments])
        except SystemExit as ended:
            code = ended.code
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


@pytest.fixture
def mistake(run):
    """Runs a command that fails with a line on stderr; gives that line."""

    def mistake(*arguments, code=1):
        found, out, err = run(*arguments)
        assert (found, out, err.count("\n")) == (code, "", 1), err
        assert err.startswith("shoal: ")
        return err

    return mistake


@pytest.fixture
def told(run, request):
    """Runs the module's `COMMAND`; gives what it printed, to people or as data."""

    def told(*arguments, code=0):
        found, out, told.err = run(request.module.COMMAND, *arguments)
        assert found == code
        return json.loads(out) if "--json" in arguments else out

    return told


@pytest.fixture
def url():
    with served() as url:
        with shoal.connect(url) as client:
            client.create_backend("scale", "driven_models:Scaler", config={"max_batch_size": 4})
            client.create_endpoint("e", backend="scale")
        yield url


@pytest.fixture
def callers(url):
    """Starts threads, each of which calls again when it has its result, or after a pause."""
    is_over = threading.Event()
    threads = []

    def call(pause_s):
        with shoal.connect(url) as client:
            handle = client.get_handle("e")
            while not is_over.wait(pause_s):
                handle.call(1)

    def start(count, pause_s=0):
        threads.extend([threading.Thread(target=call, args=[pause_s]) for _ in range(count)])
        for thread in threads:
            thread.start()

    yield start
    is_over.set()
    for thread in threads:
        thread.join(HANG_S)


@pytest.fixture
def traffic(callers):
    """Calls the server over and over during a test, but leaves most of the processor to others."""
    callers(2, pause_s=0.01)
