"""Items as bodies of requests, and bodies of answers as results."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, cast

from shoal.core.npy import NPY, array_of, npy_of

if TYPE_CHECKING:
    from collections.abc import Callable

JSON: Final = "application/json"
JSON_LINES: Final = "application/x-ndjson"
BYTES: Final = "application/octet-stream"

ResultType: TypeAlias = Literal["json", "npy", "bytes"]
"""What a result is asked for as: a JSON value, a numpy array, or the body as it is."""

ACCEPTED: Final[dict[ResultType | None, str]] = {
    None: f"{JSON}, */*;q=0.1",
    "json": JSON,
    "npy": f"{NPY}, {JSON};q=0.5",
    "bytes": "*/*",
}


def json_bytes(value: Any, plain: Callable[[Any], Any]) -> bytes:
    """Writes a value as JSON.

    Args:
        value: The value.
        plain: Returns a form of an object that JSON can represent.

    Raises:
        TypeError: It holds an object that JSON can't represent.
        ValueError: It holds a float or text that JSON can't represent, or contains itself.
    """
    try:
        text = json.dumps(
            value, default=plain, allow_nan=False, ensure_ascii=False, separators=(",", ":")
        )
        return text.encode()
    except RecursionError:
        raise ValueError("this can't be sent as JSON: it is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"this can't be sent as JSON: {error}") from None


def check_keys(what: str, value: Any) -> None:
    """Checks that the keys of dicts are text, since JSON silently turns other keys into text.

    Args:
        what: What the value is, for messages.
        value: The value to be sent.

    Raises:
        TypeError: A key is not text.
        ValueError: The value is nested too deeply, or contains itself.
    """
    try:
        _check_keys(what, value)
    except RecursionError:
        raise ValueError(
            f"{what} can't be sent as JSON: it is nested too deeply, or contains itself"
        ) from None


def _check_keys(what: str, value: Any) -> None:
    if isinstance(value, Mapping):
        for key, one in cast("Mapping[object, Any]", value).items():
            if not isinstance(key, str):
                raise TypeError(
                    f"{what} can't be sent as JSON: the key {key!r} of a dict would arrive as "
                    "text; write text for keys"
                )
            _check_keys(what, one)
    elif isinstance(value, (list, tuple)):
        for one in cast("Sequence[Any]", value):
            if isinstance(one, (Mapping, list, tuple)):
                _check_keys(what, one)


def body_of(item: Any) -> tuple[bytes, str]:
    """Returns the body of a request with an item, and its media type.

    Bytes are sent as they are, a numpy array as a ``.npy`` file, and anything else as JSON, where
    arrays become lists, and dataclasses and pydantic models become objects.

    Raises:
        TypeError: It can't be sent.
        ValueError: It can't be sent as JSON, is nested too deeply, or contains itself.
    """
    if isinstance(item, (bytes, bytearray, memoryview)):
        return bytes(cast("bytes", item)), BYTES
    if type(item).__module__ == "numpy" and type(item).__name__ == "ndarray":
        if item.dtype.hasobject:
            raise TypeError("an array of objects can't be sent; send numbers, or a list")
        return npy_of(item), NPY
    check_keys("an item", item)
    return json_bytes(item, _plain), JSON


def result_of(body: bytes, media_type: str, wanted: ResultType | None, url: str) -> Any:
    """Returns the result that the body of an answer holds.

    Args:
        body: The body.
        media_type: Its media type, without parameters.
        wanted: What was asked for; None for what the media type says.
        url: The URL, for messages.

    Raises:
        ConnectionError: The body is not what its media type says.
        TypeError: The answer has another type than the one asked for.
    """
    is_json = media_type == JSON or media_type.endswith("+json")
    if wanted == "bytes" or (wanted is None and not is_json and media_type != NPY):
        return body
    try:
        if is_json:
            value = json.loads(body)
            return value if wanted != "npy" else importlib.import_module("numpy").asarray(value)
        if media_type == NPY and wanted != "json":
            return array_of(body)
    except (ValueError, RecursionError) as error:
        raise ConnectionError(f"{url} did not answer with {media_type}: {error}") from None
    raise TypeError(f"{url} answered with {media_type or 'no media type'}, not with {wanted}")


def _plain(value: Any) -> Any:
    if (as_list := getattr(value, "tolist", None)) is not None:
        return as_list()
    if (dump := getattr(value, "model_dump", None)) is not None:
        return dump(mode="json")
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    raise TypeError(
        f"{value!r} can't be sent as JSON, which has None, truth values, numbers, text, lists, and "
        "dicts with text for keys"
    )
