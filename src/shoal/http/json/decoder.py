"""Decoders: they make the items of an endpoint in a front end, which has none of the user's code.

The server's process describes the parameters of an endpoint as a pickle. It makes none if they
name anything of the user's, such as a model: an object of that class costs more to send than to
validate. A front end that can't decode a body forwards it, so every refusal is the server's own.
"""

from __future__ import annotations

import io
import pickle
import sys
from importlib import import_module
from inspect import Signature
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import override

from shoal.asgi.http_options import HttpOptions
from shoal.http.json.payload import reader_for
from shoal.http.requests.dispatch import RouteDispatcher
from shoal.http.requests.exchange import Exchange
from shoal.http.requests.plain import encoded

if TYPE_CHECKING:
    from starlette.types import Message, Scope

_LIBRARIES: Final = sys.stdlib_module_names | {
    *("annotated_types", "numpy", "pydantic", "pydantic_core", "typing_extensions")
}
# What is forwarded unchanged costs nothing to decode.
_UNDECODED: Final = frozenset({"bytes", "nothing", "request"})


class Decoder:
    """Makes items from the bodies of requests; built from a description."""

    def __init__(self, description: bytes) -> None:
        signature, settings, modules = pickle.loads(description)  # noqa: S301 - of the server
        for module in modules:
            import_module(module)
        self._read = reader_for(signature).read
        self._dispatcher = RouteDispatcher(HttpOptions.of_app(settings))

    def pickled_item(self, scope: Scope, body: bytes) -> bytes:
        """Returns the item, pickled; raises any exception for a body that it can't decode."""
        if len(body) > self._dispatcher.settings.max_body_bytes:
            raise ValueError("the body is too large")
        exchange = Exchange(self._dispatcher, scope, _receive, _send)
        return pickle.dumps(self._read(exchange, body), 5)


def json_of(result: bytes) -> bytes:
    """Writes a pickled result as JSON."""
    return encoded(pickle.loads(result))  # noqa: S301 - of the server


async def _receive() -> Message:
    raise RuntimeError("the body has been received")


async def _send(_message: Message) -> None:
    raise RuntimeError("a decoder sends no response")


def description_of(signature: Signature, settings: HttpOptions) -> bytes | None:
    """Describes a decoder; None if its process would need the user's code, or gain nothing."""
    if reader_for(signature).takes in _UNDECODED:
        return None
    limits = {name: getattr(settings, name) for name in ("max_body_bytes", "max_json_elements")}
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


class _OfLibraries(pickle.Pickler):
    """Refuses the user's classes, functions and objects."""

    @override
    def reducer_override(self, obj: Any) -> Any:
        module = str(getattr(obj, "__module__", None) or type(obj).__module__)
        if module.partition(".")[0] not in _LIBRARIES:
            raise pickle.PicklingError(f"{obj!r} is the user's")
        return NotImplemented
