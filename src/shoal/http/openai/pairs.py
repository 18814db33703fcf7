"""``/v1/rerank`` and ``/v1/score``: each pair of texts is a call, whose result is a number.

The former has Cohere's and Jina's form, the latter vLLM's.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NotRequired

from pydantic import Field, with_config

from shoal.http.openai.bodies import OPEN, Body
from shoal.http.openai.errors import refused
from shoal.http.openai.inputs import Asked, InputsRoute, usage
from shoal.http.openai.items import ItemMaker, PairMaker
from shoal.http.openai.vectors import number_of
from shoal.http.requests.plain import encoded

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shoal.http.openai.models import OpenAIModel

    Pair = tuple[str, str]


@with_config(OPEN)
class _Rerank(Body):
    query: str
    documents: list[str | dict[str, Any]]
    top_n: NotRequired[Annotated[int, Field(ge=1)] | None]
    return_documents: NotRequired[bool | None]
    rank_fields: NotRequired[list[str] | None]


class _PairsRoute(InputsRoute):
    make: ClassVar[type[ItemMaker]] = PairMaker
    gives: ClassVar[str] = "scores"
    # The client's names of the two texts.
    names: ClassVar[tuple[str, str]]

    def item(
        self, model: OpenAIModel, maker: PairMaker, one: Pair, params: Mapping[str, Any]
    ) -> Any:
        return maker.item(one, params, self.names)


class RerankRoute(_PairsRoute):
    body: ClassVar[type[Mapping[str, Any]]] = _Rerank
    param = "documents"
    names = ("query", "documents")

    def __init__(self, models: Any, most: int, *, returns_documents: bool) -> None:
        super().__init__(models, most)
        # Unless the client says so.
        self._returns_documents = returns_documents

    def inputs(self, params: dict[str, Any]) -> Sequence[Pair]:
        if params.get("rank_fields") not in (None, [], ["text"]):
            detail = "Documents are ranked by the field 'text' only"
            raise refused(detail, param="rank_fields", code="unsupported")
        texts: list[str] = []
        for nth, document in enumerate(params["documents"]):
            text = document if isinstance(document, str) else document.get("text")
            if not isinstance(text, str):
                detail = "A document is a text, or an object with a text under the key 'text'"
                raise refused(detail, param=f"documents.{nth}")
            texts.append(text)
        params["pairs"] = [(params["query"], text) for text in texts]
        return params["pairs"]  # type: ignore[no-any-return]

    def written(self, asked: Asked, results: Sequence[Any]) -> bytes:
        scores = [number_of(result, "scores") for result in results]
        most = asked.params.get("top_n")
        order = sorted(range(len(scores)), key=lambda nth: -scores[nth])[:most]
        ranked: list[dict[str, Any]] = [
            {"index": nth, "relevance_score": scores[nth]} for nth in order
        ]
        returns = asked.params.get("return_documents")
        if self._returns_documents if returns is None else returns:
            for one in ranked:
                document = asked.params["documents"][one["index"]]
                one["document"] = {"text": document} if isinstance(document, str) else document
        tokens = _tokens(asked.model, asked.params["pairs"])
        return encoded(
            {
                "id": f"rerank-{asked.request_id}",
                "object": "list",
                "model": asked.model.name,
                "results": ranked,
                "usage": usage(tokens),
                "meta": {
                    "api_version": {"version": "1" if self._returns_documents else "2"},
                    "billed_units": {"search_units": 1},
                    "tokens": {"input_tokens": tokens},
                },
            }
        )


@with_config(OPEN)
class _Score(Body):
    text_1: str | list[str]
    text_2: str | list[str]


class ScoreRoute(_PairsRoute):
    body: ClassVar[type[Mapping[str, Any]]] = _Score
    param = "text_2"
    names = ("text_1", "text_2")

    def inputs(self, params: dict[str, Any]) -> Sequence[Pair]:
        first, second = params["text_1"], params["text_2"]
        second = [second] if isinstance(second, str) else second
        if isinstance(first, str):
            first = [first]
        if len(first) == 1:
            first = first * len(second)
        if len(first) != len(second):
            detail = f"text_1 has {len(first)} texts and text_2 {len(second)}: send one, or as many"
            raise refused(detail, param="text_1")
        params["pairs"] = [*zip(first, second, strict=True)]
        return params["pairs"]  # type: ignore[no-any-return]

    def written(self, asked: Asked, results: Sequence[Any]) -> bytes:
        scores = [number_of(result, "scores") for result in results]
        return encoded(
            {
                "id": f"score-{asked.request_id}",
                "object": "list",
                "created": int(time.time()),
                "model": asked.model.name,
                "data": [
                    {"index": nth, "object": "score", "score": score}
                    for nth, score in enumerate(scores)
                ],
                "usage": usage(_tokens(asked.model, asked.params["pairs"])),
            }
        )


def _tokens(model: OpenAIModel, pairs: Sequence[Pair]) -> int:
    return sum(model.tokens_in(text) for pair in pairs for text in pair)
