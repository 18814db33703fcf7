"""The declaring side of an application: what may be written before it is opened.

What is wrong with a declaration is said at the line that makes it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, TypeVar

from shoal.core.traffic import Shadow, Traffic
from shoal.errors import NoSuchName
from shoal.http.app.code import declared_on
from shoal.http.app.declarations import DeclaredEndpoint, DeclaredShadow
from shoal.replicas.code.definition import Definition
from shoal.serving.config.config import BackendConfig
from shoal.serving.config.keywords import refuse_unknown
from shoal.serving.names import (
    DEFAULT_METHODS,
    TAG_FORM,
    checked_methods,
    checked_path,
    checked_tag,
    is_tag,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Unpack

    from starlette.types import ASGIApp

    from shoal.http.app.declarations import Declarations
    from shoal.http.requests.routing import Routes
    from shoal.serving.config.keywords import BackendKeywords


def checked_name(name: Any, path: str, taken: dict[str, str]) -> str:
    """Checks the name of an endpoint.

    Args:
        name: The name.
        path: The endpoint's path.
        taken: The paths of the endpoints there are, by name.

    Raises:
        ValueError: It is no name, or is taken.
    """
    if not isinstance(name, str) or not is_tag(name):
        raise ValueError(
            f'{name!r} can\'t name the endpoint {path}: {TAG_FORM}; give one with name="..."'
        )
    if name in taken:
        raise ValueError(
            f"the endpoint {taken[name]} is named {name!r} already; give {path} another with "
            'name="..."'
        )
    return name


H = TypeVar("H", bound="Callable[..., Any]")


class DeclaringApp(ABC):
    """What an `App` declares."""

    _declared: Declarations
    _routes: Routes

    def endpoint(
        self,
        path: str,
        *,
        methods: tuple[str, ...] = DEFAULT_METHODS,
        name: str | None = None,
        **config: Unpack[BackendKeywords],
    ) -> Callable[[H], H]:
        """Declares a backend and an endpoint of one name; decorates the code, which stays as it is.

        The code is whatever `shoal.Batcher` takes; or a class without arguments, whose
        ``__call__`` is the handler; or a function that is decorated with `shoal.batch`, whose
        options hold under those that are given here. It takes lists, and its annotations say what
        a request's body is; see `shoal.http.requests.payload`. A generator handler is answered by a
        stream; see `shoal.http.requests.streaming`.

        Args:
            path: Where it is; plain text, without parameters.
            methods: The methods that it answers.
            name: What to call it in messages and metrics; the handler's name by default.
            **config: As in `BackendConfig`: how batches are formed, and where the code runs.

        Raises:
            TypeError: The handler is none, its annotation is none that JSON can be checked against,
                or an argument has the wrong type.
            ValueError: The path or the name is taken or is none, or an option is out of its range.
            RuntimeError: The application is open.
        """
        line = f'@app.endpoint("/{str(path).strip("/")}")'
        checked_path(path, line)
        capitals = checked_methods(methods)
        refuse_unknown(config, beside=("methods", "name"))

        def declare(handler: H) -> H:
            self._check_not_open(path)
            self._declared.check_free(path, capitals)
            code = declared_on(handler, config)
            taken = {n: there.path or n for n, there in self._declared.endpoints.items()}
            own_name = checked_name(code.name if name is None else name, path, taken)
            self._declared.add_code(path, capitals, own_name, code, handler)
            return handler

        return declare

    def backend(
        self, tag: str, definition: Any, *init_args: Any, **config: Unpack[BackendKeywords]
    ) -> None:
        """Declares a backend.

        Args:
            tag: What to call it.
            definition: A function, a class, or an import path ``"package.module:Name"``.
            *init_args: What a class is instantiated with.
            **config: As in `BackendConfig`.

        Raises:
            TypeError: The code is none, or an option is unknown or has the wrong type.
            ValueError: The tag is taken or is none, or an option is out of its range.
            RuntimeError: The application is open.
        """
        self._check_not_open(tag)
        checked_tag("a backend's tag", tag)
        code = Definition(definition, init_args).checked()
        self._declared.add_backend(tag, code, BackendConfig.of(config))

    def route(
        self,
        name: str,
        *,
        backend: str | Mapping[str, float],
        path: str | None = None,
        methods: Sequence[str] = DEFAULT_METHODS,
    ) -> None:
        """Declares an endpoint for backends that are declared already.

        Args:
            name: What to call it.
            backend: The backend that gets its requests, or the share of each.
            path: Its path; None for handles alone.
            methods: The methods that it answers.

        Raises:
            NoSuchName: There is no such backend.
            TypeError: An argument has the wrong type.
            ValueError: An argument is out of its range, or a name or path is taken.
            RuntimeError: The application is open.
        """
        self._check_not_open(name)
        checked_tag("an endpoint's name", name)
        weights = {backend: 1.0} if isinstance(backend, str) else backend
        self._declared.add_endpoint(
            DeclaredEndpoint(
                name=name,
                path=None if path is None else checked_path(path, 'app.route(..., path="/x")'),
                methods=checked_methods(methods),
                traffic=Traffic.checked(weights, self._declared.backends).weights,
            )
        )

    def traffic(self, endpoint: str, weights: Mapping[str, float]) -> None:
        """Declares how the requests of an endpoint are divided; see `Client.set_traffic`.

        Raises:
            NoSuchName: There is no such endpoint or backend.
            TypeError: A weight is no number.
            ValueError: A weight is negative, or they don't sum to 1.
            RuntimeError: The application is open.
        """
        declared = self._endpoint_to_change(endpoint)
        declared.traffic = Traffic.checked(weights, self._declared.backends).weights

    def shadow(
        self,
        endpoint: str,
        backend: str,
        proportion: float,
        *,
        compare: Callable[[Any, Any], bool] | str | None = None,
    ) -> None:
        """Declares shadow traffic; see `Client.shadow_traffic`.

        Raises:
            NoSuchName: There is no such endpoint or backend.
            TypeError: The proportion is no number.
            ValueError: The proportion is not from 0 to 1.
            RuntimeError: The application is open.
        """
        declared = self._endpoint_to_change(endpoint)
        if backend not in self._declared.backends:
            there = ", ".join(sorted(self._declared.backends)) or "none"
            raise NoSuchName(f"there is no backend {backend!r}; there are: {there}")
        Shadow(backend, proportion)
        declared.shadows.append(
            DeclaredShadow(backend=backend, proportion=proportion, compare=compare)
        )

    def mount(self, path: str, app: ASGIApp) -> None:
        """Serves another ASGI application for all paths under one, but for the endpoints'.

        Its lifespan is not run: what it needs open is opened by whoever serves this application.

        Args:
            path: The prefix of its paths; ``"/"`` for all that nothing else answers.
            app: The application.

        Raises:
            TypeError: An argument has the wrong type.
            ValueError: The path is none, or is taken by another mount.
        """
        prefix = checked_path(path, 'app.mount("/static", application)').rstrip("/")
        if not callable(app):
            raise TypeError(f"mount() takes an ASGI application, not {app!r}")
        self._routes.mount(prefix, app)

    def _endpoint_to_change(self, name: str) -> DeclaredEndpoint:
        self._check_not_open(name)
        found = self._declared.endpoints.get(name)
        if found is None:
            there = ", ".join(sorted(self._declared.endpoints)) or "none"
            raise NoSuchName(f"there is no endpoint {name!r}; there are: {there}")
        return found

    def _check_not_open(self, what: str) -> None:
        if self._is_up():
            raise RuntimeError(
                f"{what}: backends and endpoints are declared before the application is opened; "
                "change them through app.controller while it is open"
            )

    @abstractmethod
    def _is_up(self) -> bool:
        """Says whether the application is open, or being opened."""
