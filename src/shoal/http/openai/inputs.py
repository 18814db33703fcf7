"""Requests with many inputs: each is a call of its own, which joins batches as any other."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from typing_extensions import override

from shoal.errors import ItemTooLarge
from shoal.http.json.endpoint import call_headers
from shoal.http.openai.bodies import read_body
from shoal.http.openai.errors import refused, too_long
from shoal.http.openai.items import ItemMaker, TextMaker, prompts_of
from shoal.http.openai.models import OpenAIRoute
from shoal.http.requests.call import EndpointCall
from shoal.http.requests.exchange import JSON

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shoal.http.openai.items import Prompt
    from shoal.http.openai.models import OpenAIModel, OpenAIModels
    from shoal.http.requests.exchange import Exchange


class Asked(NamedTuple):
    model: OpenAIModel
    request_id: str
    params: Mapping[str, Any]


class InputsRoute(OpenAIRoute):
    body: ClassVar[type[Mapping[str, Any]]]
    make: ClassVar[type[ItemMaker]] = TextMaker
    # The client's name of the inputs.
    param = "input"
    # What the results are.
    gives: ClassVar[str]

    def __init__(self, models: OpenAIModels, most: int) -> None:
        super().__init__()
        self._models = models
        self._most = most

    @override
    async def answer(self, exchange: Exchange) -> None:
        params = read_body(self.body, exchange, await exchange.body())
        inputs = self.inputs(params)
        if not 0 < len(inputs) <= self._most:
            detail = f"There must be 1 to {self._most} inputs, and there are {len(inputs)}"
            raise refused(detail, param=self.param)
        model = self._models.of(params.get("model"), self.make)
        exchange.counted = model.counted
        with EndpointCall(model.calls, exchange) as call:
            batcher = await call.find(call_headers(exchange.headers))
            if call.streams:
                raise refused(f"The model gives texts, no {self.gives}", param="model")
            maker = model.maker(batcher, self.make)
            items = [self.item(model, maker, one, params) for one in inputs]
            try:
                results = await call.results(items)
            except ItemTooLarge as error:
                raise too_long("An input", error, param=self.param) from None
            asked = Asked(model, exchange.request_id, params)
            await exchange.answer(200, JSON, self.written(asked, results))

    @abstractmethod
    def inputs(self, params: dict[str, Any]) -> Sequence[Any]: ...

    @abstractmethod
    def item(self, model: OpenAIModel, maker: Any, one: Any, params: Mapping[str, Any]) -> Any:
        """Returns the item of an input; `maker` is one of `make`."""

    @abstractmethod
    def written(self, asked: Asked, results: Sequence[Any]) -> bytes: ...


class TextsRoute(InputsRoute):
    @override
    def inputs(self, params: dict[str, Any]) -> Sequence[Prompt]:
        params["input"] = prompts_of(params["input"], "input")
        return params["input"]  # type: ignore[no-any-return]

    @override
    def item(
        self, model: OpenAIModel, maker: TextMaker, one: Prompt, params: Mapping[str, Any]
    ) -> Any:
        return maker.item(model.fitting(maker, one, "input"), params, "input")


def usage(tokens: int) -> dict[str, int]:
    return {"prompt_tokens": tokens, "total_tokens": tokens}
