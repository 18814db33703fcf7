"""``/v1/embeddings``: each input is a call of its own, whose result is a vector."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal, NotRequired

from pydantic import Field, with_config
from typing_extensions import override

from shoal.http.openai.bodies import OPEN, Body
from shoal.http.openai.errors import refused
from shoal.http.openai.inputs import TextsRoute
from shoal.http.openai.vectors import in_base64, in_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shoal.http.openai.inputs import Asked
    from shoal.http.openai.items import Prompt, TextMaker
    from shoal.http.openai.models import OpenAIModel


@with_config(OPEN)
class _Embeddings(Body):
    input: str | list[Any]
    encoding_format: NotRequired[Literal["float", "base64"] | None]
    dimensions: NotRequired[Annotated[int, Field(ge=1)] | None]


class EmbeddingsRoute(TextsRoute):
    body: ClassVar[type[Mapping[str, Any]]] = _Embeddings
    gives: ClassVar[str] = "embeddings"

    @override
    def item(
        self, model: OpenAIModel, maker: TextMaker, one: Prompt, params: Mapping[str, Any]
    ) -> Any:
        if params.get("dimensions") is not None and "dimensions" not in maker.fields:
            detail = "The model does not take dimensions: its items have no field 'dimensions'"
            raise refused(detail, param="dimensions", code="unsupported")
        return super().item(model, maker, one, params)

    @override
    def written(self, asked: Asked, results: Sequence[Any]) -> bytes:
        written = in_base64 if asked.params.get("encoding_format") == "base64" else in_json
        data = b",".join([_ONE % (nth, written(result)) for nth, result in enumerate(results)])
        tokens = sum(map(asked.model.tokens_in, asked.params["input"]))
        return _ANSWER % (data, asked.model.name_json, tokens, tokens)


_ONE: Final = b'{"object":"embedding","index":%d,"embedding":%b}'
_ANSWER: Final = (
    b'{"object":"list","data":[%b],"model":%b,"usage":{"prompt_tokens":%d,"total_tokens":%d}}'
)
