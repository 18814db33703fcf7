"""The definition of a backend's code: a function or a class, as an object or as an import path.

`accept_batch` marks whether code takes lists, where its annotations do not say so.

An import path is loaded where the replica runs. The code of a process replica need not be imported
here, nor be importable by this interpreter.

Shoal fills in the parameters that are annotated with a class marked by `makes_handles`: they get
handles of endpoints. The endpoint has the parameter's name, or another one: ``Annotated[Handle,
"old"]``. Callers don't pass these parameters.

A handle is made where the code runs, so the code can be an import path as well. It is filled in as
with `functools.partial`, so functions that read the code's parameters leave it out.
"""

from __future__ import annotations

import importlib
import inspect
import logging
import os
import sys
import typing
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar, overload

from shoal.batching.handlers.annotations import read_signature
from shoal.batching.handlers.binding import MARK, signature_of_call
from shoal.core.options.option import named_values
from shoal.errors import NotAllowed
from shoal.failures.held import held

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping


C = TypeVar("C", bound="Callable[..., Any]")
Cls = TypeVar("Cls", bound=type)

_MAKER: Final = "__shoal_given__"


class OwnPath(str):
    """An import path that may name only objects that its module's own package defines."""

    # It is for callers that may run a module's code, but not everything that the module imports:
    # ``from os import system`` in an allowed module must not make ``system`` available.

    __slots__ = ()


def qualified_name(function: Any) -> str:
    name = getattr(function, "__qualname__", None)
    return name or type(function).__qualname__


@dataclass(frozen=True)
class Definition:
    """User code, and the init arguments of a class.

    Attributes:
        target: A function, a class, another callable object, or an import path
            ``"package.module:Name"``.
        init_args: Positional arguments for a class; a function takes none.
        init_kwargs: Keyword arguments for a class.
        accept_batch: Whether it takes lists; None to use its mark or its annotations.
        signature: A function of one item with the signature of calls; None for the code's own.
        refusal: Why it must not be loaded; None if it is allowed.
    """

    target: Any
    init_args: tuple[Any, ...] = ()
    init_kwargs: tuple[tuple[str, Any], ...] = ()
    accept_batch: bool | None = None
    signature: Any = None
    refusal: str | None = None

    @property
    def import_path(self) -> str | None:
        """The import path; None if the code was given as an object."""
        return self.target if isinstance(self.target, str) else None

    @property
    def name(self) -> str:
        """The name of the code for messages."""
        if isinstance(self.target, str):
            return self.target.rpartition(":")[2]
        return qualified_name(self.target)

    def instantiated(self, cls: Any) -> Any:
        """Instantiates a class with its init arguments and the handles of its parameters."""
        with keeping_loggers_on():
            return cls(*self.init_args, **self.keywords_of(cls))

    def keywords_of(self, cls: Any) -> dict[str, Any]:
        """Returns the keyword arguments of a class: its own, and the handles it asks for.

        Raises:
            TypeError: The annotation of a handle is wrong.
        """
        handles = handle_arguments(cls)
        if handles and self.init_args:
            names = list(read_signature(cls).parameters)[: len(self.init_args)]
            handles = {name: value for name, value in handles.items() if name not in names}
        return {**handles, **dict(self.init_kwargs)}

    def check_init(self, cls: Any) -> None:
        """Checks that a class takes its init arguments, without instantiating it.

        Raises:
            TypeError: It does not take them, or the annotation of a handle is wrong.
        """
        try:
            self.bind_init(cls)
        except TypeError as error:
            raise TypeError(
                f"{cls.__qualname__} can't be instantiated with init_args={list(self.init_args)} "
                f"and init_kwargs={dict(self.init_kwargs)}: {error}"
            ) from None

    def bind_init(self, cls: Any) -> None:
        """Checks the init arguments; the error says only which of them does not fit the class."""
        try:
            signature = read_signature(cls)
        except ValueError:  # some classes written in C have no signature
            return
        signature.bind(*self.init_args, **self.keywords_of(cls))

    def checked(self) -> Definition:
        """Checks the definition without importing anything, and returns it.

        Raises:
            TypeError: It is not callable, or a function has init args.
            ValueError: It is text, but not an import path.
        """
        if isinstance(self.target, str):
            split_import_path(self.target)
        else:
            self.check_loaded(self.target)
        return self

    def load(self) -> Any:
        """Returns the function, class or object; imports it if necessary.

        Raises:
            ValueError: No object has that import path.
            TypeError: The target is not callable, or is a function that has init args.
            NotAllowed: It must not be loaded.
            Exception: What the module raised when it was imported.
        """
        self.check_allowed()
        if not isinstance(self.target, str):
            return self.target
        loaded = imported(self.target)
        self.check_loaded(loaded)
        return loaded

    def check_allowed(self) -> None:
        """Raises an error if the code must not be loaded.

        Raises:
            NotAllowed: It must not be loaded.
        """
        if self.refusal is not None:
            raise NotAllowed(self.refusal)

    def check_loaded(self, loaded: Any) -> None:
        """Checks the function, class or object.

        Raises:
            TypeError: It is not callable, or is a function that has init args.
        """
        if inspect.isclass(loaded):
            if "__call__" not in dir(loaded):
                raise TypeError(
                    f"the class {loaded.__qualname__} has no __call__, which is the "
                    f"handler; write\n    class {loaded.__name__}:\n"
                    "        def __call__(self, items: list[T]) -> list[R]: ..."
                )
            return
        if not callable(loaded):
            raise TypeError(
                f"a backend is a function, a class with __call__, or an import path such as "
                f"'package.module:Name', not {loaded!r}"
            )
        if self.init_args or self.init_kwargs:
            raise TypeError(
                f"init args are for classes, and {self.name} is not a class: "
                f"{(*self.init_args, *self.init_kwargs)!r}"
            )


