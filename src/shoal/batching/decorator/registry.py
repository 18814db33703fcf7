"""Which batchers of a decorated handler are open, and how one is opened.

A decorated function is a constant of the program; its batcher belongs to one event loop, and to one
instance where the handler is a method. So there is a table of what is open now, by event loop and
receiver; opening adds to it and takes out again. Keeping the batcher in a context variable would
look tidier, but tasks that a server starts from elsewhere would not see it. What is not in the
table is opened by the block that the call is made in (`block`), if there is one.

Which event loop this is costs more to ask than which thread. Nearly always a thread has one, so the
usual call looks by thread first, unless two loops of a thread have the same function open; and
where it is awaited it finds out whether the one that it found is another loop's.
"""

from __future__ import annotations

import logging
import os
from contextlib import asynccontextmanager, contextmanager
from functools import cached_property, partial
from threading import get_ident
from types import MethodType
from typing import TYPE_CHECKING, Any, Final, cast

from shoal.batching.batcher import Batcher
from shoal.batching.decorator.block import OpenedBatcher, block_here, loops_of_context
from shoal.batching.handlers.binding import signature_of, signature_of_batch
from shoal.batching.handlers.handler import Handler
from shoal.batching.loops.event_loop import EventLoop
from shoal.batching.loops.home import not_open_here
from shoal.batching.options.checks import checked_options
from shoal.batching.options.settings import Settings
from shoal.errors import NotOpen

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator, Mapping
    from inspect import Signature

    from shoal.batching.calls.entry import Entry
    from shoal.batching.decorator.block import Face
    from shoal.batching.handlers.handler import Fill
    from shoal.core.options.keywords import OptionKeywords
    from shoal.core.options.options import BatchOptions


logger: Final = logging.getLogger("shoal")


