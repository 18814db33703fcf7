"""The verbs of a client as a table: which HTTP request each one is, and how its arguments are sent.

A method of `Client` that `verb` decorates declares a verb: its parameters, its method and path, and
the forms of its arguments: how each is converted to JSON and back. The controller overrides the
method. A remote client inherits it, and sends the request. The admin API answers the requests of
all verbs of the table.

The controller checks the arguments. Before it sends a request, a remote client checks only those
that a path or JSON might change, with the functions that the controller uses.
"""

from __future__ import annotations

import functools
import re
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from inspect import BoundArguments, Parameter, Signature, signature
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast, get_type_hints

from shoal.core.options.option import yes_or_no
from shoal.core.traffic import Traffic
from shoal.errors import NoSuchName
from shoal.replicas.code.definition import named_arguments
from shoal.serving.backend_config import BackendConfig
from shoal.serving.clients.wire import without_hidden
from shoal.serving.names import checked_methods, is_tag

if TYPE_CHECKING:
    from shoal.serving.imports import ImportRule


@dataclass(frozen=True)
class ArgumentForm:
    # checks the argument
    sent: Callable[[Any], Any] = lambda value: value
    # checks import paths with the rule
    received: Callable[[ImportRule, Any], Any] = lambda _, value: value


def array(name: str, value: Any) -> Sequence[Any]:
    if not isinstance(value, list):
        raise TypeError(f"{name} must be an array, not {value!r}")
    return cast("Sequence[Any]", value)


def mapping(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"{name} must be an object, not {value!r}")
    return cast("dict[str, Any]", value)


def _existing(kind: str, name: Any) -> str:
    # An invalid name may contain a "/" and change the path; nothing can have that name anyway.
    if not isinstance(name, str) or not is_tag(name):
        raise NoSuchName(f"there is no {kind} {name!r}")
    return name


def _path(name: str, imports: ImportRule, path: Any) -> str:
    if not isinstance(path, str):
        raise TypeError(
            f"{name} must be an import path such as 'package.module:Name', not {path!r}"
        )
    return imports.checked(path)


def _compare(imports: ImportRule, path: Any) -> str | None:
    return None if path is None else _path("compare", imports, path)


def _config(config: BackendConfig | Mapping[str, Any] | None) -> Mapping[str, Any]:
    if isinstance(config, Mapping):
        if not all(isinstance(name, str) for name in cast("Mapping[object, Any]", config)):
            BackendConfig.of(config)  # raises the error for that
        return config
    return BackendConfig.of(config).durable()


def _changes(changes: Any) -> Mapping[str, Any]:
    # None stands for the defaults in a whole config only.
    if not isinstance(changes, (BackendConfig, Mapping)):
        BackendConfig().changed(changes)  # raises the error for that
    return _config(cast("Any", changes))


def _allowed_config(imports: ImportRule, config: Any) -> Any:
    if isinstance(config, dict):
        return imports.checked_config(cast("dict[str, Any]", config))
    return config


def _allowed_changes(imports: ImportRule, changes: dict[str, Any]) -> Any:
    return imports.checked_config(without_hidden(changes))


def _weights(weights: Any) -> Any:
    Traffic.checked(weights, weights)
    return weights


BACKEND: Final = ArgumentForm(partial(_existing, "backend"))
ENDPOINT: Final = ArgumentForm(partial(_existing, "endpoint"))
METHODS: Final = ArgumentForm(checked_methods)
WEIGHTS: Final = ArgumentForm(_weights)
DEFINITION: Final = ArgumentForm(received=partial(_path, "definition"))
COMPARE: Final = ArgumentForm(received=_compare)
INIT_ARGS: Final = ArgumentForm(received=lambda _, values: array("init_args", values))
INIT_KWARGS: Final = ArgumentForm(
    lambda values: dict(named_arguments(values)), lambda _, values: mapping("init_kwargs", values)
)
CONFIG: Final = ArgumentForm(_config, _allowed_config)
CHANGES: Final = ArgumentForm(_changes, _allowed_changes)


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
    forms: Mapping[str, ArgumentForm]
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
    **forms: ArgumentForm,
) -> Callable[[F], F]:
    """Declares a method of `Client` as a verb. Arguments without a form are sent unchanged."""
    forms = {name: _NAMES[name] for name in _IN_PATH.findall(path)} | forms

    def declare(function: F) -> F:
        parameters = [*signature(function).parameters.values()][1:]
        each = {one.name: forms.pop(one.name, ArgumentForm()) for one in parameters}
        assert not forms, f"{function.__name__} has no parameters {[*forms]}"
        declared = Verb(function, method, path, Signature(parameters), each, query, body, goes_on)

        @functools.wraps(function)
        async def send(self: Any, *args: Any, **kwargs: Any) -> Any:
            return await self._send(declared, args, kwargs)

        cast("Any", send).verb = declared
        return cast("F", send)

    return declare
