"""The items that a handler takes, as its annotations say.

==========================================  =====================================================
the handler takes                           the item is
==========================================  =====================================================
``list[str]``, or no annotation             the prompt
``list[list[int]]``                         the tokens of the prompt
a dataclass, a pydantic model, a TypedDict  a record of the prompt, and of the request's parameters
                                            for which it has fields
several parameters                          the same, by their names
==========================================  =====================================================

The prompt is the field ``prompt``, ``text`` or ``input``. A field ``messages`` takes the messages
of a chat unchanged.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from inspect import Parameter, Signature
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias, get_args, get_origin

from pydantic import ValidationError
from typing_extensions import is_typeddict

from shoal.batching.handlers.annotations import bare, choices, record_fields
from shoal.batching.handlers.array_types import unmarked
from shoal.http.json.payload import fields_adapter
from shoal.http.json.validation import adapter_of, errors_of, validator_of
from shoal.http.openai.errors import index_in, refused

if TYPE_CHECKING:
    from pydantic_core import SchemaValidator

# A prompt, or an input of an embedding: a text, or its tokens.
Prompt: TypeAlias = "str | list[int]"
# The parameters of a request, by their names.
Params: TypeAlias = Mapping[str, Any]

# The names of a field for the prompt, in order of preference.
PROMPT_NAMES: Final = ("prompt", "text", "input")

LARGEST_TOKEN: Final = 2**31 - 1
_TEXT: Final = (str, Any, Parameter.empty)


class ItemMaker(ABC):
    """Makes the items of one handler of their parts; raises TypeError if it takes others."""

    # The names of a field for each part, in order of preference.
    parts: ClassVar[Sequence[Sequence[str]]]
    # Items that the handler takes without a check.
    unchecked: ClassVar[Collection[Any]] = ()
    # Whether the annotations are only those of a model.
    is_listed = True

    def __init__(self, signature: Signature) -> None:
        parameters = list(signature.parameters.values())
        self._parameters = parameters if len(parameters) > 1 else None
        self.annotation: Any = parameters[0].annotation if len(parameters) == 1 else None
        # The types of the fields; empty if an item is no record.
        self.fields: Mapping[str, Any]
        if self._parameters is None:
            self.fields = record_fields(self.annotation)
        else:
            self.fields = {one.name: one.annotation for one in self._parameters}
        # The field of each part; None if there is none.
        self.own = [next((n for n in names if n in self.fields), None) for names in self.parts]
        self.signature = signature
        self.check()
        self._validator: SchemaValidator | None = None  # if items need no check
        if self._parameters is not None:
            self._validator = validator_of(fields_adapter(self._parameters))
        elif self.annotation not in self.unchecked:
            self._validator = validator_of(adapter_of(self.annotation))

    @abstractmethod
    def check(self) -> None:
        """Raises TypeError if the handler takes no items of these parts."""

    def item(self, parts: Sequence[Any], params: Params, names: Sequence[str]) -> Any:
        """Returns the item of its parts; `names` are the client's names of them."""
        whole = parts[0] if len(parts) == 1 else parts
        if self._validator is None:
            return whole
        theirs = {None: names[-1], **dict(zip(self.own, names, strict=True))}
        if not self.fields:
            return self._made(whole, theirs)
        return self.record(dict(zip(map(str, self.own), parts, strict=True)), params, theirs)

    def record(
        self, values: Mapping[str, Any], params: Params, names: Mapping[str | None, str]
    ) -> Any:
        """Returns an item with values of its fields, and with those of a request's parameters."""
        given = {
            name: value
            for name in self.fields.keys() & params.keys()
            if (value := params[name]) is not None
        }
        if params.get("max_completion_tokens") is not None:
            names = {**names, "max_tokens": "max_completion_tokens"}
        return self._made({**given, **values}, names)

    def _made(self, values: Any, names: Mapping[str | None, str]) -> Any:
        """Returns an item; `names` has the client's names of fields, and at None of the whole."""
        assert self._validator is not None
        try:
            return self._validator.validate_python(values)
        except ValidationError as error:
            first = errors_of(error)[0]
            loc = first["loc"]
            field = str(loc[0]) if loc and self.fields else None
            where = ".".join([names.get(field, str(field)), *index_in(loc[1:] if field else loc)])
            raise refused(f"{where}: {first['msg']}", param=where) from None

    def limit(self, item: Any) -> int | None:
        """Returns the ``max_tokens`` of an item, which may be a default."""
        if "max_tokens" not in self.fields:
            return None
        limit = self._value_in(item, "max_tokens")
        return limit if type(limit) is int and limit > 0 else None

    def _value_in(self, item: Any, field: str) -> Any:
        if self._parameters is not None:
            return item[[one.name for one in self._parameters].index(field)]
        return item.get(field) if is_typeddict(self.annotation) else getattr(item, field)


