"""The program of a worker process: ``python -m shoal.replicas.process.child.main``.

Only `shoal.replicas.process.worker` starts it. Before it loads user code, it makes sure that it
will die with its parent, whatever either of them is doing.

The problem: a parent that is killed can't notify its workers, and a worker that computes in C while
it holds the GIL runs no Python code that could notice. The kernel must do it. Linux sends a
signal to the owner of a file descriptor when its state changes. Here the descriptor is the read end
of a pipe that only the parent can write to, and the signal is SIGKILL. It is sent when the parent's
end is closed, for whatever reason. The owner is the worker's process group, so its own children are
killed as well.

``PR_SET_PDEATHSIG`` was rejected: it fires when the *thread* that started the worker ends. On other
platforms the worker's watchdog thread notices instead, as soon as it can run.
"""

from __future__ import annotations

import faulthandler
import fcntl
import os
import runpy
import select
import signal
import socket
import sys
import threading
import time
import traceback
import types
from contextvars import Context, copy_context
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NoReturn, cast

import anyio

from shoal.batching.current import Identity, running_replica, setting
from shoal.replicas.code.endpoint_call import parent_channel
from shoal.replicas.code.instance import HOOKS, Instance, is_async, is_async_class
from shoal.replicas.process.child.calls import CallAnswers
from shoal.replicas.process.child.control import Control
from shoal.replicas.process.child.endpoints import ParentChannel
from shoal.replicas.process.child.sync_loop import SyncWork
from shoal.replicas.process.wire.errors import as_data
from shoal.replicas.process.wire.frames import (
    PROTOCOL,
    Frame,
    FrameKind,
    FrameReader,
    receive,
    send,
)
from shoal.replicas.process.wire.messages import MessageCodec, packed, unpickled
from shoal.replicas.process.wire.shared_memory import SharedMemory
from shoal.replicas.process.wire.start import MainScript, StartMessage, running_main_again, sendable

if TYPE_CHECKING:
    import io
    from collections.abc import Callable, Sequence

    from shoal.replicas.code.definition import Definition

# The exit code of a worker whose version of Shoal has another protocol than its parent's.
_OTHER_PROTOCOL: Final = 3


def main(arguments: Sequence[str]) -> None:
    """Runs the worker until it is stopped or the parent is gone."""
    protocol, shared_memory_size, *fds = map(int, arguments)
    if protocol != PROTOCOL:
        sys.stderr.write(
            f"this interpreter's Shoal uses worker protocol {PROTOCOL}, and the Shoal that started "
            f"it uses {protocol}; install the same version of Shoal in both\n"
        )
        sys.exit(_OTHER_PROTOCOL)
    data_fd, control_fd, lifeline, *memory = fds
    for fd in fds:
        os.set_inheritable(fd, False)
    die_with_the_parent(lifeline)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    faulthandler.enable()
    cast("io.TextIOWrapper", sys.stdout).reconfigure(line_buffering=True)
    control = Control(socket.socket(fileno=control_fd))
    control.watch()
    shared = SharedMemory(memory[0] if memory else None, shared_memory_size)
    for fd in memory:
        os.close(fd)
    codec = MessageCodec(shared.replies, shared.requests)
    Child(control, codec, socket.socket(fileno=data_fd)).run()


def die_with_the_parent(lifeline: int) -> None:
    """Makes the kernel kill this process and its group when the pipe's other end is closed."""
    if sys.platform == "linux":
        pid = os.getpid()
        leads_its_group = os.getpgrp() == pid
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, -pid if leads_its_group else pid)
        fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
        flags = fcntl.fcntl(lifeline, fcntl.F_GETFL)
        fcntl.fcntl(lifeline, fcntl.F_SETFL, flags | os.O_ASYNC)
    # It was closed before the signal was set up.
    if select.select([lifeline], [], [], 0)[0]:
        os._exit(1)


class NotStarted(SystemExit):
    """The code has failed to start, which the parent knows."""


