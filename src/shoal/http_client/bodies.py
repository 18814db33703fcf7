"""Items as bodies of requests, and bodies of responses as results."""

from __future__ import annotations

import importlib
import json
from dataclasses import asdict, is_dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, cast, get_args

from shoal.core.json_text import check_keys, json_bytes
from shoal.core.npy import NPY, array_of, npy_of

if TYPE_CHECKING:
    from collections.abc import Mapping

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


def body_of(item: Any) -> tuple[bytes, str]:
    """Returns the body of a request with an item, and its media type."""
    if isinstance(item, (bytes, bytearray, memoryview)):
        return bytes(cast("bytes", item)), BYTES
    if type(item).__module__ == "numpy" and type(item).__name__ == "ndarray":
        return npy_of(item), NPY
    check_keys("an item", item)
    return json_bytes(item, _plain), JSON


def result_of(body: bytes, media_type: str, wanted: ResultType | None, url: str) -> Any:
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