class TextMaker(ItemMaker):
    """Makes items of prompts or messages."""

    parts = (PROMPT_NAMES,)
    unchecked = _TEXT

    def check(self) -> None:
        [prompt] = self.own
        # It takes the messages of a chat, without a template.
        self.takes_messages = "messages" in self.fields
        kinds = choices(unmarked(self.fields.get(prompt or "", self.annotation)))
        self.takes_tokens = any(map(_is_tokens, kinds))
        # A field for the prompt may be of any type: its validator decides.
        self.takes_text = not all(map(_is_tokens, kinds))
        self.takes_prompts = prompt is not None or (
            not self.fields and all(one in _TEXT or _is_tokens(one) for one in kinds)
        )
        if not self.takes_prompts and not self.takes_messages:
            text = "a str, or a field 'prompt' or 'messages'"
            raise TypeError(f"{self.signature} takes no text: {text}")

    def item_of_messages(
        self, messages: Sequence[Mapping[str, Any]], params: Params, param: str
    ) -> Any:
        return self.record({"messages": messages}, params, {None: param})


class PairMaker(ItemMaker):
    """Makes items of a query and a document."""

    parts = (("query", "text_1"), ("document", "text_2", "passage", "text"))

    def check(self) -> None:
        kind = bare(self.annotation)
        is_pair = get_origin(kind) is tuple and len(get_args(kind)) == 2
        if not is_pair and None in self.own:
            raise TypeError(f"{self.signature} takes no pairs of a query and a document")


class AudioMaker(ItemMaker):
    """Makes items of the bytes of a file."""

    parts = (("file", "audio"),)
    unchecked = (bytes,)

    def check(self) -> None:
        # Bytes may be of anything.
        self.is_listed = self.own != [None]
        if not self.is_listed and self.annotation is not bytes:
            file = "bytes, or a field 'file' or 'audio'"
            raise TypeError(f"{self.signature} takes no file: {file}")


def _is_tokens(kind: Any) -> bool:
    return get_origin(kind) in (list, Sequence) and [bare(one) for one in get_args(kind)] == [int]


def prompts_of(value: str | list[Any], param: str) -> Sequence[Prompt]:
    """Returns the prompts of a request: a text, texts, tokens, or several lists of tokens."""
    if isinstance(value, str):
        return (value,)
    kinds = set(map(type, value))
    if kinds == {int}:
        return (_checked(value, param),)
    if kinds == {list}:
        return [_checked(one, param) for one in value]
    if kinds != {str}:
        detail = "It must be a text, a list of texts, a list of tokens, or lists of tokens"
        raise refused(detail if value else "There must be at least one", param=param)
    return value


def _checked(tokens: list[Any], param: str) -> list[int]:
    is_right = set(map(type, tokens)) == {int} and min(tokens) >= 0 and max(tokens) <= LARGEST_TOKEN
    if not is_right:
        raise refused(f"A token is an integer from 0 to {LARGEST_TOKEN}", param=param)
    return tokens
