"""The records of a state file: declared backends and endpoints, as JSON values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from shoal.errors import NotDurable
from shoal.serving.config.json import exact_json
from shoal.serving.names import DEFAULT_METHODS

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, kw_only=True)
class BackendRecord:
    """A backend; when written, it replaces the record with the same tag.

    Attributes:
        tag: Its tag.
        import_path: The import path of its code.
        init_args: The positional arguments of its class.
        init_kwargs: The keyword arguments of its class.
        config: Its options, as `BackendConfig.durable` returns them.

    Raises:
        NotDurable: The code is not an import path, or an argument or option does not survive JSON.
    """

    tag: str
    import_path: str
    init_args: tuple[Any, ...] = ()
    init_kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    config: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        _check_path(f"the code of the backend {self.tag!r}", self.import_path)
        put = object.__setattr__  # the record is frozen; this is its own constructor
        whose = f"of the backend {self.tag!r}"
        put(self, "init_args", tuple(exact_json(f"init_args {whose}", list(self.init_args))))
        put(self, "init_kwargs", exact_json(f"init_kwargs {whose}", dict(self.init_kwargs)))
        put(self, "config", exact_json(f"the config {whose}", dict(self.config)))

    def body(self) -> dict[str, Any]:
        """Returns all but its tag, as JSON."""
        return {
            "import_path": self.import_path,
            "init_args": list(self.init_args),
            "init_kwargs": self.init_kwargs,
            "config": self.config,
        }

    @classmethod
    def of(cls, tag: str, body: Any) -> BackendRecord:
        """Makes the record from its tag and a value of `body`."""
        return cls(
            tag=tag,
            import_path=body["import_path"],
            init_args=tuple(body["init_args"]),
            init_kwargs=body["init_kwargs"],
            config=body["config"],
        )


@dataclass(frozen=True, kw_only=True)
class ShadowRecord:
    """Shadow traffic to one backend.

    Attributes:
        proportion: The share of the requests that is copied.
        compare: The import path of the function that compares the answers; None for none.

    Raises:
        NotDurable: The function is given as an object.
    """

    proportion: float
    compare: str | None = None

    def __post_init__(self) -> None:
        if self.compare is not None:
            _check_path("what compares the answers", self.compare)
        exact_json("the proportion of shadow traffic", self.proportion)


@dataclass(frozen=True, kw_only=True)
class EndpointRecord:
    """An endpoint; when written, it replaces the record with the same name.

    Attributes:
        name: Its name.
        route: Its path; None if only handles call it.
        methods: The HTTP methods that it accepts.
        traffic: The share of each backend; empty if it is not set, and requests wait.
        shadows: Its shadow traffic, by backend.

    Raises:
        NotDurable: A weight does not survive JSON.
    """

    name: str
    route: str | None = None
    methods: tuple[str, ...] = DEFAULT_METHODS
    traffic: Mapping[str, float] = field(default_factory=dict[str, float])
    shadows: Mapping[str, ShadowRecord] = field(default_factory=dict[str, ShadowRecord])

    def __post_init__(self) -> None:
        put = object.__setattr__  # the record is frozen; this is its own constructor
        whose = f"of the endpoint {self.name!r}"
        put(self, "methods", tuple(exact_json(f"the methods {whose}", list(self.methods))))
        put(self, "traffic", exact_json(f"the traffic {whose}", dict(self.traffic)))
        put(self, "shadows", dict(self.shadows))

    def body(self) -> dict[str, Any]:
        """Returns all but its name, as JSON."""
        return {
            "route": self.route,
            "methods": list(self.methods),
            "traffic": self.traffic,
            "shadows": {
                backend: {"proportion": shadow.proportion, "compare": shadow.compare}
                for backend, shadow in self.shadows.items()
            },
        }

    @classmethod
    def of(cls, name: str, body: Any) -> EndpointRecord:
        """Makes the record from its name and a value of `body`."""
        return cls(
            name=name,
            route=body["route"],
            methods=tuple(body["methods"]),
            traffic=body["traffic"],
            shadows={backend: ShadowRecord(**one) for backend, one in body["shadows"].items()},
        )


@dataclass(frozen=True)
class DeletedBackend:
    """The deletion of a backend.

    Attributes:
        tag: Its tag.
        is_declared: Whether a program declares it, which must not create it again.
    """

    tag: str
    is_declared: bool = False


@dataclass(frozen=True)
class DeletedEndpoint:
    """The deletion of an endpoint.

    Attributes:
        name: Its name.
        is_declared: Whether a program declares it, which must not create it again.
    """

    name: str
    is_declared: bool = False


Change: TypeAlias = BackendRecord | EndpointRecord | DeletedBackend | DeletedEndpoint


@dataclass(frozen=True, kw_only=True)
class DeclaredState:
    """All declarations.

    Attributes:
        backends: The backends, by tag.
        endpoints: The endpoints, by name.
        gone_backends: The tags of backends that a program declares, and that were deleted.
        gone_endpoints: The names of such endpoints.
    """

    backends: Mapping[str, BackendRecord] = field(default_factory=dict[str, BackendRecord])
    endpoints: Mapping[str, EndpointRecord] = field(default_factory=dict[str, EndpointRecord])
    gone_backends: frozenset[str] = frozenset()
    gone_endpoints: frozenset[str] = frozenset()


def _check_path(what: str, path: object) -> None:
    if not isinstance(path, str):
        raise NotDurable(
            f"{what} is {path!r}, an object of this process, which a state file can't keep; "
            'give an import path, such as "package.module:Name"'
        )
