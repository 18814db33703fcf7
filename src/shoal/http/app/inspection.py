"""Inspection of an application, for `shoal check`: imports and checks its code without running it.

It finds all mistakes that a start would find, except those inside the user's code: no class is
instantiated, and no handler is called.
"""

from __future__ import annotations

import inspect
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, cast

from shoal.batching.handlers.annotations import read_signature
from shoal.batching.handlers.binding import described, unreadable_annotations
from shoal.http.json.payload import reader_for
from shoal.replicas.code.definition import imported
from shoal.replicas.code.instance import adapted, call_of, forms_batches
from shoal.serving.backend_options import loaded_converters

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from shoal.http.app.app import App
    from shoal.http.app.declarations import EndpointDeclaration
    from shoal.replicas.code.definition import Definition
    from shoal.serving.backend_config import BackendConfig


class Complaint(ValueError):
    """A mistake in a declaration, at a path such as ``("backends", tag, "code")``."""

    def __init__(self, path: tuple[str, ...], message: str) -> None:
        super().__init__(message)
        self.path = path


@dataclass(frozen=True, kw_only=True)
class BackendPlan:
    tag: str
    code: str
    config: BackendConfig
    # Such as "lists of up to 64 str"; None if the code was not inspected.
    takes: str | None = None
    # Options that are allowed but probably a mistake.
    oddity: str | None = None


@dataclass(frozen=True, kw_only=True)
class Plan:
    backends: tuple[BackendPlan, ...]
    endpoints: tuple[EndpointDeclaration, ...]
    complaints: tuple[Complaint, ...]


def plan_of(app: App) -> Plan:
    """Inspects all declarations of an application, and imports its code."""
    declared = app._declared  # pyright: ignore[reportPrivateUsage] (the same package)
    complaints: list[Complaint] = []
    backends: list[BackendPlan] = []
    for tag, (definition, config) in declared.backends.items():
        plan = BackendPlan(tag=tag, code=definition.import_path or definition.name, config=config)
        try:
            has_route = any(
                one.path is not None and one.traffic.get(tag, 0) > 0
                for one in declared.endpoints.values()
            )
            plan = _inspected(plan, definition, has_route)
        except Complaint as complaint:
            complaints.append(complaint)
        backends.append(plan)
    for name, endpoint in declared.endpoints.items():
        complaints += _of_shadows(name, endpoint)
    return Plan(
        backends=tuple(backends),
        endpoints=tuple(declared.endpoints.values()),
        complaints=tuple(complaints),
    )


def _inspected(plan: BackendPlan, definition: Definition, has_route: bool) -> BackendPlan:
    """Completes a plan from the code; raises `Complaint` for the first mistake."""
    path, config = ("backends", plan.tag), plan.config
    if "python" in config.placed:
        return plan  # this interpreter may not be able to import the code
    function = _function_of(path, definition)
    with _complaining((*path, "code")):
        handler, batched = adapted(function, definition, fill=config.fill, streams=config.streams)
        if has_route and config.decode is None:
            _check_annotations(function)
            reader_for(handler.binding.signature)
    try:
        size = config.batch_options(batched)["max_batch_size"]
        gathers = not batched and not handler.threaded and forms_batches(definition.load())
        slots = config.slots(batched, gathers=gathers)
        oddity = config.oddity(batched)
        loaded_converters(config.decode, config.encode)
    except Exception as error:
        with _complaining((*path, *_option_of(config, str(error)))):
            raise
    takes = described(
        handler.binding.signature, size, batched=batched, fill=config.fill, at_once=slots
    )
    return replace(plan, takes=takes, oddity=oddity)


def _function_of(path: tuple[str, ...], definition: Definition) -> Callable[..., Any]:
    """Returns the function; for a class, its ``__call__`` as if bound to an instance."""
    with _complaining((*path, "code")):
        loaded = definition.load()
    if not inspect.isclass(loaded):
        return cast("Callable[..., Any]", loaded)
    with _complaining((*path, "init_args" if definition.init_args else "code")):
        try:
            signature = read_signature(loaded)
        except ValueError:  # some classes written in C have no signature
            signature = None
        if signature is not None:
            try:
                signature.bind(*definition.init_args, **definition.keywords_of(loaded))
            except TypeError as error:
                raise TypeError(
                    f"{loaded.__qualname__} can't be instantiated with "
                    f"init_args={list(definition.init_args)} and "
                    f"init_kwargs={dict(definition.init_kwargs)}: {error}"
                ) from None
    return cast("Callable[..., Any]", call_of(loaded))


def _option_of(config: BackendConfig, error: str) -> tuple[str, ...]:
    """Returns the option that an error names first, or whose value it quotes."""
    options = config.given()
    first = error.partition("=")[0]
    if first in options:
        return (first,)
    quoted = (one for one, value in options.items() if type(value) is str and repr(value) in error)
    return tuple(islice(quoted, 1))


def _check_annotations(function: Callable[..., Any]) -> None:
    for name, error in unreadable_annotations(function).items():
        raise TypeError(
            f"the annotation of {name!r} can't be read, so bodies of requests could not be "
            f"checked: {error}"
        )


def _of_shadows(name: str, endpoint: EndpointDeclaration) -> Iterator[Complaint]:
    for shadow in endpoint.shadows:
        if isinstance(shadow.compare, str):
            try:
                with _complaining(("endpoints", name, "shadows")):
                    compare = imported(shadow.compare)
                    if not callable(compare):
                        raise TypeError(f"{shadow.compare!r} is not a function, but {compare!r}")
            except Complaint as complaint:
                yield complaint


@contextmanager
def _complaining(path: tuple[str, ...]) -> Generator[None]:
    """Turns any error, including one of the user's code, into a `Complaint`."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise Complaint(path, " ".join(str(error).split())) from error
    except Exception as error:
        raise Complaint(path, f"importing it failed: {type(error).__name__}: {error}") from error
