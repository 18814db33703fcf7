"""What a state file keeps: the backends and endpoints that were declared, as records of JSON."""

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
    """A backend; written down, it takes the place of the one of its tag.

    Attributes:
        tag: Its tag.
        import_path: Where its code is.
        init_args: What its class is instantiated with.
        init_kwargs: The same by name.
        config: Its options, as `BackendConfig.durable` gives them.

    Raises:
        NotDurable: The code is no import path, or an argument or option is not what JSON can keep.
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
        """Makes the record of its tag and what `body` gave."""
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
        compare: The import path of what compares the answers; None for none.

    Raises:
        NotDurable: What compares the answers is given as an object.
    """

    proportion: float
    compare: str | None = None

    def __post_init__(self) -> None:
        if self.compare is not None:
            _check_path("what compares the answers", self.compare)
        exact_json("the proportion of shadow traffic", self.proportion)


@dataclass(frozen=True, kw_only=True)
class EndpointRecord:
    """An endpoint; written down, it takes the place of the one of its name.

    Attributes:
        name: Its name.
        route: Its path; None for handles alone.
        methods: The HTTP methods that it answers.
        traffic: The share of each backend; empty while it holds its requests.
        shadows: Its shadow traffic, by backend.

    Raises:
        NotDurable: A weight is not what JSON can keep.
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
        """Makes the record of its name and what `body` gave."""
        return cls(
            name=name,
            route=body["route"],
            methods=tuple(body["methods"]),
            traffic=body["traffic"],
            shadows={backend: ShadowRecord(**one) for backend, one in body["shadows"].items()},
        )


@dataclass(frozen=True)
class DeletedBackend:
    """That there is no backend of a tag any more.

    Attributes:
        tag: The tag.
        is_declared: Whether a program declares it, which must not make it again.
    """

    tag: str
    is_declared: bool = False


@dataclass(frozen=True)
class DeletedEndpoint:
    """That there is no endpoint of a name any more.

    Attributes:
        name: The name.
        is_declared: Whether a program declares it, which must not make it again.
    """

    name: str
    is_declared: bool = False


Change: TypeAlias = BackendRecord | EndpointRecord | DeletedBackend | DeletedEndpoint


@dataclass(frozen=True, kw_only=True)
class DeclaredState:
    """All that was declared.

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
