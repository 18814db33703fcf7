"""A model object as a handler: ``run`` defines the parameters of a call, ``run_batch`` runs them.

This is caikit's contract between a model and its batcher. A call takes the keywords of ``run``. The
defaults of ``run`` are filled in before requests are batched, so requests with different keywords
share a batch, and ``run_batch`` always gets one list for each parameter of ``run``.

caikit instead looks at the keywords of the requests in each batch, and fills in defaults and finds
missing arguments then. With that, the arguments of ``run_batch`` depend on the other requests of
the batch, and a missing argument is not noticed if all requests of the batch lack it.
"""

from __future__ import annotations

import inspect
from functools import partial
from inspect import Parameter, Signature
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar

from shoal.batching.handlers.annotations import read_signature

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.batching.calls.result_types import Answer

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)


class BatchableModel(Protocol[P, R_co]):
    """What `Batcher.over` takes: a method for one call, and one for a batch."""

    @property
    def run(self) -> Callable[P, Any]:
        """The method whose parameters a call has; it is never called."""
        ...

    @property
    def run_batch(self) -> Callable[..., Answer[R_co]]:
        """Takes a list for each parameter of ``run`` and returns one result for each call."""
        ...


class ModelHandler(partial[Any]):
    """A model's ``run_batch``, which takes the parameters of ``run`` as keywords."""

    __signature__: Signature


def model_handler(model: Any) -> ModelHandler:
    """Raises a `TypeError` if a model lacks a method, or their parameters don't match."""
    if inspect.isclass(model):
        raise TypeError(
            f"Batcher.over() takes a model object, not the class {model!r}; create an instance"
        )
    run, run_batch = _method(model, "run"), _method(model, "run_batch")
    names = _names(run)
    if inspect.isgeneratorfunction(run_batch) or inspect.isasyncgenfunction(run_batch):
        raise TypeError(
            f"{_name(run_batch)}() must give back a list, but is a generator function; "
            "for streams use shoal.Batcher(model.run_batch, signature=model.run)"
        )
    signature = _signature(run_batch)
    try:
        signature.bind(**dict.fromkeys(names))
    except TypeError as error:
        raise TypeError(
            f"{_name(run_batch)}() must take each parameter of run() by its name, as a list, and "
            f"require no others, but run() has ({', '.join(names)}) and it has {signature}: {error}"
        ) from None
    handler = ModelHandler(run_batch)
    handler.__signature__ = Signature([Parameter(n, Parameter.KEYWORD_ONLY) for n in names])
    return handler


def _method(model: object, name: str) -> Callable[..., Any]:
    method: Callable[..., Any] | None = getattr(model, name, None)
    if not callable(method):
        raise TypeError(
            "Batcher.over() takes an object with run(), for one call, and run_batch(), which does "
            f"the same for lists, but {type(model).__qualname__} has no {name}()"
        )
    return method


def _names(run: Callable[..., Any]) -> list[str]:
    signature = _signature(run)
    parameters = signature.parameters.values()
    if any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters):
        raise TypeError(
            f"{_name(run)}() must name its parameters, but takes {signature}: each becomes a list "
            "for run_batch(), and its default is used where a call omits it; a wrapper declares "
            "them with functools.wraps(inner.run)"
        )
    if not parameters:
        raise TypeError(f"{_name(run)}() takes no argument, so there is nothing to batch")
    return list(signature.parameters)


def _signature(method: Callable[..., Any]) -> Signature:
    try:
        return read_signature(method)
    except ValueError:
        raise TypeError(f"{_name(method)}() has no readable signature") from None


def _name(method: Callable[..., Any]) -> str:
    return getattr(method, "__qualname__", None) or repr(method)