class Opening:
    """One decorated handler: how to make its batchers, and which of them are open.

    Attributes:
        handler: The handler, adapted; unbound where it is a method.
        is_static: Whether it never has a receiver.
        is_class_method: Whether its receiver is a class.
        is_method: Whether it is defined in a class, and has an instance for its receiver.
        face: What a function is called through; of a method, what is bound to instances.
        table: What is open, by event loop and receiver.
        settings: What was set of the options since it was decorated.
        entries: Where the calls of a function enter, by thread.
        call_signature: What a call of one item looks like.
    """

    face: Face

    def __init__(
        self,
        function: Any,
        signature: Callable[..., Any] | None,
        options: Mapping[str, Any],
        *,
        fill: Fill,
        streams: bool,
    ) -> None:
        self.is_static = isinstance(function, staticmethod)
        self.is_class_method = isinstance(function, classmethod)
        if self.is_static or self.is_class_method:
            function = function.__func__
        self.handler = Handler(function, fill=fill, streams=streams)
        checked_options(options, self.handler)
        names = self.handler.binding.names
        self.call_signature = (
            self.handler.binding.signature
            if signature is None
            else signature_of_batch(function, signature)
            if fill != "closed"
            # Whether this is a method, whose first parameter is not batched, is not known yet.
            else signature_of(signature, names[1:], names)
        )
        self.is_method = False
        self.table: dict[tuple[EventLoop, int | None], OpenedBatcher] = {}
        # The same by thread and receiver; nearly always one.
        self._in_thread: dict[tuple[int, int | None], list[OpenedBatcher]] = {}
        self.settings = Settings()
        self.entries: dict[int, Entry] = {}
        # The keys of what was opened by name, or is being opened or closed so.
        self._taken: set[object] = set()
        self._signature = signature
        self._options = options
        self._streams = streams

    @cached_property
    def bound_signature(self) -> Signature:
        """What a call of one item looks like on an instance."""
        if self._signature is not None:
            return self.call_signature
        _self, *parameters = self.call_signature.parameters.values()
        return self.call_signature.replace(parameters=parameters)

    def key(self, receiver: object) -> tuple[EventLoop, int | None]:
        """Returns the key of this event loop's batcher for a receiver."""
        return EventLoop.here(), None if receiver is None else id(receiver)

    def loops(self, receiver: object) -> list[EventLoop]:
        """Returns the event loops in which something is open for a receiver.

        Where nothing is, it is that of the block to which the caller's context belongs.
        """
        number = None if receiver is None else id(receiver)
        process = os.getpid()  # a fork has a copy of the table, and of no other thread
        found = [
            loop
            for (loop, there), opened in list(self.table.items())
            if there == number and opened.entry.intake.home.process == process
        ]
        return found or loops_of_context()

    def in_thread(self, receiver: object) -> OpenedBatcher | None:
        """Returns what is open for a receiver in some event loop of this thread."""
        there = self._in_thread.get((get_ident(), id(receiver)))
        return there[0] if there else None

    def found(self, receiver: object) -> OpenedBatcher:
        """Returns what is open for a receiver in this event loop; in a block it is opened.

        Raises:
            NotOpen: Nothing is, and there is no block in which it could be.
            BatcherClosed: There is such a block, and it is being left.
            Exception: It can't be opened.
        """
        found = self.table.get(self.key(receiver))
        if found is not None:
            return found
        block = block_here()
        if block is None:
            raise self.not_open(receiver)
        return block.open(self, receiver)

    @asynccontextmanager
    async def opened(self, receiver: object, face: Face) -> AsyncGenerator[None]:
        """Keeps a batcher open for this event loop and a receiver.

        Args:
            receiver: The instance or class that a method is batched for; None for a function.
            face: What callers call.
        """
        batcher = self.new_batcher(receiver, self.new_handler(receiver))
        with self._taking(receiver):
            async with batcher:
                with self._known(receiver, face, batcher):
                    yield

    @contextmanager
    def lent(
        self,
        receiver: object,
        face: Face,
        batcher: Batcher[Any],
    ) -> Generator[None]:
        """Has calls enter a batcher that is kept open elsewhere; arguments as for `opened`."""
        with self._taking(receiver), self._known(receiver, face, batcher):
            yield

    def parts(
        self, receiver: object
    ) -> tuple[Callable[..., Any], Callable[..., Any] | None, dict[str, Any]]:
        """Returns what makes a batcher for a receiver: the handler, the signature, the options."""
        function = self.handler.function
        kind: dict[str, Any] = {}
        if self.handler.fill != "closed":
            kind = {"fill": self.handler.fill, "streams": self._streams}
        bound = function if receiver is None else MethodType(function, receiver)
        return bound, self._signature, {**kind, **self._options_of(receiver)}

    def _options_of(self, receiver: object) -> dict[str, Any]:
        return {**self._options, **self.settings.of(receiver)}

    def options(self, receiver: object) -> BatchOptions:
        """Returns the options of a receiver's batcher here, or of the next that is opened."""
        opened = self.table.get(self.key(receiver))
        if opened is not None:
            return opened.batcher.options
        return checked_options(self._options_of(receiver), self.handler)

    def configure(self, receiver: object, changes: Mapping[str, Any]) -> None:
        """Changes options of a receiver's batcher here, if one is open, and of those to come.

        In a thread that runs no event loop, as a plain ``reconfigure()`` has one, it is those that
        are open anywhere: each takes them in soon, and nobody waits for that.

        Raises:
            TypeError: A name is no option, or a value has the wrong type; nothing is changed.
            ValueError: A value is out of its range; nothing is changed.
        """
        checked_options({**self._options_of(receiver), **changes}, self.handler)
        own = self.settings.own(receiver)
        opened = self.table.get(self.key(receiver))
        if opened is not None:
            opened.batcher.configure(**cast("OptionKeywords", changes))
        own.update(changes)
        if EventLoop.here().is_none:
            number = None if receiver is None else id(receiver)
            for (loop, whose), there in list(self.table.items()):
                if whose == number:
                    loop.soon(partial(_configure, there.batcher, changes))

    def new_handler(self, receiver: object) -> Handler:
        """Makes the handler for a receiver."""
        function, signature, _ = self.parts(receiver)
        kind: Any = self.handler.fill
        return Handler(function, signature, fill=kind, streams=self._streams)

    def new_batcher(self, receiver: object, handler: Handler) -> Batcher[Any]:
        """Makes the batcher for a receiver, of its handler.

        Raises:
            TypeError: An option does not fit the handler.
            ValueError: An option is out of its range.
        """
        make: Any = Batcher  # no overload takes a handler of which nothing is known
        batcher: Batcher[Any] = make(
            handler,
            signature=self._signature,
            name=self.handler.name,
            **self._options_of(receiver),
        )
        return batcher

    def face_of(self, receiver: object) -> Face:
        """Returns what the calls of a receiver are made through."""
        return self.face if receiver is None else self.face.bound_to(receiver)

    def publish(self, receiver: object, opened: OpenedBatcher) -> None:
        """Has calls find a batcher that was opened in a block."""
        self._add(self.key(receiver), opened)
        if opened.face is not None:  # else the batcher must not keep its instance
            opened.entry.intake.find_here = lambda: self.found(receiver).entry

    def withdraw(self, key: tuple[EventLoop, int | None], opened: OpenedBatcher) -> None:
        """Has no more calls find it; in its thread, or where its instance has gone."""
        if self.table.get(key) is opened:
            self._remove(key, opened)

    def _add(self, key: tuple[EventLoop, int | None], opened: OpenedBatcher) -> None:
        self.table[key] = opened
        place = (opened.entry.intake.home.thread, key[1])
        self._in_thread.setdefault(place, []).append(opened)
        self._tell_faces(place)

    def _remove(self, key: tuple[EventLoop, int | None], opened: OpenedBatcher) -> None:
        del self.table[key]
        if opened.face is not None:
            opened.face.enter_no_more(opened.entry)
        place = (opened.entry.intake.home.thread, key[1])
        there = self._in_thread[place]
        there.remove(opened)
        if not there:
            del self._in_thread[place]
        else:
            self._tell_faces(place)

    def _tell_faces(self, place: tuple[int, int | None]) -> None:
        """Has calls of a thread enter where it is clear by the thread alone."""
        there = self._in_thread[place]
        for opened in there:
            if opened.face is None:
                continue
            if len(there) == 1:
                opened.face.enter_at(opened.entry)
            else:
                opened.face.enter_no_more(opened.entry)

    @contextmanager
    def _taking(self, receiver: object) -> Generator[None]:
        key = self.key(receiver)
        if key in self._taken:
            raise RuntimeError(f"{self.handler.name} is open in this event loop already")
        self._taken.add(key)
        try:
            yield
        finally:
            self._taken.discard(key)

    @contextmanager
    def _known(
        self,
        receiver: object,
        face: Face,
        batcher: Batcher[Any],
    ) -> Generator[None]:
        key = self.key(receiver)
        opened = OpenedBatcher(batcher, batcher.find(), face)
        unnamed = self.table.get(key)  # the batcher that was opened at a call waits meanwhile
        if unnamed is not None:
            self._remove(key, unnamed)
        self._add(key, opened)
        opened.entry.intake.find_here = lambda: self.found(receiver).entry
        try:
            yield
        finally:
            opened.entry.intake.find_here = None
            self._remove(key, opened)
            if unnamed is not None and unnamed.batcher.is_open:
                self._add(key, unnamed)

    def check_loop(self, receiver: object) -> None:
        """Refuses a call where nothing could await it: plain code has forgotten more than that.

        Raises:
            NotOpen: No event loop runs in this thread.
        """
        if EventLoop.here().is_none:
            raise self.not_open(receiver)

    def not_open(self, receiver: object) -> NotOpen:
        """Makes the error of a call that finds no batcher."""
        number = None if receiver is None else id(receiver)
        homes = [
            opened.entry.intake.home
            for (_, whose), opened in list(self.table.items())
            if whose == number
        ]
        if homes:
            return not_open_here(self.handler.name, homes)
        name = self.handler.name.rsplit(".", 1)[-1]
        if receiver is not None:
            name = f"instance.{name}"
        if EventLoop.here().is_none:
            return NotOpen(
                f"{self.handler.name} was called in a thread that runs no event loop; plain code "
                f"writes:\n    with shoal.blocking({name}) as call:\n"
                f"        ...  # call(item)\n"
                "and in a thread beside an event loop in which it is open: "
                f"{name}.from_thread(item)"
            )
        return NotOpen(
            f"{self.handler.name} is not open in this event loop; open it around the calls:\n"
            f"    async with shoal.open_batchers({name}):\n"
            f"        ...  # {name}(item)\n"
            "or have everything opened at its first call, by one line in main:\n"
            "    async with shoal.open_batchers():"
        )


def _configure(batcher: Batcher[Any], changes: Mapping[str, Any]) -> None:
    """Changes options of a batcher that another thread has checked; in the batcher's event loop."""
    try:
        batcher.configure(**cast("OptionKeywords", changes))
    except Exception:  # a rule of the user's; it must not end the event loop
        logger.exception("%s could not take in new options", batcher.name)
