"""Processes of commands that are forked from one that has loaded Shoal.

Loading takes nine tenths of the work of a server that starts and ends, and few tests are about it.
On Linux only: elsewhere a process can't be waited for without an end to its id.
"""

import atexit
import fcntl
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import cache

MOST_BYTES = 2**17
MOST_FDS = 10


@cache
def loaded():
    """The connection to the process that forks; it ends with this one."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-P", __file__, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdout=subprocess.PIPE,  # a file could be sought in, and Python would
            start_new_session=True,  # Ctrl-C is for the tests
        )

    def end():
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


class Forked:
    """A command in a process of its own, as `subprocess.Popen` would have it.

    `passed` are what systemd would pass to it, by these names.
    """

    def __init__(self, arguments, cwd, env, *, start_new_session=False, passed=(), names=""):
        self.returncode = None
        self._notes, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        (out, out_end), (err, err_end) = os.pipe(), os.pipe()
        self.stdout, self.stderr = os.fdopen(out), os.fdopen(err)
        given = {"arguments": arguments, "cwd": str(cwd), "env": env, "names": names}
        given["session"] = start_new_session
        fds = [theirs.fileno(), out_end, err_end, *(one.fileno() for one in passed)]
        socket.send_fds(loaded(), [json.dumps(given).encode()], fds)
        theirs.close()
        os.close(out_end)
        os.close(err_end)
        self.pid = int(self._notes.recv(100))

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self.stdout.close()
        self.stderr.close()
        self.wait()

    def poll(self):
        if self.returncode is None and select.select([self._notes], [], [], 0)[0]:
            self.wait()
        return self.returncode

    def wait(self, timeout=None):
        if self.returncode is None:
            self._notes.settimeout(timeout)
            self.returncode = int(self._notes.recv(100))
            self._notes.close()  # from now on its id may be another's
        return self.returncode

    def communicate(self, timeout=None):
        """Gives what it says up to its end; kills it where that takes longer."""
        hang = threading.Timer(timeout, self.kill)
        hang.start()
        with ThreadPoolExecutor(1) as threads:
            out = threads.submit(rest_of, self.stdout)
            err = rest_of(self.stderr)
            found = out.result(), err
        hang.cancel()
        self.wait(timeout)
        return found

    def send_signal(self, signum):
        if self.poll() is None:
            os.kill(self.pid, signum)

    def terminate(self):
        self.send_signal(signal.SIGTERM)

    def kill(self):
        self.send_signal(signal.SIGKILL)


def rest_of(file):
    if file.closed:
        return ""
    with file:
        return file.read()


# The process that forks.


def load():
    import anyio
    import httpx  # noqa: F401 - commands reach their servers with it

    import shoal
    import shoal.commands.operate
    import shoal.commands.serve
    import shoal.server.server
    from shoal.testing.asgi import ask

    app = shoal.App()

    @app.endpoint("/double")
    async def double(items: list[int]) -> list[int]:
        return [2 * item for item in items]

    async def serve():
        async with app.lifespan():
            await ask(app, "/double", 1)
            await ask(app, "/-/metrics", method="GET")

    for loop in ("trio", "asyncio"):
        anyio.run(serve, backend=loop)
    assert threading.active_count() == 1, "a fork would lose the others"


def fork_commands(control):
    """Forks two processes for each command: its own, and one that waits for its end."""
    while True:
        message, fds, _, _ = socket.recv_fds(control, MOST_BYTES, MOST_FDS)
        if not message:
            return
        if os.fork() == 0:
            control.close()
            keep(json.loads(message), *fds)
            return
        for fd in fds:
            os.close(fd)
        while reaped():
            pass


def reaped():
    try:
        return os.waitpid(-1, os.WNOHANG)[0]
    except ChildProcessError:
        return 0


def keep(given, notes_fd, *fds):
    notes = socket.socket(fileno=notes_fd)
    pid = os.fork()
    if pid == 0:
        notes.close()
        become(given, *fds)
        return
    for fd in fds:
        os.close(fd)
    notes.send(str(pid).encode())
    # It is not reaped before its test knows that it has ended, so no signal meets another process.
    ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    has_exited = ended.si_code == os.CLD_EXITED
    notes.send(str(ended.si_status if has_exited else -ended.si_status).encode())
    notes.recv(1)
    os.waitpid(pid, 0)
    os._exit(0)


def become(given, *fds):
    """Makes this process what `python -m shoal` would be."""
    os.environ.clear()
    os.environ.update(given["env"])
    _, _, *passed = fds
    if passed:
        os.environ["LISTEN_PID"] = str(os.getpid())
        os.environ["LISTEN_FDS"] = str(len(passed))
        os.environ["LISTEN_FDNAMES"] = given["names"]
    # Out of the way, and then to their places: those of the output, and from 3 on.
    for place, fd in enumerate([fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 100) for fd in fds], 1):
        os.dup2(fd, place)
        os.close(fd)
    if given["session"]:
        os.setsid()
    os.chdir(given["cwd"])
    sys.path[:0] = [given["cwd"], *given["env"]["PYTHONPATH"].split(os.pathsep)]
    sys.argv[1:] = given["arguments"]
    __import__("sitecustomize")
    runpy.run_module("shoal", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    load()
    gc.freeze()  # the search for garbage when a process ends would take longer than the rest
    fork_commands(socket.socket(fileno=int(sys.argv[1])))
