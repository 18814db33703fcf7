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

import orjson
from pydantic_core import PydanticSerializationError, to_json, to_jsonable_python

from shoal.http.requests.accept import prefers, weights
from shoal.http.requests.arrays import NPY, as_npy
from shoal.http.requests.exchange import JSON
from shoal.http.requests.msgpack import MSGPACK, has_msgpack, packed

BYTES: Final = b"application/octet-stream"
"""The media type of bytes, if code does not say another."""

BYTES_TYPES: Final = frozenset({bytes, bytearray, memoryview})
"""The types of results that are sent as they are."""

# What it says of values that others can write: large integers, arrays of another byte order.
_LIMITS_OF_ORJSON: Final = ("Integer exceeds 64-bit range", "not native-endianness")
_WITH_ARRAYS: Final = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS


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
    if type(value) in BYTES_TYPES:
        return media_type, bytes(value)
    accepted = weights(accept) if accept else {}
    if prefers(accepted, NPY, JSON):
        array = as_npy(value)
        if array is not None:
            return NPY, array
    if prefers(accepted, MSGPACK, JSON) and has_msgpack():
        try:
            return MSGPACK, packed(value, _packable)
        except TypeError:
            pass
    return JSON, encoded(value)


def encoded(value: Any) -> bytes:
    """Writes a handler's result as JSON.

    It accepts JSON types, with integers of any size, numpy arrays and scalars, pydantic models,
    dataclasses, times, and all else that pydantic can serialize. A float that is not finite becomes
    ``null``.

    Raises:
        TypeError: The value can't be written.
    """
    try:
        return orjson.dumps(value, default=_jsonable, option=_WITH_ARRAYS)
    except orjson.JSONEncodeError as error:
        if not any(limit in str(error) for limit in _LIMITS_OF_ORJSON):
            raise
    try:
        return to_json(value, fallback=_jsonable, inf_nan_mode="null")
    except (PydanticSerializationError, ValueError) as error:
        raise TypeError(str(error)) from error


def _jsonable(value: Any) -> Any:
    as_list = getattr(value, "tolist", None)
    if as_list is not None:  # an array of a layout or a library that orjson does not support
        made = as_list()
        if type(made) is not type(value):
            return made
        # A number of more than 64 bits, for which Python has no type.
        return complex(made) if made.dtype.kind == "c" else float(made)
    try:
        return to_jsonable_python(value)
    except (PydanticSerializationError, UnicodeDecodeError) as error:  # bytes that are no text
        raise TypeError(str(error)) from error


def _packable(value: Any) -> Any:
    """Makes what can be packed of a value, whose bytes stay bytes."""
    dump = getattr(value, "model_dump", None)
    return _jsonable(value) if dump is None else dump()
