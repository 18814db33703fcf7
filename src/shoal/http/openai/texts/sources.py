"""What a text is made of: prompts, the messages of a chat, or a recording of speech."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Final

from shoal.http.openai.errors import refused
from shoal.http.openai.items import AudioMaker, ItemMaker, Prompt, TextMaker

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from shoal.http.openai.models import OpenAIModel

# Of all messages of a chat.
MOST_PARTS: Final = 1024


class Source(ABC):
    make: ClassVar[type[ItemMaker]] = TextMaker
    # How many texts it is for.
    count = 1

    @abstractmethod
    def item(self, model: OpenAIModel, maker: Any, params: Mapping[str, Any], which: int) -> Any:
        """Returns the item for one of the texts; `maker` is one of `make`."""

    def fields(self, model: OpenAIModel, maker: ItemMaker) -> Collection[str]:
        return maker.fields

    def tokens(self, model: OpenAIModel) -> int:
        """Returns the number of tokens, once an item was made."""
        return 0


class Prompts(Source):
    def __init__(self, prompts: Sequence[Prompt]) -> None:
        self._prompts = prompts
        self.count = len(prompts)

    def item(
        self, model: OpenAIModel, maker: TextMaker, params: Mapping[str, Any], which: int
    ) -> Any:
        prompt = model.fitting(maker, self._prompts[which], "prompt")
        return maker.item(prompt, params, "prompt")

    def tokens(self, model: OpenAIModel) -> int:
        return sum(map(model.tokens_in, self._prompts))


class Chat(Source):
    """The messages of a chat; raises `Refused` if a part is malformed, or there are too many."""

    def __init__(
        self, messages: Sequence[dict[str, Any]], most: int, param: str = "messages"
    ) -> None:
        if (count := len(messages)) > most:
            detail = f"A chat has {most} messages at most, and there are {count}"
            raise refused(detail, param=param)
        self._messages = messages
        self._param = param  # the client's name of them
        self._prompt: str | None = None
        # Where a message has a part that is no text.
        self._other: str | None = None
        parts = 0
        for nth, message in enumerate(messages):
            content = message.get("content")
            if isinstance(content, str):
                continue
            place = f"messages.{nth}.content" if param == "messages" else param
            parts += len(content or ())
            if parts > MOST_PARTS:
                detail = f"The messages of a chat have {MOST_PARTS} parts at most"
                raise refused(detail, param=place)
            if _are_texts(content or (), place):
                message["content"] = _text_in(content)
            else:
                self._other = self._other or place

    def item(
        self, model: OpenAIModel, maker: TextMaker, params: Mapping[str, Any], which: int
    ) -> Any:
        if maker.takes_messages:
            return maker.item(None, {**params, "messages": self._messages}, self._param)
        if self._other is not None:
            detail = "The model takes texts only: its items have no field 'messages'"
            raise refused(detail, param=self._other, code="unsupported")
        if self._prompt is None:
            self._prompt = model.prompt(self._messages, params, self._param)
        return maker.item(model.fitting(maker, self._prompt, self._param), params, self._param)

    def fields(self, model: OpenAIModel, maker: ItemMaker) -> Collection[str]:
        if "messages" in maker.fields:
            return maker.fields
        return {*maker.fields, *model.template_fields}

    def tokens(self, model: OpenAIModel) -> int:
        if self._prompt is not None:
            return model.tokens_in(self._prompt)
        return sum([model.tokens_in(_text_in(one["content"])) for one in self._messages])


class Audio(Source):
    make: ClassVar[type[ItemMaker]] = AudioMaker

    def __init__(self, content: bytes) -> None:
        self._content = content

    def item(
        self, model: OpenAIModel, maker: AudioMaker, params: Mapping[str, Any], which: int
    ) -> Any:
        return maker.item(self._content, params)


def _are_texts(parts: Sequence[Mapping[str, Any]], param: str) -> bool:
    """Returns whether all parts of a message are texts; others only need a type."""
    are_texts = True
    for part in parts:
        kind = part.get("type")
        if not isinstance(kind, str) or (kind == "text" and not isinstance(part.get("text"), str)):
            detail = "A part of a message has a type, and one of the type text has a text"
            raise refused(detail, param=param)
        are_texts = are_texts and kind == "text"
    return are_texts


def _text_in(content: str | Sequence[Mapping[str, Any]] | None) -> str:
    if isinstance(content, str):
        return content
    return "".join([part["text"] for part in content or () if part["type"] == "text"])
