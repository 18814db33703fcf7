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

from collections.abc import Collection, Iterable, Mapping, Sequence
from inspect import Parameter, Signature
from typing import TYPE_CHECKING, Any, Final, TypeAlias, get_args, get_origin

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


class ItemMaker:
    """Makes the items of one handler of their parts; subclasses say which parts these are."""

    # Items that the handler takes without a check.
    unchecked: Collection[Any] = ()
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
        self.signature = signature

    def validator(self) -> SchemaValidator | None:
        """Returns None if items need no check; raises TypeError if they can't be checked."""
        if self._parameters is not None:
            return validator_of(fields_adapter(self._parameters))
        if self.annotation in self.unchecked:
            return None
        return validator_of(adapter_of(self.annotation))

    def named(self, names: Iterable[str]) -> str | None:
        return next((name for name in names if name in self.fields), None)

    def with_params(self, values: dict[str, Any], params: Params) -> dict[str, Any]:
        """Returns the values of an item's fields, with those of a request's parameters."""
        given = {
            name: value
            for name in self.fields.keys() & params.keys()
            if (value := params[name]) is not None
        }
        return {**given, **values}

    def made(self, validator: SchemaValidator, values: Any, names: Mapping[str | None, str]) -> Any:
        """Returns an item; `names` has the client's names of fields, and at None of the whole."""
        try:
            made = validator.validate_python(values)
        except ValidationError as error:
            first = errors_of(error)[0]
            loc = first["loc"]
            field = str(loc[0]) if loc and self.fields else None
            where = ".".join([names.get(field, str(field)), *index_in(loc[1:] if field else loc)])
            raise refused(f"{where}: {first['msg']}", param=where) from None
        if self._parameters is None:
            return made
        return tuple(made.get(p.name, p.default) for p in self._parameters)

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
    """Makes items of prompts or messages; raises TypeError if the handler takes no text."""

    unchecked = _TEXT

    def __init__(self, signature: Signature) -> None:
        super().__init__(signature)
        self._prompt = self.named(PROMPT_NAMES)
        # It takes the messages of a chat, without a template.
        self.takes_messages = "messages" in self.fields
        kinds = choices(unmarked(self.fields.get(self._prompt or "", self.annotation)))
        self.takes_tokens = any(map(_is_tokens, kinds))
        # A field for the prompt may be of any type: its validator decides.
        self.takes_text = not all(map(_is_tokens, kinds))
        is_input = not self.fields and all(one in _TEXT or _is_tokens(one) for one in kinds)
        if not is_input and self._prompt is None and not self.takes_messages:
            raise TypeError(f"{signature} takes no text: a str, or a field 'prompt' or 'messages'")
        self._validator = self.validator()

    def item(self, prompt: Prompt | None, params: Params, param: str) -> Any:
        """Returns the item; `prompt` is None if it takes messages; clients call it `param`."""
        if self._validator is None:
            return prompt
        names: dict[str | None, str] = {None: param, self._prompt: param}
        if not self.fields:
            return self.made(self._validator, prompt, names)
        if params.get("max_completion_tokens") is not None:
            names["max_tokens"] = "max_completion_tokens"
        if prompt is None:
            values = {"messages": params["messages"]}
        elif self._prompt is None:
            raise refused("The model takes messages only: use /v1/chat/completions")
        else:
            values = {self._prompt: prompt}
        return self.made(self._validator, self.with_params(values, params), names)


class PairMaker(ItemMaker):
    """Makes items of a query and a document; raises TypeError if the handler takes no pairs."""

    def __init__(self, signature: Signature) -> None:
        super().__init__(signature)
        self._query = self.named(("query", "text_1"))
        self._document = self.named(("document", "text_2", "passage", "text"))
        kind = bare(self.annotation)
        is_pair = get_origin(kind) is tuple and len(get_args(kind)) == 2
        if not is_pair and (self._query is None or self._document is None):
            raise TypeError(f"{signature} takes no pairs of a query and a document")
        self._validator = self.validator()

    def item(self, pair: tuple[str, str], params: Params, names: tuple[str, str]) -> Any:
        """Returns the item of a pair; `names` are the client's for its members."""
        assert self._validator is not None
        query, document = names
        if not self.fields:
            return self.made(self._validator, pair, {None: document})
        values = self.with_params({str(self._query): pair[0], str(self._document): pair[1]}, params)
        return self.made(
            self._validator, values, {None: document, self._query: query, self._document: document}
        )


class AudioMaker(ItemMaker):
    """Makes items of the bytes of a file; raises TypeError if the handler takes none."""

    unchecked = (bytes,)

    def __init__(self, signature: Signature) -> None:
        super().__init__(signature)
        self._file = self.named(("file", "audio"))
        if self._file is None and self.annotation is not bytes:
            raise TypeError(f"{signature} takes no file: bytes, or a field 'file' or 'audio'")
        self._validator = self.validator()
        # Bytes may be of anything.
        self.is_listed = self._file is not None

    def item(self, content: bytes, params: Params) -> Any:
        if self._validator is None or self._file is None:
            return content
        values = self.with_params({self._file: content}, params)
        return self.made(self._validator, values, {None: "file", self._file: "file"})


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
