"""Which batchers of a decorated handler are open, and how one is opened.

A decorated function is a constant of the program; its batcher belongs to one event loop, and to one
instance where the handler is a method. So there is a table of what is open now, by thread (an event
loop has a thread to itself) and receiver; opening adds to it and takes out again. Keeping the
batcher in a context variable would look tidier, but tasks that a server starts from elsewhere would
not see it.
"""

from __future__ import annotations

from contextlib import asynccontextmanager, contextmanager
from threading import get_ident
from types import MethodType
from typing import TYPE_CHECKING, Any, NamedTuple

from shoal.batching.batcher import Batcher
from shoal.batching.checking import checked_options
from shoal.batching.handlers import Handler
from shoal.batching.signature import signature_of, signature_of_batch
from shoal.errors import NotOpen

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator, Mapping
    from inspect import Signature

    from shoal.batching.entry import Entry
    from shoal.batching.handlers import Fill


class Open(NamedTuple):
    """A batcher that is open, where its calls enter, and the object by which it was opened."""

    batcher: Batcher[Any]
    entry: Entry
    face: Callable[..., Any]


class Opening:
    """One decorated handler: how to make its batchers, and which of them are open.

    Attributes:
        handler: The handler, adapted; unbound where it is a method.
        is_static: Whether it never has a receiver.
        is_class_method: Whether its receiver is a class.
        table: What is open, by thread and receiver.
    """

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
        self._call_signature = (
            self.handler.binding.signature
            if signature is None
            else signature_of_batch(function, signature)
            if fill != "closed"
            # Whether this is a method, whose first parameter is not batched, is not known yet.
            else signature_of(signature, names[1:], names)
        )
        self.table: dict[object, Open] = {}
        # The keys of `table`, and those of what is being opened or closed.
        self._taken: set[object] = set()
        self._signature = signature
        self._options = options
        self._streams = streams

    def signature_for(self, receiver: object) -> Signature:
        """Returns what a call of one item on a receiver looks like."""
        if receiver is None or self._signature is not None:
            return self._call_signature
        _self, *parameters = self._call_signature.parameters.values()
        return self._call_signature.replace(parameters=parameters)

    def key(self, receiver: object) -> object:
        """Returns the key of this thread's batcher for a receiver."""
        return get_ident() if receiver is None else (get_ident(), id(receiver))

    def found(self, receiver: object) -> Open:
        """Returns what is open for a receiver in this event loop.

        Raises:
            NotOpen: Nothing is.
        """
        found = self.table.get(self.key(receiver))
        if found is None:
            raise self.not_open(receiver)
        return found

    @asynccontextmanager
    async def opened(
        self, receiver: object, face: Callable[..., Any], entries: dict[int, Entry]
    ) -> AsyncGenerator[None]:
        """Keeps a batcher open for this thread and a receiver.

        Args:
            receiver: The instance or class that a method is batched for; None for a function.
            face: What callers call.
            entries: Where `face` looks up where its calls enter, by thread.
        """
        handler, signature, options = self.parts(receiver)
        make: Any = Batcher  # no overload takes a handler of which nothing is known
        batcher: Batcher[Any] = make(
            handler, signature=signature, name=self.handler.name, **options
        )
        with self._taking(receiver):
            async with batcher:
                with self._known(receiver, face, entries, batcher):
                    yield

    @contextmanager
    def lent(
        self,
        receiver: object,
        face: Callable[..., Any],
        entries: dict[int, Entry],
        batcher: Batcher[Any],
    ) -> Generator[None]:
        """Has calls enter a batcher that is kept open elsewhere; arguments as for `opened`."""
        with self._taking(receiver), self._known(receiver, face, entries, batcher):
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
        return bound, self._signature, {**kind, **self._options}

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
        face: Callable[..., Any],
        entries: dict[int, Entry],
        batcher: Batcher[Any],
    ) -> Generator[None]:
        key = self.key(receiver)
        entry = batcher.find()
        self.table[key] = Open(batcher, entry, face)
        entries[get_ident()] = entry
        try:
            yield
        finally:
            self.table.pop(key, None)
            entries.pop(get_ident(), None)

    def not_open(self, receiver: object) -> NotOpen:
        """Makes the error of a call that finds no batcher."""
        name = self.handler.name.rsplit(".", 1)[-1]
        if receiver is not None:
            name = f"instance.{name}"
        return NotOpen(
            f"{self.handler.name} is not open in this event loop; open it around the calls:\n"
            f"    async with shoal.open_batchers({name}):\n"
            f"        ...  # {name}(item)"
        )