@overload
def accept_batch(code: C, /) -> C: ...
@overload
def accept_batch(code: bool, /) -> Callable[[C], C]: ...
def accept_batch(code: Any, /) -> Any:
    """Marks a function, a method, or a class as code that takes lists, and returns it.

    It is needed only without annotations: ``def f(items: list[T]) -> list[R]`` is known to take
    lists. ``@accept_batch(False)`` marks code that takes one item at a time, where that item is a
    list.

    Args:
        code: A function, a method or a class; of a class its ``__call__`` is marked.

    Raises:
        TypeError: It is something else.
    """
    if isinstance(code, bool):
        return partial(_marked, accepts=code)
    return _marked(code, accepts=True)


def _marked(code: C, *, accepts: bool) -> C:
    callable_: Any = code
    marked: Any = callable_.__call__ if isinstance(callable_, type) else callable_
    try:
        setattr(marked, MARK, accepts)
    except AttributeError:
        raise TypeError(
            f"accept_batch() marks a function, a method or a class, not {code!r}"
        ) from None
    return code


def named_arguments(init_kwargs: Any) -> tuple[tuple[str, Any], ...]:
    """Checks the keyword arguments of a class, and returns them as pairs."""
    if init_kwargs is None:
        return ()
    return tuple(named_values("init_kwargs", init_kwargs, "path").items())


def split_import_path(path: str) -> tuple[str, str]:
    """Splits ``"package.module:Name"``; also the old form ``"package.module.Name"``."""
    module, colon, name = path.partition(":")
    if not colon:
        module, _, name = path.rpartition(".")
    parts = [*module.split("."), *name.split(".")]
    if not all(part.isidentifier() for part in parts):
        raise ValueError(f"{path!r} is not an import path; write it like 'package.module:Name'")
    return module, name


def imported(path: str) -> Any:
    """Imports an object; raises nothing but `Exception`s, even for a module's `SystemExit`."""
    return held(imported_unheld, f"the module of {str(path)!r}")(path)


def imported_unheld(path: str) -> Any:
    """Imports an object; also raises a module's `SystemExit` and the like."""
    module_name, name = split_import_path(path)
    try:
        with keeping_loggers_on():
            target: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module exists; one that it imports does not
        raise ValueError(
            f"{path!r}: there is no module {error.name!r} in {_searched_directories()} or installed"
        ) from error
    for part in name.split("."):
        try:
            target = getattr(target, part)
        except AttributeError:
            raise ValueError(f"{path!r}: {module_name} has no attribute {name!r}") from None
    if isinstance(path, OwnPath):
        code = target
        while isinstance(code, partial):  # belongs to its function's module
            code = code.func
        origin = getattr(code, "__module__", None)
        package = module_name.partition(".")[0]
        if not isinstance(origin, str) or origin.partition(".")[0] != package:
            raise NotAllowed(
                f"{str(path)!r} is defined in {origin or 'no module'}, not in {package}: "
                "only a module's own functions and classes are allowed"
            )
    return target


