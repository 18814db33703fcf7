"""Opens the batchers of a decorated handler, and finds the open ones.

A decorated function is a constant of the program; its batcher belongs to one event loop and, if the
handler is a method, to one instance. So there is a table of the open batchers by event loop and
receiver. A context variable would look simpler, but tasks that a server starts from elsewhere would
not have it. A batcher that is not in the table is opened by the block of the call (`block`), if
there is one.

Identifying the event loop costs more than identifying the thread. A thread nearly always has one
loop, so a function has its batchers by thread as well, unless two loops of a thread have it open.
Whether the batcher that was found is another loop's is checked when the call is awaited.

A decorated function outlives its batchers. The options that `configure` sets (`Settings`) and the
observers may exist before a batcher is open, and apply to each that is opened later. The options of
a method are separate for each instance.
"""

from __future__ import annotations

import logging
import os
import weakref
from contextlib import asynccontextmanager, contextmanager
from functools import cached_property
from threading import get_ident
from types import MethodType
from typing import TYPE_CHECKING, Any, Final, cast

from shoal.batching.batcher import Batcher
from shoal.batching.calls.call import refuse_batched
from shoal.batching.decorator.block import OpenedBatcher, Place, block_here, loops_of_context
from shoal.batching.handlers.binding import signature_of, signature_of_batch
from shoal.batching.handlers.handler import Handler
from shoal.batching.options import checked_options
from shoal.core.events import Observers
from shoal.loops.event_loop import EventLoop, not_open_here

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator, Mapping
    from inspect import Signature

    from shoal.batching.calls.entry import Entry
    from shoal.batching.decorator.block import BatcherBlock, Face, Key
    from shoal.batching.handlers.handler import Fill
    from shoal.core.options.options import BatchOptions, OptionKeywords
    from shoal.errors import NotOpen
    from shoal.loops.event_loop import Home

logger: Final = logging.getLogger("shoal")


class Settings:
    """The options that were set, by receiver; None is the receiver of a plain function."""

    # Invariant: `_of_instances` has no entry of a collected instance, and keeps none alive.

    def __init__(self) -> None:
        self._of_function: dict[str, Any] = {}
        # By id, since an instance may be unhashable, or equal to another one.
        self._of_instances: dict[int, tuple[weakref.ref[Any], dict[str, Any]]] = {}

    def of(self, receiver: object) -> Mapping[str, Any]:
        if receiver is None:
            return self._of_function
        found = self._of_instances.get(id(receiver))
        return {} if found is None else found[1]

    def own(self, receiver: object) -> dict[str, Any]:
        """Returns a dict to change; raises a `TypeError` without weak references."""
        if receiver is None:
            return self._of_function
        number, of_instances = id(receiver), self._of_instances
        if number in of_instances:
            return of_instances[number][1]
        try:
            watched = weakref.ref(receiver, lambda _: of_instances.pop(number, None))
        except TypeError:
            raise TypeError(
                f"options can't be set for one {type(receiver).__qualname__}, because it allows no "
                'weak references; add "__weakref__" to its __slots__'
            ) from None
        of_instances[number] = (watched, {})
        return of_instances[number][1]


