"""Reading a request: JSON with its tensors, or JSON with bytes after it.

The JSON has the inputs of a request, the outputs that it wants, and its options. With the binary
extension the header ``Inference-Header-Content-Length`` says where it ends. The elements of each
tensor with a ``binary_data_size`` follow, one tensor after the other. Clients that send binary data
often send the same JSON with each request, so it is read once.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any, Final, NotRequired

import orjson
from pydantic import AfterValidator, Field, TypeAdapter, ValidationError
from pydantic_core import PydanticCustomError
from typing_extensions import TypedDict

from shoal.http.json.content_coding import decompressed
from shoal.http.json.scan import check_cost, check_json, is_utf8
from shoal.http.json.validation import first_error
from shoal.http.oip.tensor import Allowance, Tensor, malformed
from shoal.http.requests.call import call_headers
from shoal.http.requests.exchange import JSON, Exchange
from shoal.http.requests.problem import Refused

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal.http.requests.call import CallHeaders

# The limit of inputs, and of outputs.
_MOST_TENSORS: Final = 256
_MOST_DIMENSIONS: Final = 32
_LARGEST_DIMENSION: Final = 2**63 - 1
# The limits of the kept heads: their number and their length.
_MOST_KEPT: Final = 256
_LONGEST_KEPT: Final = 512
_NONE: Final[dict[str, Any]] = {}

Name = Annotated[str, Field(min_length=1, max_length=256)]
Whole = Annotated[int, Field(strict=True, ge=0, le=_LARGEST_DIMENSION)]
Yes = Annotated[bool, Field(strict=True)]


def _refuse(value: object) -> None:
    if value is not None:
        raise PydanticCustomError("not_supported", "This parameter is not supported")


# Without it the response would be wrong.
_Unsupported = Annotated[Any, AfterValidator(_refuse)]


# A member that may be left out may also be null.
class _OfInput(TypedDict):
    binary_data_size: NotRequired[Whole | None]
    shared_memory_region: NotRequired[_Unsupported]


class _OfOutput(TypedDict):
    binary_data: NotRequired[Yes | None]
    classification: NotRequired[_Unsupported]
    shared_memory_region: NotRequired[_Unsupported]


class _OfRequest(TypedDict):
    binary_data_output: NotRequired[Yes | None]
    priority: NotRequired[Whole | None]
    timeout: NotRequired[Whole | None]
    sequence_id: NotRequired[_Unsupported]


class _Input(TypedDict):
    name: Name
    shape: Annotated[list[Whole], Field(max_length=_MOST_DIMENSIONS, fail_fast=True)]
    datatype: str
    parameters: NotRequired[_OfInput | None]
    data: NotRequired[list[Any] | None]


class _Output(TypedDict):
    name: Name
    parameters: NotRequired[_OfOutput | None]


class _Request(TypedDict):
    id: NotRequired[Annotated[str, Field(max_length=1024)] | None]
    parameters: NotRequired[_OfRequest | None]
    inputs: Annotated[list[_Input], Field(max_length=_MOST_TENSORS, fail_fast=True)]
    outputs: NotRequired[
        Annotated[list[_Output], Field(max_length=_MOST_TENSORS, fail_fast=True)] | None
    ]


_VALIDATOR: Final = TypeAdapter(_Request).validator


class RequestHead:
    """The contents of a request's JSON; inputs with binary data are not filled yet."""

    def __init__(self, parsed: Mapping[str, Any], most_elements: int) -> None:
        allowance = Allowance(most_elements)
        self.inputs = [Tensor(one, allowance) for one in parsed["inputs"]]
        if len(self.inputs) > 1:
            name, count = Counter(one.name for one in self.inputs).most_common(1)[0]
            if count > 1:
                raise malformed(f"The input {name!r} is there twice.")
        self.id: str | None = parsed.get("id")
        self.parameters: Mapping[str, Any] = parsed.get("parameters") or _NONE
        # Whether outputs are binary that do not say so themselves.
        self.is_binary = bool(self.parameters.get("binary_data_output"))
        # Whether each wanted output is binary; None if all outputs are wanted.
        self.outputs: Mapping[str, bool] | None = None
        if wanted := parsed.get("outputs"):
            self.outputs = {one["name"]: self._is_binary(one) for one in wanted}

    @property
    def may_be_kept(self) -> bool:
        """Whether other requests may have the same: it has no elements, and no id."""
        return self.id is None and all(one.size is not None for one in self.inputs)

    def _is_binary(self, output: Mapping[str, Any]) -> bool:
        is_binary: bool | None = (output.get("parameters") or _NONE).get("binary_data")
        return self.is_binary if is_binary is None else is_binary


