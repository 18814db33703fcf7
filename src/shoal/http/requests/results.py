"""The bytes of a handler's result: JSON, or what the client or the handler asks for instead.

==============================  =================================================================
the result is                   the answer is
==============================  =================================================================
bytes                           these, as ``application/octet-stream`` or what `MediaType` says
a numpy array                   a ``.npy`` file, if ``Accept`` asks for ``application/x-npy``
anything                        MessagePack, if ``Accept`` asks for ``application/msgpack``
anything                        JSON
==============================  =================================================================

A result that can't be written as ``Accept`` asks is sent as JSON: ``Accept`` is a preference.
"""

from __future__ import annotations

from typing import Any, Final

from shoal.http.requests.accept import prefers, weights
from shoal.http.requests.arrays import NPY, as_npy
from shoal.http.requests.exchange import JSON
from shoal.http.requests.msgpack import MSGPACK, has_msgpack, packed
from shoal.http.requests.plain import encoded, of_memoryview

BYTES: Final = b"application/octet-stream"
"""The media type of bytes, if code does not say another."""

BYTES_TYPES: Final = frozenset({bytes, bytearray, memoryview})
"""The types of results that are sent as they are."""


def written(value: Any, accept: bytes, media_type: bytes) -> tuple[bytes, bytes]:
    """Writes a handler's result.

    Args:
        value: The result.
        accept: The request's ``Accept``; empty if it has none.
        media_type: The media type of bytes.

    Returns:
        The media type and the bytes.

    Raises:
        TypeError: The value can't be written.
    """
    if type(value) is memoryview:
        value = of_memoryview(value)
    if type(value) in BYTES_TYPES:
        return media_type, bytes(value)
    accepted = weights(accept) if accept else {}
    if prefers(accepted, NPY, JSON):
        array = as_npy(value)
        if array is not None:
            return NPY, array
    if prefers(accepted, MSGPACK, JSON) and has_msgpack():
        try:
            return MSGPACK, packed(value)
        except TypeError:
            pass
    return JSON, encoded(value)
