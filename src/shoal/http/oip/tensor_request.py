"""Reading a request: JSON with its tensors, or JSON with bytes after it.

With the binary extension the header ``Inference-Header-Content-Length`` says where the JSON ends.
The elements of each tensor with a ``binary_data_size`` follow, one tensor after the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from shoal.http.oip.tensor import malformed
from shoal.http.requests.content_coding import decoded
from shoal.http.requests.endpoint import call_headers
from shoal.http.requests.exchange import JSON
from shoal.http.requests.problem import Problem, Refused

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal.http.oip.description import Description, Descriptions
    from shoal.http.oip.tensor import Tensor
    from shoal.http.requests.call import CallHeaders
    from shoal.http.requests.exchange import Exchange

BINARY: Final = b"application/octet-stream"
"""The media type of JSON with binary data after it."""

HEADER_LENGTH: Final = b"inference-header-content-length"
"""The name of the header with the length of the JSON in front of binary data."""

_MICROSECONDS: Final = 1e-6
_MEDIA_TYPES: Final = frozenset({JSON, BINARY})


def read_tensors(
    exchange: Exchange, body: bytes, descriptions: Descriptions
) -> tuple[Description, list[Tensor]]:
    headers = exchange.headers
    if headers.get(b"content-type") not in _MEDIA_TYPES:
        _check_media_type(headers)
    if b"content-encoding" in headers:
        body = decoded(headers, body, exchange.settings.max_body_bytes)
    declared = headers.get(HEADER_LENGTH)
    if declared is None:
        described, end = descriptions.read(body), len(body)
    else:
        end = _header_length(declared, len(body))
        described = descriptions.of(body[:end])
    tensors = described.inputs
    if declared is not None or described.has_binary:
        tensors = _filled(tensors, memoryview(body)[end:])
    return described, tensors


def _filled(inputs: list[Tensor], rest: memoryview) -> list[Tensor]:
    """Returns inputs with the elements that follow the JSON."""
    if len(inputs) == 1 and inputs[0].size == rest.nbytes:
        return [inputs[0].filled(rest)]
    tensors: list[Tensor] = []
    at = 0
    for tensor in inputs:
        if (size := tensor.size) is None:
            tensors.append(tensor)
            continue
        start, at = at, at + size
        if at > rest.nbytes:
            tensor.refuse(f"has {size} bytes, but only {rest.nbytes - start} are left")
        tensors.append(tensor.filled(rest[start:at]))
    if at < rest.nbytes:
        raise Refused(malformed(f"{rest.nbytes - at} bytes belong to no input."))
    return tensors


def headers_of_call(exchange: Exchange, described: Description, version: str | None) -> CallHeaders:
    """Returns the call's options in a request's headers and parameters."""
    headers = call_headers(exchange.headers)
    if version is not None:
        headers = headers._replace(backend=version)
    if parameters := described.parameters:
        if priority := parameters.get("priority"):  # 0 is the default
            headers = headers._replace(priority=b"%d" % priority)
        if timeout := parameters.get("timeout"):  # as well
            headers = headers._replace(timeout_s=timeout * _MICROSECONDS)
    return headers


def _header_length(given: bytes, size: int) -> int:
    length = int(given) if given.isdigit() and len(given) <= 19 else size + 1
    if length > size:
        raise Refused(
            malformed(f"Inference-Header-Content-Length must be a number up to {size}, the body's.")
        )
    return length


def _check_media_type(headers: Mapping[bytes, bytes]) -> None:
    """Refuses requests that a web page of another origin can send without being asked."""
    # Clients of the protocol send JSON, application/octet-stream, or no type. Without a type only
    # the header Origin shows that a page sends it.
    given = headers.get(b"content-type", b"")
    if not given and b"origin" not in headers:
        return
    if given.partition(b";")[0].strip().lower() not in _MEDIA_TYPES:
        raise Refused(
            Problem(
                415,
                "unsupported-media-type",
                "The media type is not supported",
                "Send application/json, or application/octet-stream with binary data.",
            )
        )
