"""Commands as processes of their own, and what they leave in a test's directory."""

import fcntl
import gc
import http.client
import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path

import pytest
from forked import Forked

from progress_lines import first_line, without_progress
from shoal.cli import main
from shoal.commands.server.client import ServerLocation
from time_limits import HANG_S

HERE = str(Path(__file__).parent)

# A detached server outlives the command that started it, but it should not outlive a test run that
# was killed: each process ends when nobody holds this pipe open for writing.
LIFELINE = """\
import os
import threading


def watch():
    with open(os.environ["TEST_LIFELINE"]) as lifeline:
        lifeline.read()
    os._exit(99)


threading.Thread(target=watch, daemon=True).start()
"""


class Terminal:
    """Runs commands in a directory, which also contains the sockets of their servers."""

    def __init__(self, directory):
        self.directory = directory
        site = directory / "site"
        site.mkdir()
        (site / "sitecustomize.py").write_text(LIFELINE)
        os.mkfifo(site / "lifeline")
        self._lifeline = os.open(site / "lifeline", os.O_RDWR)
        given = os.environ.get("PYTHONPATH")
        self.environment = {
            **os.environ,
            "XDG_RUNTIME_DIR": str(directory / "run"),
            "PYTHONPATH": os.pathsep.join([str(site), HERE, *filter(None, [given])]),
            "TEST_LIFELINE": str(site / "lifeline"),
        }

    def location(self, name="default"):
        return ServerLocation(name, self.directory / "run" / "shoal")

    def popen(self, *arguments, fresh=False, **options):
        """Starts a command; where it is fresh, the way a shell does, and not in a fork."""
        if not fresh and sys.platform == "linux":
            return Forked(arguments, self.directory, self.environment, **options)
        return subprocess.Popen(
            [sys.executable, "-m", "shoal", *arguments],
            cwd=self.directory,
            env=self.environment,
            **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options},
        )

    def run(self, *arguments, fresh=False):
        """Runs a command to its end; gives its exit code, output, and what it said beside."""
        process = self.popen(*arguments, fresh=fresh)
        try:
            out, err = process.communicate(timeout=HANG_S)
        finally:
            process.kill()
        return process.returncode, out, without_progress(err)

    def told(self, *arguments):
        """Runs a command that goes well; gives its output."""
        code, out, err = self.run(*arguments)
        assert code == 0, err
        return out

    def told_here(self, *arguments):
        """Runs a command that goes well, and starts no server, in the process of the test.

        That is a tenth of the work, for commands that a test needs but is not about.
        """
        code, out, err = self.run_here(*arguments)
        assert code == 0, err
        return out

    def failed(self, *arguments, code=1):
        """Runs a command that fails; gives what it said."""
        found, out, err = self.run(*arguments)
        assert (found, out) == (code, ""), err
        return err

    def failed_here(self, *arguments, code=1):
        """Does as `failed` in the process of the test."""
        found, out, err = self.run_here(*arguments)
        assert (found, out) == (code, ""), err
        return err

    def run_here(self, *arguments):
        """Does as `run` what does not begin to serve, in the process of the test.

        A server takes a process's signals and its log for its own.
        """
        before, collected_after = set(sys.modules), gc.get_threshold()
        at_a_signal = signal.getsignal(signal.SIGTERM)
        with (
            pytest.MonkeyPatch.context() as patch,
            redirect_stdout(io.StringIO()) as out,
            redirect_stderr(io.StringIO()) as err,
        ):
            patch.chdir(self.directory)
            patch.setattr(sys, "path", [HERE, *sys.path])
            for name in self.environment:
                if name.startswith(("XDG_RUNTIME_DIR", "OTEL_")):
                    patch.setenv(name, self.environment[name])
            try:
                code = main(arguments)
            except SystemExit as ended:
                code = ended.code
            finally:
                gc.set_threshold(*collected_after)
                for name in set(sys.modules) - before:
                    if is_below(self.directory, sys.modules[name]):
                        del sys.modules[name]
        assert signal.getsignal(signal.SIGTERM) == at_a_signal, "it has begun to serve: use `run`"
        return code, out.getvalue(), err.getvalue()

    @contextmanager
    def serving(self, command, *arguments, by="", fresh=False):
        """Runs a server in the foreground; gives its process and its port."""
        process = self.popen(command, *arguments, fresh=fresh)
        with killed_late(process):
            line = first_line(process.stderr)
            found = re.fullmatch(rf"Shoal serving .*:(\d+){by}\n", line)
            assert found, line + process.stderr.read()
            yield process, int(found[1])

    def close(self):
        """Ends the servers that a test has left."""
        os.close(self._lifeline)
        for file in (self.directory / "run" / "shoal").glob("*.pid"):
            with suppress(ProcessLookupError):
                if holder := self.location(file.stem).holder():
                    os.kill(holder, 9)

    def wait_until_ended(self, name="default"):
        """Waits until no process is the server of a name."""
        with self.location(name).process.open() as file:
            fcntl.flock(file, fcntl.LOCK_SH)


@contextmanager
def killed_late(process):
    """Kills a process when the block ends, or hangs."""
    hang = threading.Timer(2 * HANG_S, process.kill)
    hang.start()
    try:
        yield process
    finally:
        hang.cancel()
        process.kill()
        process.communicate()


def is_below(directory, module):
    file = getattr(module, "__file__", None)
    return file is not None and Path(file).is_relative_to(directory)


def end_of(process, signum=None, code=0):
    """Waits for the end of a server, which a signal may ask for; gives what it said."""
    if signum is not None:
        process.send_signal(signum)
    _, said = process.communicate(timeout=HANG_S)
    assert process.returncode == code, said
    return said


def wait_until_refused(port):
    """Waits until the server of a port listens no more, as from the beginning of its drain."""
    while accepts(port):
        pass


def accepts(port):
    try:
        socket.create_connection(("127.0.0.1", port), timeout=HANG_S).close()
    except ConnectionRefusedError:
        return False
    except ConnectionResetError:
        pass  # the kernel had accepted it when the server closed its listener
    return True


def ask(port, path, item=None, host="127.0.0.1", **headers):
    """Makes a request; gives its status and what was answered."""
    connection = http.client.HTTPConnection(host, port, timeout=HANG_S)
    try:
        if item is None:
            connection.request("GET", path, headers=headers)
        else:
            headers = {"content-type": "application/json", **headers}
            connection.request("POST", path, json.dumps(item), headers)
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()
