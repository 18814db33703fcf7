"""The records of a state file: declared backends and endpoints, as JSON values.

A value that does not survive JSON raises `NotDurable`. An `EndpointRecord` also declares an
endpoint without a state file, and may then compare answers with a function.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias

from shoal.core.json_text import exact_json
from shoal.core.traffic import Shadow
from shoal.errors import NotDurable
from shoal.serving.names import DEFAULT_METHODS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


@dataclass(frozen=True, kw_only=True)
class BackendRecord:
    tag: str
    import_path: str
    init_args: tuple[Any, ...] = ()
    init_kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    # as from `BackendConfig.durable`
    config: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        _check_path(f"the code of the backend {self.tag!r}", self.import_path)
        put = object.__setattr__  # the record is frozen; this is its own constructor
        owner = f"of the backend {self.tag!r}"
        put(self, "init_args", tuple(exact_json(f"init_args {owner}", list(self.init_args))))
        put(self, "init_kwargs", exact_json(f"init_kwargs {owner}", dict(self.init_kwargs)))
        put(self, "config", exact_json(f"the config {owner}", dict(self.config)))


@dataclass(frozen=True, kw_only=True)
class EndpointRecord:
    """The declaration of an endpoint: in a program, a file, a controller and its state."""

    name: str
    route: str | None = None
    methods: tuple[str, ...] = DEFAULT_METHODS
    # empty if it is not set, and requests wait
    traffic: Mapping[str, float] = field(default_factory=dict[str, float])
    # A state file takes no function that compares, only its import path.
    shadows: Mapping[str, Shadow] = field(default_factory=dict[str, Shadow])

    def with_shadow(self, backend: str, shadow: Shadow) -> Self:
        """Returns a copy with another shadow of a backend, or without one if its share is 0."""
        shadows = {**self.shadows, backend: shadow}
        if not shadow.proportion:
            del shadows[backend]
        return replace(self, shadows=shadows)

    def check_durable(self) -> None:
        for shadow in self.shadows.values():
            if shadow.compare is not None:
                _check_path("what compares the answers", shadow.compare)


@dataclass(frozen=True)
class Deleted:
    kind: Literal["backend", "endpoint"]
    name: str
    # Whether a program declares it, which must not create it again.
    is_declared: bool = False


Change: TypeAlias = BackendRecord | EndpointRecord | Deleted


@dataclass(frozen=True, kw_only=True)
class DeclaredState:
    # Both in the order of creation.
    backends: Mapping[str, BackendRecord] = field(default_factory=dict[str, BackendRecord])
    endpoints: Mapping[str, EndpointRecord] = field(default_factory=dict[str, EndpointRecord])
    # The kinds and names of a program's own declarations that were deleted.
    gone: frozenset[tuple[str, str]] = frozenset()

    @classmethod
    def of(cls, data: Any) -> DeclaredState:
        """Makes it of what `as_data` has returned."""
        return cls(
            backends={one["tag"]: BackendRecord(**one) for one in data["backends"]},
            endpoints={one["name"]: _endpoint(one) for one in data["endpoints"]},
            gone=frozenset((kind, name) for kind, name in data["gone"]),
        )

    def as_data(self) -> dict[str, Any]:
        return {
            "backends": [asdict(one) for one in self.backends.values()],
            "endpoints": [asdict(one) for one in self.endpoints.values()],
            "gone": sorted(self.gone),
        }

    def changed(self, changes: Iterable[Change]) -> DeclaredState:
        backends, endpoints, gone = dict(self.backends), dict(self.endpoints), set(self.gone)
        for change in changes:
            match change:
                case BackendRecord():
                    backends[change.tag] = change
                    gone.discard(("backend", change.tag))
                case EndpointRecord():
                    change.check_durable()
                    endpoints[change.name] = change
                    gone.discard(("endpoint", change.name))
                case Deleted(kind, name, is_declared):
                    (backends if kind == "backend" else endpoints).pop(name, None)
                    if is_declared:
                        gone.add((kind, name))
        return DeclaredState(backends=backends, endpoints=endpoints, gone=frozenset(gone))


def _endpoint(values: Any) -> EndpointRecord:
    shadows = {tag: Shadow(**one) for tag, one in values["shadows"].items()}
    every: dict[str, Any] = {**values, "methods": tuple(values["methods"]), "shadows": shadows}
    return EndpointRecord(**every)


def _check_path(what: str, path: object) -> None:
    if not isinstance(path, str):
        raise NotDurable(
            f"{what} is {path!r}, an object of this process, which a state file can't keep; "
            'give an import path, such as "package.module:Name"'
        )