class Opening:
    """Makes the batchers of one decorated handler, and has the table of the open ones."""

    # The callable of the function; for a method, the object that is bound to instances.
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
        # Whether it never has a receiver.
        self.is_static = isinstance(function, staticmethod)
        # Whether its receiver is a class.
        self.is_class_method = isinstance(function, classmethod)
        if self.is_static or self.is_class_method:
            function = function.__func__
        refuse_batched(function)
        # Unbound if it is a method.
        self.handler = Handler(function, fill=fill, streams=streams)
        checked_options(options, self.handler)
        names = self.handler.binding.names
        self.call_signature = (
            self.handler.binding.signature
            if signature is None
            else signature_of_batch(function, signature)
            if fill != "closed"
            # Whether this is a method, with a parameter that is not batched, is not known yet.
            else signature_of(signature, names[1:], names)
        )
        # Whether it is defined in a class, with an instance as its receiver.
        self.is_method = False
        # The open batchers, by event loop and receiver.
        self.table: dict[Key, OpenedBatcher] = {}
        # The same by thread and receiver; nearly always one.
        self._in_thread: dict[tuple[int, int | None], list[OpenedBatcher]] = {}
        # The options changed since it was decorated.
        self.settings = Settings()
        self.observers = Observers()  # of all batchers, open ones and later ones
        # The entries for calls of a function, by thread.
        self.entries: dict[int, Entry] = {}
        # The keys of the batchers opened by name, also while they are opening or closing.
        self._taken: set[object] = set()
        self._signature = signature
        self._options = options
        self._streams = streams

    @cached_property
    def bound_signature(self) -> Signature:
        if self._signature is not None:
            return self.call_signature
        _self, *parameters = self.call_signature.parameters.values()
        return self.call_signature.replace(parameters=parameters)

    def key(self, receiver: object) -> Key:
        return EventLoop.here(), None if receiver is None else id(receiver)

    def _open_for(self, receiver: object) -> list[tuple[Home, Batcher[Any]]]:
        """Returns the batchers that are open for a receiver, and their event loops."""
        number = None if receiver is None else id(receiver)
        there = [opened for key, opened in list(self.table.items()) if key[1] == number]
        return [(opened.entry.intake.home, opened.batcher) for opened in there]

    def loops(self, receiver: object) -> list[EventLoop]:
        """Returns the event loops in which a batcher is open, else that of the context's block."""
        process = os.getpid()  # a fork has a copy of the table, but no copies of other threads
        found = [home.loop for home, _ in self._open_for(receiver) if home.process == process]
        return found or loops_of_context()

    def in_thread(self, receiver: object) -> OpenedBatcher | None:
        """Returns a batcher that is open for a receiver in some event loop of this thread."""
        there = self._in_thread.get((get_ident(), id(receiver)))
        return there[0] if there else None

    def found(self, receiver: object) -> OpenedBatcher:
        """Returns the batcher open for a receiver in this event loop; opens one in a block."""
        found = self.table.get(self.key(receiver))
        if found is not None:
            return found
        block = block_here()
        if block is None:
            raise self.not_open(receiver)
        return self._open_in(block, receiver)

    @asynccontextmanager
    async def opened(self, receiver: object, face: Face) -> AsyncGenerator[Batcher[Any]]:
        batcher = self.new_batcher(receiver, self.new_handler(receiver))
        with self._taking(receiver):
            async with batcher:
                with self._known(receiver, face, batcher):
                    yield batcher

    @contextmanager
    def lent(
        self,
        receiver: object,
        face: Face,
        batcher: Batcher[Any],
    ) -> Generator[None]:
        """Routes calls to a batcher that is kept open elsewhere."""
        with self._taking(receiver), self._known(receiver, face, batcher):
            yield

    def parts(
        self, receiver: object
    ) -> tuple[Callable[..., Any], Callable[..., Any] | None, dict[str, Any]]:
        function = self.handler.function
        kind: dict[str, Any] = {}
        if self.handler.fill != "closed":
            kind = {"fill": self.handler.fill, "streams": self._streams}
        bound = function if receiver is None else MethodType(function, receiver)
        return bound, self._signature, {**kind, **self._options_of(receiver)}

    def _options_of(self, receiver: object) -> dict[str, Any]:
        return {**self._options, **self.settings.of(receiver)}

    def options(self, receiver: object) -> BatchOptions:
        opened = self.table.get(self.key(receiver))
        if opened is not None:
            return opened.batcher.options
        return checked_options(self._options_of(receiver), self.handler)

    def configure(self, receiver: object, changes: Mapping[str, Any]) -> None:
        """Changes the options of a receiver's open batcher here, and of later ones."""
        # In a thread without an event loop, such as that of a plain `reconfigure()`, it changes the
        # batchers that are open anywhere: each applies the options soon, without waiting.
        checked_options({**self._options_of(receiver), **changes}, self.handler)
        own = self.settings.own(receiver)
        opened = self.table.get(self.key(receiver))
        if opened is not None:
            opened.batcher.configure(**cast("OptionKeywords", changes))
        own.update(changes)
        if EventLoop.here().is_none:
            for home, batcher in self._open_for(receiver):
                home.loop.soon(_configure, batcher, changes)

    def _open_in(self, block: BatcherBlock, receiver: object) -> OpenedBatcher:
        key = self.key(receiver)
        place = Place(self, key)
        if (there := block.opened_at(place)) is not None:
            return there  # the block is closing, so the batcher is not published any more
        handler = self.new_handler(receiver, block.convert_error)
        function, gone = self.handler.function, block.gone(place)
        is_kept = receiver is None or not handler.refer_weakly(function, receiver, gone)
        batcher = self.new_batcher(receiver, handler)
        face = None
        if is_kept:
            face = self.face if receiver is None else self.face.bound_to(receiver)
        opened = block.begin(place, batcher, face)
        if not block.is_closing:
            self._add(key, opened)
        return opened

    def new_handler(
        self, receiver: object, convert_error: Callable[[BaseException], Exception] | None = None
    ) -> Handler:
        function, signature, _ = self.parts(receiver)
        kind: Any = self.handler.fill
        return Handler(
            function, signature, fill=kind, streams=self._streams, convert_error=convert_error
        )

    def new_batcher(self, receiver: object, handler: Handler) -> Batcher[Any]:
        make: Any = Batcher  # no overload takes a handler of unknown type
        batcher: Batcher[Any] = make(
            handler,
            signature=self._signature,
            name=self.handler.name,
            observers=self.observers,
            **self._options_of(receiver),
        )
        return batcher

    def withdraw(self, key: Key, opened: OpenedBatcher) -> None:
        """Called in the batcher's thread, or in any thread when its instance was collected."""
        if self.table.get(key) is opened:
            self._remove(key, opened)

    def _add(self, key: Key, opened: OpenedBatcher) -> None:
        self.table[key] = opened
        place = (opened.entry.intake.home.thread, key[1])
        self._in_thread.setdefault(place, []).append(opened)
        self._update_entries(place)

    def _remove(self, key: Key, opened: OpenedBatcher) -> None:
        del self.table[key]
        if opened.face is not None:
            opened.face.note_entry(opened.entry, finds=False)
        place = (opened.entry.intake.home.thread, key[1])
        there = self._in_thread[place]
        there.remove(opened)
        if not there:
            del self._in_thread[place]
        else:
            self._update_entries(place)

    def _update_entries(self, place: tuple[int, int | None]) -> None:
        """Sets the entries for calls of a thread if the thread alone determines the batcher."""
        there = self._in_thread[place]
        for opened in there:
            if opened.face is not None:
                opened.face.note_entry(opened.entry, finds=len(there) == 1)

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
        unnamed = self.table.get(key)  # a batcher opened by a call; hidden by this one
        if unnamed is not None:
            self._remove(key, unnamed)
        self._add(key, opened)
        try:
            yield
        finally:
            self._remove(key, opened)
            if unnamed is not None and unnamed.batcher.is_open:
                self._add(key, unnamed)

    def not_open(self, receiver: object) -> NotOpen:
        homes = [home for home, _ in self._open_for(receiver)]
        name = self.handler.name.rsplit(".", 1)[-1]
        written = name if receiver is None else f"instance.{name}"
        return not_open_here(self.handler.name, homes, written)


def _configure(batcher: Batcher[Any], changes: Mapping[str, Any]) -> None:
    """Changes options of a batcher in its event loop; another thread has checked them."""
    try:
        batcher.configure(**cast("OptionKeywords", changes))
    except Exception:  # of a user's policy; it must not end the event loop
        logger.exception("%s could not apply new options", batcher.name)