class RequestHeads:
    """Reads the JSON of requests, and keeps those that other requests are likely to send."""

    def __init__(self, max_elements: int) -> None:
        self._max_elements = max_elements
        self._kept: dict[bytes, RequestHead] = {}

    def of(self, head: bytes) -> RequestHead:
        known = self._kept.get(head)
        if known is not None:
            return known
        new = self.read(head)
        if len(head) <= _LONGEST_KEPT and new.may_be_kept:
            if len(self._kept) >= _MOST_KEPT:
                self._kept.clear()
            self._kept[head] = new
        return new

    def read(self, head: bytes) -> RequestHead:
        """Reads JSON that other requests are not likely to send."""
        check_cost(head, self._max_elements)
        try:
            try:
                # It refuses numbers that JSON does not have. Those of more than 64 bits become
                # floats, which no tensor of integers may have.
                value = orjson.loads(head)
            except orjson.JSONDecodeError:
                check_json(head, self._max_elements)
                parsed = _VALIDATOR.validate_json(head)  # its error says what is wrong
            else:
                parsed = _VALIDATOR.validate_python(value)
        except ValidationError as error:
            where, message = first_error(error)
            if not where and not is_utf8(head):
                message += ". Send UTF-8 without a byte order mark"
            raise malformed(f"{where}: {message}." if where else f"{message}.") from None
        return RequestHead(parsed, self._max_elements)


# The media type of JSON with binary data after it.
BINARY: Final = b"application/octet-stream"

# The header with the length of the JSON in front of binary data.
HEADER_LENGTH: Final = b"inference-header-content-length"

_MICROSECONDS: Final = 1e-6
_MEDIA_TYPES: Final = frozenset({JSON, BINARY})


def read_tensors(
    exchange: Exchange, body: bytes, heads: RequestHeads
) -> tuple[RequestHead, list[Tensor]]:
    headers = exchange.headers
    if headers.get(b"content-type") not in _MEDIA_TYPES:
        _check_media_type(headers)
    body = decompressed(exchange, body)
    declared = headers.get(HEADER_LENGTH)
    if declared is None:
        described, end = heads.read(body), len(body)
    else:
        end = _header_length(declared, len(body))
        described = heads.of(body[:end])
    allowance = Allowance(exchange.options.max_json_elements)
    return described, _filled(described.inputs, memoryview(body)[end:], allowance)


def _filled(inputs: list[Tensor], rest: memoryview, allowance: Allowance) -> list[Tensor]:
    """Returns inputs with the elements that follow the JSON."""
    tensors: list[Tensor] = []
    at = 0
    for tensor in inputs:
        if (size := tensor.size) is None:
            tensors.append(tensor)
            continue
        start, at = at, at + size
        if at > rest.nbytes:
            tensor.refuse(f"has {size} bytes, but only {rest.nbytes - start} are left")
        tensors.append(tensor.filled(rest[start:at], allowance))
    if at < rest.nbytes:
        raise malformed(f"{rest.nbytes - at} bytes belong to no input.")
    return tensors


def headers_of_call(exchange: Exchange, described: RequestHead, version: str | None) -> CallHeaders:
    headers = call_headers(exchange.headers)
    if version is not None:
        headers = headers._replace(backend=version)
    if parameters := described.parameters:
        if priority := parameters.get("priority"):  # 0 is the default
            headers = headers._replace(priority=b"%d" % priority)
        if timeout := parameters.get("timeout"):  # 0 is the default here, too
            headers = headers._replace(timeout_s=timeout * _MICROSECONDS)
    return headers


def _header_length(header: bytes, size: int) -> int:
    length = int(header) if header.isdigit() and len(header) <= 19 else size + 1
    if length > size:
        raise malformed(
            f"Inference-Header-Content-Length must be a number up to {size}, the body's."
        )
    return length


def _check_media_type(headers: Mapping[bytes, bytes]) -> None:
    """Refuses requests that a web page of another origin can send without being asked."""
    # Clients of the protocol send JSON, application/octet-stream, or no type. Without a type only
    # the header Origin shows that a page sends it.
    media_type = headers.get(b"content-type", b"")
    if not media_type and b"origin" not in headers:
        return
    if media_type.partition(b";")[0].strip().lower() not in _MEDIA_TYPES:
        raise Refused.of(
            "unsupported-media-type",
            "Send application/json, or application/octet-stream with binary data.",
        )
