"""The verbs of a client as a table: which HTTP request each one is.

A method of `Client` that `verb` decorates declares a verb: its parameters, its method and path, and
the forms of its arguments. The controller overrides the method. A remote client inherits it, and
sends the request. The admin API answers the requests of all verbs of the table.
"""

from __future__ import annotations

import functools
import re
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from inspect import BoundArguments, Parameter, Signature, signature
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast, get_type_hints

from shoal.core.options.checks import yes_or_no
from shoal.serving.clients.arguments import BACKEND, ENDPOINT, Form

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal.serving.imports import ImportRule

F = TypeVar("F", bound=Callable[..., Coroutine[Any, Any, Any]])

_IN_PATH: Final = re.compile(r"{(\w+)}")
_NAMES: Final = {"tag": BACKEND, "backend": BACKEND, "name": ENDPOINT, "endpoint": ENDPOINT}
"""The forms of the arguments that may be in a path."""


@dataclass(frozen=True)
class Verb:
    """A verb of a client as an HTTP request; arguments that are not in its path are in its body."""

    function: Callable[..., Coroutine[Any, Any, Any]]
    method: str
    path: str  # below the admin API; a segment in braces is an argument
    # without `self`
    signature: Signature
    forms: Mapping[str, Form]
    query: str | None  # the argument in the query, as 0 or 1
    body: str | None  # the argument that is the whole body
    goes_on: bool  # whether it continues after its HTTP client disconnects

    @functools.cached_property
    def result(self) -> Any:
        return get_type_hints(self.function)["return"]

    @functools.cached_property
    def members(self) -> Mapping[str, bool]:
        """The members of the body, and whether each is required."""
        elsewhere = {*_IN_PATH.findall(self.path), self.query, self.body}
        return {
            name: one.default is Parameter.empty and one.kind is not Parameter.VAR_POSITIONAL
            for name, one in self.signature.parameters.items()
            if name not in elsewhere
        }

    @property
    def takes_body(self) -> bool:
        return self.body is not None or bool(self.members)

    def request(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[str, Any]:
        # Arguments that don't fit get Python's own message, which names the verb.
        self.function(None, *args, **kwargs).close()
        bound = self.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        sent = {name: self.forms[name].sent(value) for name, value in bound.arguments.items()}
        path = self.path.format_map(sent)
        if self.query is not None:
            path += f"?{self.query}={int(yes_or_no(self.query, sent[self.query]))}"
        if self.body is not None:
            return path, sent[self.body]
        return path, {name: sent[name] for name in self.members} or None

    def arguments(self, received: Mapping[str, Any], imports: ImportRule) -> BoundArguments:
        made = {name: self.forms[name].received(imports, one) for name, one in received.items()}
        return BoundArguments(self.signature, OrderedDict(made))


def verb(
    method: str,
    path: str,
    *,
    query: str | None = None,
    body: str | None = None,
    goes_on: bool = False,
    **forms: Form,
) -> Callable[[F], F]:
    """Declares a method of `Client` as a verb. Arguments without a form are sent unchanged."""
    forms = {name: _NAMES[name] for name in _IN_PATH.findall(path)} | forms

    def declare(function: F) -> F:
        parameters = [*signature(function).parameters.values()][1:]
        each = {one.name: forms.pop(one.name, Form()) for one in parameters}
        assert not forms, f"{function.__name__} has no parameters {[*forms]}"
        declared = Verb(function, method, path, Signature(parameters), each, query, body, goes_on)

        @functools.wraps(function)
        async def send(self: Any, *args: Any, **kwargs: Any) -> Any:
            return await self._send(declared, args, kwargs)

        cast("Any", send).verb = declared
        return cast("F", send)

    return declare