@dataclass(eq=False)
class Child:
    """Runs the code of a replica.

    In the main thread of a process, code without async parts runs in that thread, as in a script.
    Otherwise it runs in an event loop, and its plain parts in the threads of that loop.

    Args:
        on_start: Called when the code has started in an event loop.
        on_close_error: Called in the handler of an error of the code's ``close()``.
    """

    control: Control
    codec: MessageCodec
    sock: socket.socket
    on_start: Callable[[CallAnswers], object] = lambda _: None
    on_close_error: Callable[[], object] = traceback.print_exc

    def __post_init__(self) -> None:
        self._reader: FrameReader = FrameReader()

    def run(self) -> None:
        """Starts and runs the code until a message closes it, or the parent is gone."""
        frame = receive(self.sock, self._reader)
        if frame is None:
            self.control.on_gone()
            return
        start_message: StartMessage = self.codec.opened_here(frame)
        running_replica.set(Identity(*start_message[:3]))
        parent_channel.set(ParentChannel(self.control))
        try:
            definition, user_config = _loaded(start_message)
            answers = None
            if not is_async_class(definition.target):
                answers = self._answers_of(definition)
        except Exception as error:
            self._fail_start(frame, error)
        is_main = threading.current_thread() is threading.main_thread()
        if answers is not None and is_main and _is_plain(answers.instance):
            self._run_plain(frame, answers, user_config)
        else:
            anyio.run(
                self._run_async,
                frame,
                definition,
                answers,
                user_config,
                copy_context(),
                backend=start_message.loop,
            )

    def _answers_of(self, definition: Definition) -> CallAnswers:
        instance = Instance(definition)
        return CallAnswers(self.codec, instance, self.control.draining, self.control.dumps)

    def _run_plain(self, frame: Frame, answers: CallAnswers, user_config: Any) -> None:
        work = SyncWork(answers, self.control, self.sock, self._reader)
        instance = answers.instance
        context = copy_context()
        try:
            if user_config is not None:
                context.copy().run(answers.reconfigure_hook(user_config), user_config)
            if (warm_up := instance.hook("warm_up")) is not None:
                context.copy().run(warm_up)
        except Exception as error:
            self._fail_start(frame, error)
        self.control.on_cancel = work.cancel
        if (health := instance.hook("health")) is not None:
            self.control.on_health_check = lambda id_: self.control.check_in_thread(
                id_, health, context
            )
        self._say(frame, FrameKind.RESULT, sendable(instance.description))
        work.run()
        if (close := instance.hook("close")) is not None:
            try:
                context.copy().run(close)
            except Exception:
                self.on_close_error()

    async def _run_async(self, *args: Any) -> None:
        # Imported here: it loads event loops, which plain code does not need.
        async with import_module("shoal.batching.decorator.block").BatcherBlock():
            await self._work_async(*args)

    async def _work_async(
        self,
        frame: Frame,
        definition: Definition,
        answers: CallAnswers | None,
        user_config: Any,
        context: Context,
    ) -> None:
        make = import_module("shoal.replicas.process.child.async_loop").AsyncWork
        parent_channel.get().clock_offset = anyio.current_time() - time.monotonic()
        try:
            if answers is None:
                answers = self._answers_of(definition)
            instance = answers.instance
            work = make(answers, self.control, self.sock, self._reader, context)
            if user_config is not None:
                await work.call_hook(answers.reconfigure_hook(user_config), user_config)
            if (warm_up := instance.hook("warm_up")) is not None:
                await work.call_hook(warm_up)
        except Exception as error:
            self._fail_start(frame, error)
        self.on_start(answers)
        self.control.on_health_check = work.check_health
        work.send(FrameKind.RESULT, frame.id, packed(sendable(instance.description)))
        await work.run()
        if (close := instance.hook("close")) is not None:
            try:
                await work.call_hook(close)
            except Exception:
                self.on_close_error()

    def _fail_start(self, frame: Frame, error: Exception) -> NoReturn:
        self.sock.setblocking(True)
        self._say(frame, FrameKind.ERROR, as_data(error, self.control.dumps))
        raise NotStarted(1)

    def _say(self, start_message: Frame, kind: FrameKind, content: Any) -> None:
        send(self.sock, self.codec.frame(kind, start_message.id, packed(content)))


def _is_plain(instance: Instance) -> bool:
    hooks = [hook for name in HOOKS if (hook := instance.hook(name)) is not None]
    return all(h.threaded for h in instance.handlers.values()) and not any(map(is_async, hooks))


def _loaded(start_message: StartMessage) -> tuple[Definition, Any]:
    if start_message.sys_path is not None:
        sys.path[:] = start_message.sys_path
    else:
        # Last, so that modules there can't shadow a library.
        sys.path.append(os.getcwd())
    if start_message.cpus is not None and sys.platform == "linux":
        os.sched_setaffinity(0, start_message.cpus)
    if start_message.main is not None:
        _run_main_again(start_message.main)
    definition, user_config = unpickled(start_message.code)
    return replace(definition, target=definition.load()), user_config


def _run_main_again(script: MainScript) -> None:
    # This is the name that `multiprocessing` uses, so ``if __name__ == "__main__":`` skips the
    # parts that only the parent should run.
    main = types.ModuleType("__mp_main__")
    with setting(running_main_again, True):
        if script.is_module:
            variables = runpy.run_module(script.found_at, run_name="__mp_main__", alter_sys=True)
        else:
            variables = runpy.run_path(script.found_at, run_name="__mp_main__")
    main.__dict__.update(variables)
    sys.modules["__main__"] = sys.modules["__mp_main__"] = main


if __name__ == "__main__":
    main(sys.argv[1:])
