"""A block in which a context variable has a value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from contextvars import ContextVar, Token

T = TypeVar("T")


class setting(Generic[T]):  # noqa: N801 - used as a function
    """Sets a context variable in a block, and resets it after that."""

    __slots__ = ("_token", "_value", "_variable")

    def __init__(self, variable: ContextVar[T], value: T) -> None:
        self._variable: ContextVar[Any] = variable
        self._value = value

    def __enter__(self) -> None:
        self._token: Token[Any] = self._variable.set(self._value)

    def __exit__(self, *_: object) -> None:
        self._variable.reset(self._token)