def _searched_directories() -> str:
    installed = (sys.prefix, sys.base_prefix)
    searched = [one or os.getcwd() for one in sys.path if not one.startswith(installed)]
    return ", ".join(one for one in dict.fromkeys(searched) if os.path.isdir(one)) or os.getcwd()


def makes_handles(make: Callable[[str], Any]) -> Callable[[Cls], Cls]:
    """Marks a class as the annotation of handles; `make` makes one, where the code runs."""

    def mark(cls: Cls) -> Cls:
        setattr(cls, _MAKER, make)
        return cls

    return mark


def handle_names(code: Any) -> dict[str, str]:
    """Maps the handle parameters of a function, or of a class's constructor, to endpoints."""
    return {name: endpoint for name, (endpoint, _) in _handle_parameters(code).items()}


def handle_arguments(code: Any) -> Mapping[str, Any]:
    """Makes the handles for the parameters of a function, or of a class's constructor."""
    return {name: make(endpoint) for name, (endpoint, make) in _handle_parameters(code).items()}


def with_handles(function: Callable[..., Any]) -> Callable[..., Any]:
    arguments = handle_arguments(function)
    return partial(function, **arguments) if arguments else function


def _handle_parameters(code: Any) -> dict[str, tuple[str, Callable[[str], Any]]]:
    is_class = inspect.isclass(code)
    function: Any = partial(code.__init__, None) if is_class else code
    try:
        signature = signature_of_call(function)
    except (TypeError, ValueError):  # written in C
        return {}
    makers: dict[str, tuple[str, Callable[[str], Any]]] = {}
    for parameter in signature.parameters.values():
        annotation: Any = parameter.annotation
        names: tuple[Any, ...] = getattr(annotation, "__metadata__", ())
        kind = typing.get_args(annotation)[0] if names else annotation
        make = _maker(kind)
        if make is None:
            if not is_class:  # init arguments may contain handles in any form
                _refuse_inner(code, parameter)
            continue
        if len(names) > 1 or not all(isinstance(name, str) for name in names):
            raise TypeError(
                f"the annotation of {parameter.name!r} of {code!r} must give one name, as in "
                f'Annotated[{kind.__name__}, "name"], not {names!r}'
            )
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise TypeError(f"{parameter.name!r} of {code!r} can't be given by its name")
        makers[parameter.name] = (names or (parameter.name,))[0], make
    return makers


def _maker(annotation: Any) -> Callable[[str], Any] | None:
    return vars(annotation).get(_MAKER) if inspect.isclass(annotation) else None


def _refuse_inner(code: Any, parameter: inspect.Parameter) -> None:
    """Refuses an annotation with a marked class inside it, such as ``Handle | None``."""
    inner = [*typing.get_args(parameter.annotation)]
    while inner:
        one = inner.pop()
        if _maker(one) is not None:
            raise TypeError(
                f"the annotation of {parameter.name!r} of {code!r} must be {one.__name__} itself, "
                f'or Annotated[{one.__name__}, "name"], not {parameter.annotation!r}'
            )
        inner += typing.get_args(one)


@contextmanager
def keeping_loggers_on() -> Generator[None]:
    # `logging.config.dictConfig` and ``fileConfig`` disable each existing logger that they do not
    # name, by default. A module of the user does not mean Shoal's.
    on = [logger for logger in _own_loggers() if not logger.disabled]
    try:
        yield
    finally:
        for logger in on:
            logger.disabled = False


def _own_loggers() -> list[logging.Logger]:
    loggers = logging.getLogger().manager.loggerDict
    return [
        logger
        for name, logger in [*loggers.items()]
        if isinstance(logger, logging.Logger) and f"{name}.".startswith("shoal.")
    ]
