"""Reading a request: JSON with its tensors, or JSON with bytes after it.

With the binary extension the header ``Inference-Header-Content-Length`` tells where the JSON ends.
The elements of each tensor with a ``binary_data_size`` follow, one tensor after the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final, NotRequired

from pydantic import Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from shoal.http.oip.tensor import Tensor, malformed
from shoal.http.requests.endpoint import call_headers
from shoal.http.requests.exchange import JSON
from shoal.http.requests.json_scan import Costs, check_json
from shoal.http.requests.problem import Problem, Refused

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal.http.requests.call import CallHeaders
    from shoal.http.requests.exchange import Exchange

BINARY: Final = b"application/octet-stream"
"""The media type of JSON with binary data after it."""

HEADER_LENGTH: Final = b"inference-header-content-length"
"""The name of the header with the length of the JSON in front of binary data."""

# Of inputs, and of outputs.
_MOST_TENSORS: Final = 256
_MOST_DIMENSIONS: Final = 32
_LARGEST_DIMENSION: Final = 2**63 - 1
_MICROSECONDS: Final = 1e-6
_COSTS: Final = Costs()
_NO_BYTES: Final = memoryview(b"")
_NONE: Final[dict[str, Any]] = {}
# What would be answered wrongly if they were ignored.
_NOT_SUPPORTED: Final = frozenset({"sequence_id", "shared_memory_region", "classification"})

Name = Annotated[str, Field(min_length=1, max_length=256)]
Whole = Annotated[int, Field(strict=True, ge=0, le=_LARGEST_DIMENSION)]
Yes = Annotated[bool, Field(strict=True)]


class _OfInput(TypedDict):
    binary_data_size: NotRequired[Whole]
    shared_memory_region: NotRequired[Any]


class _OfOutput(TypedDict):
    binary_data: NotRequired[Yes]
    classification: NotRequired[Any]
    shared_memory_region: NotRequired[Any]


class _OfRequest(TypedDict):
    binary_data_output: NotRequired[Yes]
    priority: NotRequired[Whole]
    timeout: NotRequired[Whole]
    sequence_id: NotRequired[Any]


class _Input(TypedDict):
    name: Name
    shape: Annotated[list[Whole], Field(max_length=_MOST_DIMENSIONS, fail_fast=True)]
    datatype: str
    parameters: NotRequired[_OfInput]
    data: NotRequired[list[Any]]


class _Output(TypedDict):
    name: Name
    parameters: NotRequired[_OfOutput]


class _Request(TypedDict):
    id: NotRequired[Annotated[str, Field(max_length=1024)]]
    parameters: NotRequired[_OfRequest]
    inputs: Annotated[list[_Input], Field(max_length=_MOST_TENSORS, fail_fast=True)]
    outputs: NotRequired[Annotated[list[_Output], Field(max_length=_MOST_TENSORS, fail_fast=True)]]


_VALIDATOR: Final = TypeAdapter(_Request).validator


class TensorRequest:
    """A request for inference.

    Args:
        exchange: The request.
        body: Its body.

    Attributes:
        tensors: Its inputs.
        id: Its id; None if it has none.
        outputs: Whether each wanted output is to be binary, by name; None if all are wanted.
        is_binary: Whether an output is binary that does not say so itself.

    Raises:
        Refused: It is malformed.
    """

    __slots__ = ("_exchange", "_parameters", "id", "is_binary", "outputs", "tensors")

    def __init__(self, exchange: Exchange, body: bytes) -> None:
        headers = exchange.headers
        if headers.get(b"content-type") != JSON or b"content-encoding" in headers:
            _check_media_type(headers)
        head, rest = body, _NO_BYTES
        if (declared := headers.get(HEADER_LENGTH)) is not None:
            length = _header_length(declared, len(body))
            head, rest = body[:length], memoryview(body)[length:]
        options = exchange.settings
        check_json(head, options.max_json_elements, _COSTS)
        try:
            given: dict[str, Any] = _VALIDATOR.validate_json(head)
        except ValidationError as error:
            raise Refused(_of_validation(error)) from None
        self._exchange = exchange
        self._parameters: dict[str, Any] = given.get("parameters", _NONE)
        self.id: str | None = given.get("id")
        self.tensors: dict[str, Tensor] = {}
        for one in given["inputs"]:
            name = one["name"]
            if name in self.tensors:
                raise Refused(malformed(f"The input {name!r} is there twice."))
            data = None
            if "parameters" in one or "data" not in one:
                data, rest = _binary_data(one, rest)
            self.tensors[name] = Tensor(one, data, options)
        if rest:
            raise Refused(malformed(f"{rest.nbytes} bytes belong to no input."))
        if self._parameters:
            _check_supported("The request", self._parameters)
        self.is_binary: bool = self._parameters.get("binary_data_output", False)
        self.outputs: dict[str, bool] | None = None
        if wanted := given.get("outputs"):
            self.outputs = {one["name"]: self._is_binary(one) for one in wanted}

    def call_headers(self, version: str | None) -> CallHeaders:
        """Returns what it says about its calls, in its headers and its parameters.

        Args:
            version: The wanted version of the model; None for any.
        """
        headers = call_headers(self._exchange.headers)
        parameters = self._parameters
        if version is not None:
            headers = headers._replace(backend=version)
        if priority := parameters.get("priority"):  # 0 is the default
            headers = headers._replace(priority=b"%d" % priority)
        if timeout := parameters.get("timeout"):  # as well
            headers = headers._replace(timeout_s=timeout * _MICROSECONDS)
        return headers

    def _is_binary(self, output: Mapping[str, Any]) -> bool:
        parameters: Mapping[str, Any] = output.get("parameters", _NONE)
        _check_supported(f"The output {output['name']!r}", parameters)
        is_binary: bool = parameters.get("binary_data", self.is_binary)
        return is_binary


def _binary_data(
    given: Mapping[str, Any], rest: memoryview
) -> tuple[memoryview | None, memoryview]:
    """Returns the binary data of an input, None if it has none, and the bytes after it."""
    name, parameters = given["name"], given.get("parameters", _NONE)
    _check_supported(f"The input {name!r}", parameters)
    size: int | None = parameters.get("binary_data_size")
    if (size is None) == ("data" not in given):
        raise Refused(malformed(f"The input {name!r} needs data, or a binary_data_size."))
    if size is None:
        return None, rest
    if size > rest.nbytes:
        raise Refused(
            malformed(f"The input {name!r} has {size} bytes, but only {rest.nbytes} are left.")
        )
    return rest[:size], rest[size:]


def _check_supported(what: str, parameters: Mapping[str, Any]) -> None:
    if not _NOT_SUPPORTED.isdisjoint(parameters):
        name = min(_NOT_SUPPORTED & parameters.keys())
        raise Refused(malformed(f"{what} has the parameter {name}, which is not supported."))


def _header_length(given: bytes, size: int) -> int:
    if not given.isdigit() or len(given) > 19 or int(given) > size:
        raise Refused(
            malformed(f"Inference-Header-Content-Length must be a number up to {size}, the body's.")
        )
    return int(given)


def _check_media_type(headers: Mapping[bytes, bytes]) -> None:
    """Refuses what a web page of another origin can send without being asked.

    Clients of the protocol send JSON, ``application/octet-stream``, or no type. Without a type only
    the header Origin tells that a page sends it.
    """
    given = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if given not in (JSON, BINARY) and (given or b"origin" in headers):
        raise Refused(
            Problem(
                415,
                "unsupported-media-type",
                "The media type is not supported",
                "Send application/json, or application/octet-stream with binary data.",
            )
        )
    coding = headers.get(b"content-encoding")
    if coding is not None and coding.strip().lower() != b"identity":
        detail = "Send the body without a content coding."
        raise Refused(Problem(415, "unsupported-media-type", "The body is encoded", detail))


def _of_validation(error: ValidationError) -> Problem:
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    where = ".".join(str(step) for step in first["loc"])
    return malformed(f"{where}: {first['msg']}." if where else f"{first['msg']}.")
