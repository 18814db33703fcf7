"""Makes the item for a model from the values of a request.

==========================================  =====================================================
the handler takes                           the item is
==========================================  =====================================================
``list[str]``, or no annotation             the prompt
a dataclass, a pydantic model, a TypedDict  a record of the prompt, and of the request's parameters
                                            for which it has fields
several parameters                          the same, by their names
==========================================  =====================================================

The prompt is the field ``prompt``, ``text`` or ``input``. A field ``messages`` takes the messages
of a chat unchanged.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from inspect import Parameter
from typing import TYPE_CHECKING, Annotated, Any, Final, get_args, get_origin

from pydantic import BaseModel, ValidationError
from typing_extensions import is_typeddict

from shoal.batching.handlers.annotations import field_types
from shoal.http.openai.errors import refused
from shoal.http.requests.json_type import adapter_of, as_written, finite_validator
from shoal.http.requests.payload import fields_adapter

if TYPE_CHECKING:
    from collections.abc import Mapping
    from inspect import Signature

PROMPT_NAMES: Final = ("prompt", "text", "input")
"""The names of a field for the prompt, the first one first."""

_TEXT: Final = (str, Any, Parameter.empty)


class ItemMaker:
    """Makes the items of one handler; raises TypeError if that takes no text."""

    def __init__(self, signature: Signature) -> None:
        parameters = list(signature.parameters.values())
        self._parameters = parameters if len(parameters) > 1 else None
        annotation: Any = parameters[0].annotation if len(parameters) == 1 else None
        self._parameter_type = annotation
        # An item is the prompt itself.
        self.is_plain = annotation in _TEXT
        self.fields: frozenset[str] = frozenset()
        self._prompt: str | None = None
        # It takes the messages of a chat, without a template.
        self.takes_messages = False
        if self.is_plain:
            return
        if get_origin(annotation) is Annotated and get_args(annotation)[0] is str:
            self._validator = finite_validator(adapter_of(annotation))
            return
        if self._parameters is None:
            self.fields = _fields_of(annotation)
        else:
            self.fields = frozenset(one.name for one in self._parameters)
        self._prompt = next((name for name in PROMPT_NAMES if name in self.fields), None)
        self.takes_messages = "messages" in self.fields
        if self._prompt is None and not self.takes_messages:
            raise TypeError(f"{signature} takes no text: a str, or a field 'prompt' or 'messages'")
        adapter = adapter_of(annotation) if self._parameters is None else fields_adapter(parameters)
        self._validator = finite_validator(adapter)

    def item(self, prompt: str | None, given: Mapping[str, Any]) -> Any:
        """Returns a tuple for several parameters; `prompt` is None if the item takes messages."""
        if self.is_plain:
            return prompt
        values: dict[str, Any] = {}
        try:
            if not self.fields:
                return self._validator.validate_python(prompt)
            values = {
                name: value
                for name in self.fields.intersection(given)
                if (value := given[name]) is not None and name != "messages"
            }
            messages = given.get("messages") if self.takes_messages else None
            if prompt is None or messages is not None:
                values["messages"] = messages
            elif self._prompt is None:
                raise refused("The model takes messages only: use /v1/chat/completions")
            else:
                values[self._prompt] = prompt
            made = self._validator.validate_python(values)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False, include_context=False)[0]
            loc = as_written(first["loc"], values if self.fields else prompt, first["type"])
            where = self._name_of(loc[0] if loc else None, given)
            where = ".".join([where, *(str(step) for step in loc[1:2])])
            raise refused(f"{where}: {first['msg']}", param=where) from None
        if self._parameters is None:
            return made
        return tuple(made.get(p.name, p.default) for p in self._parameters)

    def _name_of(self, field: int | str | None, given: Mapping[str, Any]) -> str:
        """Returns the name of the client's parameter for a field."""
        if field is None or field == self._prompt:
            return next((name for name in ("messages", "input") if name in given), "prompt")
        if field == "max_tokens" and given.get("max_completion_tokens") is not None:
            return "max_completion_tokens"
        return str(field)

    def limit(self, item: Any) -> int | None:
        """Returns the ``max_tokens`` of an item, which may be a default."""
        if "max_tokens" not in self.fields:
            return None
        limit: Any
        if self._parameters is not None:
            limit = item[[one.name for one in self._parameters].index("max_tokens")]
        elif is_typeddict(self._parameter_type):
            limit = item.get("max_tokens")
        else:
            limit = item.max_tokens
        return limit if type(limit) is int and limit > 0 else None


def _fields_of(annotation: Any) -> frozenset[str]:
    kind = get_origin(annotation) or annotation
    if is_typeddict(kind):
        return frozenset(field_types(kind))
    if not isinstance(kind, type):
        return frozenset()
    if is_dataclass(kind):
        return frozenset(one.name for one in fields(kind) if one.init)
    return frozenset(kind.model_fields) if issubclass(kind, BaseModel) else frozenset()
