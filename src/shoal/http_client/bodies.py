"""Items as bodies of requests, and bodies of responses as results."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, cast, get_args

from shoal.core.npy import NPY, array_of, npy_of

if TYPE_CHECKING:
    from collections.abc import Callable

JSON: Final = "application/json"
JSON_LINES: Final = "application/x-ndjson"
BYTES: Final = "application/octet-stream"

ResultType: TypeAlias = Literal["json", "npy", "bytes"]
RESULT_TYPES: Final[tuple[str, ...]] = get_args(ResultType)

ACCEPTED: Final[Mapping[str | None, str]] = {
    None: f"{JSON}, */*;q=0.1",
    "json": JSON,
    "npy": f"{NPY}, {JSON};q=0.5",
    "bytes": "*/*",
}


def json_bytes(value: Any, plain: Callable[[Any], Any]) -> bytes:
    """Writes a value as JSON; `plain` converts objects that JSON can't represent.

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
    """Returns the body of a request with an item, and its media type."""
    if isinstance(item, (bytes, bytearray, memoryview)):
        return bytes(cast("bytes", item)), BYTES
    if type(item).__module__ == "numpy" and type(item).__name__ == "ndarray":
        if item.dtype.hasobject:
            raise TypeError("an array of objects can't be sent; send numbers, or a list")
        return npy_of(item), NPY
    check_keys("an item", item)
    return json_bytes(item, _plain), JSON


def result_of(body: bytes, media_type: str, wanted: ResultType | None, url: str) -> Any:
    """Returns the result in the body of a response.

    Raises:
        ConnectionError: The body is not what its media type says.
        TypeError: The response has another type than the one asked for.
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
