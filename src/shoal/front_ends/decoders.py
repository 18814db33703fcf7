"""The decoders of a front end, which it is taught by the server's process."""

from __future__ import annotations

import logging
from threading import Thread
from typing import TYPE_CHECKING, Final, TypeAlias
from weakref import WeakValueDictionary

if TYPE_CHECKING:
    from starlette.types import Scope

    from shoal.http.json.decoder import Decoder

_log: Final = logging.getLogger("shoal.server")

# The method and the path of requests.
Key: TypeAlias = tuple[str, str]


class Decoders:
    def __init__(self) -> None:
        self._numbers: dict[Key, int] = {}  # also of those that are being built
        self._ready: dict[Key, tuple[int, Decoder]] = {}
        self._by_number: WeakValueDictionary[int, Decoder] = WeakValueDictionary()

    def learn(self, key: Key, number: int, description: bytes) -> None:
        """Builds a decoder in a thread: to load pydantic takes longer than many requests."""
        self._numbers[key] = number
        Thread(target=self._learn, args=(key, number, description), daemon=True).start()

    def pickled_item(self, scope: Scope, body: bytes) -> tuple[int, bytes] | None:
        """Returns the number of the decoder, and the item; None if the body can't be decoded."""
        ready = self._ready.get((scope["method"], scope["path"]))
        if ready is None or not body:
            return None
        number, decoder = ready
        try:
            return number, decoder.pickled_item(scope, body)
        except Exception:  # the server's process refuses the body, or reads it another way
            return None

    def _learn(self, key: Key, number: int, description: bytes) -> None:
        try:
            decoder = self._by_number.get(number)
            if decoder is None:
                from shoal.http.json.decoder import Decoder

                decoder = self._by_number[number] = Decoder(description)
        except Exception as error:
            _log.warning("a worker can't decode the requests to %s", key[1], exc_info=error)
            return
        if self._numbers[key] == number:  # else a later one has replaced it
            self._ready[key] = number, decoder
