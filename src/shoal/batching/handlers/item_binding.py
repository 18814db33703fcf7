"""Binding where no function of lists is at hand: from the signature of the call of one item."""

from __future__ import annotations

from inspect import Parameter
from typing import TYPE_CHECKING, Any

from shoal.batching.handlers.binding import Binding

if TYPE_CHECKING:
    from inspect import Signature


class ItemBinding(Binding):
    """Binds calls by a signature, and hands the items on as they are, in one list.

    Raises:
        TypeError: The signature takes any number of arguments, so that an item would have no form.
    """

    def __init__(self, signature: Signature) -> None:
        parameters = list(signature.parameters.values())
        for parameter in parameters:
            if parameter.kind in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD):
                raise TypeError(
                    f"the parameters of a backend must be named, but it takes {signature}"
                )
        self.names = [parameter.name for parameter in parameters]
        self._keyword_only = [p.kind is Parameter.KEYWORD_ONLY for p in parameters]
        self.single = len(parameters) == 1
        self.takes_bare = self.single and not self._keyword_only[0]
        self.signature = signature

    def columns(self, items: list[Any]) -> tuple[list[Any], dict[str, Any]]:
        return [items], {}


class OneItemBinding(ItemBinding):
    """Hands the only item of a batch to a function of one item."""

    def columns(self, items: list[Any]) -> tuple[list[Any], dict[str, Any]]:
        [item] = items
        values = [item] if self.single else item
        positional: list[Any] = []
        keywords: dict[str, Any] = {}
        for name, keyword_only, value in zip(self.names, self._keyword_only, values, strict=True):
            if keyword_only:
                keywords[name] = value
            else:
                positional.append(value)
        return positional, keywords
