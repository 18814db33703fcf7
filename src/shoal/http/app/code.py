"""The code of declared endpoints: checks it, and makes a definition and a config of it.

Everything that can be checked without running user code is checked at the line that declares it.
The application creates the declared backends and endpoints when it opens its controller.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from shoal.batching.batcher import Batcher
from shoal.batching.calls.call import StreamCall
from shoal.batching.decorator.batched import Decorated
from shoal.batching.handlers.annotations import read_signature
from shoal.batching.handlers.binding import unreadable_annotations
from shoal.replicas.code.definition import Definition, handle_names
from shoal.replicas.code.instance import adapted, call_of
from shoal.serving.backend_config import BackendConfig

if TYPE_CHECKING:
    from collections.abc import Mapping
    from inspect import Signature

# The options that limit concurrent calls.
_AT_ONCE: Final = ("max_ongoing_requests", "max_concurrent_queries", "max_concurrent_batches")


@dataclass(frozen=True, kw_only=True)
class Declared:
    name: str
    definition: Definition
    config: BackendConfig
    signature: Signature
    streams: bool
    # The batched function that the program can call as well.
    face: Decorated | None = None


def declared_on(target: Any, options: Mapping[str, Any], batch: bool | None = None) -> Declared:
    """Checks what ``@app.endpoint`` decorates; without `batch` its annotations decide on lists."""
    if batch is False and (isinstance(target, Decorated) or "fill" in options):
        raise TypeError(f"{target!r} takes batches, so declare it by @app.endpoint without batch")
    if isinstance(target, Decorated):
        return _of_batched_function(target, options)
    config = BackendConfig.of(options)
    if inspect.isclass(target):
        _check_class(target)
    elif not callable(target):
        raise TypeError(
            f"an endpoint's code must be a function of a list, or of one item, not {target!r}"
        )
    call: Any = call_of(target) if inspect.isclass(target) else target
    check_annotations(getattr(call, "func", call))
    definition = Definition(target, accept_batch=batch)
    handler, batched = adapted(call, definition, fill=config.fill, streams=config.streams)
    if batch is False and not any(name in options for name in _AT_ONCE):
        config = config.changed({"max_ongoing_requests": 40 if handler.threaded else 100})
    # This batcher is never opened: its constructor checks the options together with the handler.
    declared: Batcher[Any] = Batcher(handler, **config.batch_options(batched))
    return Declared(
        name=target.__name__ if inspect.isclass(target) else _last_part(declared.name),
        definition=definition,
        config=config,
        signature=declared.signature,
        streams=declared.streams,
    )


def _of_batched_function(face: Decorated, options: Mapping[str, Any]) -> Declared:
    if "fill" in options:
        raise TypeError(
            f"fill and streams belong to the handler: write them where {face!r} is decorated"
        )
    check_annotations(getattr(face, "__wrapped__", None))
    handler, signature, own_options = face.parts()
    config = BackendConfig.of(own_options).changed(options)
    if config.placement not in ("task", "thread"):
        raise TypeError(
            f"{face!r} has one batcher, in this process, so placement={config.placement!r} is "
            "impossible; serve the function without its decorator"
        )
    takes_lists = True if config.fill == "closed" else None  # None for open batches
    return Declared(
        name=_last_part(getattr(face, "__qualname__", "batched")),
        definition=Definition(handler, accept_batch=takes_lists, signature=signature),
        config=config,
        signature=face.__signature__,
        streams=isinstance(face, StreamCall),
        face=face,
    )


def _check_class(cls: type) -> None:
    Definition(cls).checked()
    try:
        read_signature(cls).bind(**handle_names(cls))
    except TypeError as error:
        raise TypeError(
            f"the class {cls.__qualname__} is instantiated without arguments: {error}; pass a "
            "function that was made from an instance, or give the parameters defaults"
        ) from None


def check_annotations(handler: Any) -> None:
    """Raises TypeError for an annotation that names nothing at run time."""
    # The batcher would ignore the annotation, and accept any body.
    for name, error in unreadable_annotations(handler).items():
        raise TypeError(
            f"the annotation of {name!r} of {handler!r} can't be read, so bodies could not be "
            f"checked: {error}; import or define the type at module level, outside of functions "
            "and of `if TYPE_CHECKING`"
        ) from error


def _last_part(qualified_name: str) -> str:
    return qualified_name.rpartition(".")[2]
