"""Decoders: they make the items of an endpoint in a front end, which has none of the user's code.

The server's process describes the parameters of an endpoint as a pickle. It makes none if they
name anything of the user's, such as a model: an object of that class costs more to send than to
validate. A front end that can't decode a body forwards it, so every refusal is the server's own.
"""

from __future__ import annotations

import io
import sys
from importlib import import_module
from inspect import Signature
from pickle import Pickler, PicklingError, dumps
from typing import TYPE_CHECKING, Any, Final

from shoal.asgi.http_options import HttpOptions
from shoal.failures.held import held
from shoal.http.json.payload import Received, reader_for
from shoal.http.requests.plain import encoded
from shoal.replicas.process.wire.messages import unpickled

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_LIBRARIES: Final = sys.stdlib_module_names | {
    *("annotated_types", "numpy", "pydantic", "pydantic_core", "typing_extensions")
}
# The types of defaults; the last for a parameter without one.
_PLAIN: Final = frozenset({bool, int, float, str, bytes, type(None), type(Signature.empty)})
# A larger body is decoded by the server's process, as is one whose length is not declared.
_LONGEST_DECODED: Final = 2**20
# An item that takes much more memory than its body is not sent in its place.
_FREE_BYTES: Final = 4096
_MOST_TIMES: Final = 4
# It imports what the client names.
_REFUSED: Final = "ImportString"


class Decoder:
    """Makes items from the bodies of requests; built from a description."""

    def __init__(self, number: int, description: bytes) -> None:
        self.number = number
        signature, limits, modules = unpickled(description)
        for module in modules:
            import_module(module)
        self._read: Callable[[Any, bytes], Any] = reader_for(signature).read
        self._options = HttpOptions.of_app(limits)
        self.longest_body = min(self._options.max_body_bytes, _LONGEST_DECODED)

    def pickled_item(self, headers: Mapping[bytes, bytes], body: bytes) -> tuple[int, bytes] | None:
        """Returns its number and the item, pickled; None for a body that it can't decode."""
        if len(body) > self.longest_body:
            return None
        try:
            item = dumps(self._read(Received(headers, self._options), body), 5)
        except BaseException:  # the server's process refuses the body, or reads it another way
            return None
        return None if len(item) > _FREE_BYTES + _MOST_TIMES * len(body) else (self.number, item)


@held
def json_of(form: str, shape: tuple[int, ...], data: bytes) -> bytes:
    """Writes an array, given as the `memoryview` of it has it."""
    return encoded(import_module("numpy").ndarray(shape, form, data))


def description_of(signature: Signature, options: HttpOptions) -> bytes | None:
    """Describes a decoder; None if its process would need the user's code."""
    # A sentinel, such as an object or NaN, would be another object there.
    defaults = [one.default for one in signature.parameters.values()]
    if any(type(one) not in _PLAIN or one != one for one in defaults):
        return None
    limits = {name: getattr(options, name) for name in ("max_body_bytes", "max_json_elements")}
    # Results may be arrays, and the first one must not wait for the import.
    modules = ["numpy"] if "numpy" in sys.modules else []
    file = io.BytesIO()
    try:
        _OfLibraries(file, 5).dump(
            (signature.replace(return_annotation=Signature.empty), limits, modules)
        )
    except Exception:  # what a signature holds may fail in any way
        return None
    return file.getvalue()


class _OfLibraries(Pickler):
    """Refuses the user's classes, functions and objects."""

    def reducer_override(self, obj: Any) -> Any:
        module = str(getattr(obj, "__module__", None) or type(obj).__module__)
        names = getattr(obj, "__name__", ""), type(obj).__name__
        if module.partition(".")[0] not in _LIBRARIES or _REFUSED in names:
            raise PicklingError(f"{obj!r} can't be used in another process")
        return NotImplemented
