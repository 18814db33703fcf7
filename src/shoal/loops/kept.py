"""Blocks of an event loop that plain code opens in a thread of their own.

Another thread, the keeper, enters and leaves what the block opens. Python raises a Ctrl-C in the
main thread alone. So it interrupts the wait for the keeper, and never an entering or leaving that
is under way. Leaving a block waits for the keeper. One case must not wait: a generator that is
dropped inside of such a block may be closed by the garbage collector in any thread. If an event
loop runs there, waiting could block it for ever (the block may be waiting for callers in that
loop). Then the keeper gets a signal to leave, and nobody waits for it. The same holds for a block
that was entered by hand and dropped.

A process that was forked inside of the block has a copy of it, but not of its threads. There
leaving the block does nothing: the block belongs to the parent. It does nothing either when the
interpreter ends and collects a generator that is inside of the block.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from concurrent.futures import Future
from contextlib import ExitStack
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar

from anyio.from_thread import start_blocking_portal

from shoal.errors import WouldDeadlock
from shoal.loops.event_loop import EventLoop

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

    from anyio.from_thread import BlockingPortal

T = TypeVar("T")


class KeptBlock(Generic[T]):
    # `opened` must not refer to this object, which would never be dropped then.

    def __init__(self, opened: AbstractAsyncContextManager[T], backend: str) -> None:
        self._is_ending = sys.is_finalizing
        self.process = os.getpid()
        self.closing = closing = threading.Event()
        # Ends the keeper if the block is dropped. It starts no thread: it may run while the
        # interpreter shuts down, when a new thread would never begin.
        weakref.finalize(self, closing.set).atexit = False
        try:
            entered, self._left = _keep(opened, backend, closing)
            self.portal, self.value, self._loop_thread = entered.result()
        except BaseException:  # a Ctrl-C, too
            closing.set()
            entered = None  # its error's traceback holds this frame
            raise

    def leave(
        self, name: str, kind: type[BaseException] | None, waits_for_caller: Callable[[], bool]
    ) -> None:
        """Leaves the block, and waits for that unless the block is dropped."""
        # Raises `WouldDeadlock` if that would wait for a handler that is the caller.
        # Modules may be empty when the interpreter ends, and no other thread runs any more.
        if self._is_ending() or os.getpid() != self.process:
            return
        is_own = threading.get_ident() == self._loop_thread or waits_for_caller()
        is_dropped = kind is not None and issubclass(kind, GeneratorExit)
        if is_own and not is_dropped:
            raise WouldDeadlock(
                f"a handler leaves the block of {name} in which it runs: the block waits "
                "for the handler; leave it in another thread, or when the call has returned"
            )
        self.closing.set()
        if is_dropped and (is_own or EventLoop.is_in_thread()):
            return
        left = self._left
        try:
            left.result()
        finally:
            del left, self._left  # its error's traceback holds this frame


def _keep(
    opened: AbstractAsyncContextManager[T], backend: str, closing: threading.Event
) -> tuple[Future[tuple[BlockingPortal, T, int]], Future[None]]:
    """Starts a thread that enters the event loop and the block, and leaves them on a signal."""
    # The portal, the value of the block and the loop's thread, or the error of entering.
    entered: Future[tuple[BlockingPortal, T, int]] = Future()
    # Done when all is left, with the error of leaving.
    left: Future[None] = Future()

    def keep() -> None:
        try:
            with ExitStack() as stack:
                portal = stack.enter_context(start_blocking_portal(backend))
                thread = portal.call(threading.get_ident)
                value = stack.enter_context(portal.wrap_async_context_manager(opened))
                entered.set_result((portal, value, thread))
                closing.wait()
        except BaseException as error:
            (left if entered.done() else entered).set_exception(error)
        else:
            left.set_result(None)

    target = partial(copy_context().run, keep)
    threading.Thread(target=target, name="shoal keeps a block", daemon=True).start()
    return entered, left
