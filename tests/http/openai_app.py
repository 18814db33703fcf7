"""Models for the tests of OpenAI's protocol."""

from dataclasses import dataclass, field
from typing import Any

import anyio
from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import TypedDict

import shoal
from shoal.testing.asgi import ask

COMPLETIONS, CHATS = "/v1/completions", "/v1/chat/completions"
EMBEDDINGS = "/v1/embeddings"
HI = [{"role": "user", "content": "hi"}]
USAGE = {"stream_options": {"include_usage": True}}


class Writer:
    """A continuous model that writes the words of its prompts, one in each step.

    Attributes:
        steps: The prompts that were active in each step.
        may_step: Each step waits for it, if it is set.
    """

    def __init__(self):
        self.steps = []
        self.waiting = []
        self.is_held = False
        self._step = anyio.Event()

    def step(self):
        self._step.set()

    async def __call__(self, batch: shoal.OpenBatch[str, str]) -> None:
        left = {}
        async for joined in batch.steps():
            left |= {request: request.item.split(" ") for request in joined}
            left = {request: words for request, words in left.items() if not request.ended}
            self.steps.append([request.item for request in left])
            if self.is_held:
                await self._step.wait()
                self._step = anyio.Event()
            else:
                await anyio.sleep(0.01)  # a step takes time
            for request, words in list(left.items()):
                await request.send(words.pop(0) + " ")
                if not words:
                    request.finish()
                    del left[request]


async def words(prompts: list[str]):
    """Streams the words of each prompt."""
    parts = [prompt.split(" ") for prompt in prompts]
    for nth in range(max(map(len, parts))):
        yield [part[nth] + " " if nth < len(part) else shoal.END for part in parts]


async def upper(prompts: list[str]) -> list[str]:
    return [prompt.upper() for prompt in prompts]


@dataclass
class Options:
    prompt: str
    max_tokens: int = 7
    temperature: float = 1.0
    stop: list[str] = field(default_factory=list)
    seed: int | None = None
    top_k: int = 0


async def options(prompts: list[Options]) -> list[str]:
    return [
        f"{p.prompt}|{p.max_tokens}|{p.temperature}|{p.stop}|{p.seed}|{p.top_k}" for p in prompts
    ]


class Narrow(BaseModel):
    model_config = ConfigDict(extra="forbid")
    text: str = Field(max_length=10)
    temperature: float = Field(0.5, le=1)


async def narrow(prompts: list[Narrow]) -> list[str]:
    return [f"{p.text} at {p.temperature}" for p in prompts]


class Chat(TypedDict):
    messages: list[dict[str, str]]


async def talk(chats: list[Chat]) -> list[str]:
    return [" / ".join(one["role"] + " " + one["content"] for one in c["messages"]) for c in chats]


async def columns(prompt: list[str], seed: list[int], top_p: list[float] = 0.25) -> list[str]:
    return [f"{p} {s} {t}" for p, s, t in zip(prompt, seed, top_p, strict=True)]


async def embed(texts: list[str]) -> list[list[float]]:
    return [[float(len(text)), 0.5] for text in texts]


async def rank(pairs: list[tuple[str, str]]) -> list[float]:
    return [float(len(document)) for _, document in pairs]


class Everything(TypedDict, total=False):
    messages: list[dict[str, Any]]
    prompt: str
    tools: list[dict[str, Any]]
    tool_choice: Any
    logprobs: Any
    top_logprobs: int
    response_format: dict[str, Any]


async def records(items: list[Everything]) -> list[dict[str, Any]]:
    """Gives a tool call for a tool, and else a text, with log probabilities if they are wanted."""
    results = []
    for item in items:
        if item.get("tools") and item.get("messages", [{}])[-1].get("role") != "tool":
            function = item["tools"][0].get("function", {})
            call = {"name": function.get("name", "f"), "arguments": {"city": "Oslo"}}
            results.append({"tool_calls": [call]})
        elif item.get("response_format"):
            results.append({"content": '{"city":"Oslo"}'})
        else:
            result = {"content": "it is fine"}
            if item.get("logprobs"):
                result["logprobs"] = [{"token": "it is fine", "logprob": -0.5}]
            results.append(result)
    return results


async def steps(items: list[Everything]):
    """Streams what `records` gives, in pieces."""
    for result in await records(items):
        if calls := result.get("tool_calls"):
            yield [{"tool_calls": [{"name": calls[0]["name"], "arguments": '{"city":'}]}]
            yield [{"tool_calls": [{"arguments": '"Oslo"}'}]}]
        else:
            for word in result["content"].split(" "):
                yield [word + " "]


async def classes(texts: list[str]) -> list[dict[str, float]]:
    return [{"good": 0.75, "bad": 0.25} for _ in texts]


async def speech(files: list[bytes]):
    for piece in ["hello ", "world"]:
        yield [piece for _ in files]


async def numbers(items: list[int]) -> list[int]:
    return items


async def broken(prompts: list[str]) -> list[str]:
    raise RuntimeError("secret")


async def breaks(prompts: list[str]):
    yield ["one "] * len(prompts)
    raise RuntimeError("secret")


def openai_app(*protocols, models=None, **settings):
    """Returns an application with these models; by default with all, which takes 20 ms longer."""
    app = shoal.App(protocols=protocols or ["openai"], **settings)
    texts = (words, upper, options, narrow, talk, columns, broken, breaks, records, steps)
    handlers = (*texts, embed, numbers, rank, classes, speech)
    for handler in handlers:
        if models is None or handler.__name__ in models:
            more = {"max_batch_size": 1} if handler is steps else {}
            app.endpoint(f"/{handler.__name__}", name=handler.__name__, **more)(handler)
    if models is None or "writer" in models:
        app.writer = Writer()
        app.endpoint("/writer", name="writer", fill="continuous", streams=True, max_batch_size=2)(
            app.writer
        )
    return app


def events(body):
    """Returns the data of the events of a stream."""
    import json

    parts = body.decode().replace(":\n", "").removesuffix("\n\n").split("\n\n")
    found = [part.removeprefix("data: ") for part in parts]
    return [one if one == "[DONE]" else json.loads(one) for one in found]


async def streamed(app, path=COMPLETIONS, **asked):
    """Returns the events of a response to a request for a stream."""
    answer = await ask(app, path, {"stream": True, **asked})
    assert answer.status == 200, answer.body
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    return events(answer.body)


def text_of(found):
    """Returns the texts of a stream's choices, and their reasons to finish."""
    texts, reasons = {}, {}
    for event in found:
        if event == "[DONE]":
            continue
        for choice in event["choices"]:
            piece = choice.get("text", choice.get("delta", {}).get("content") or "")
            texts[choice["index"]] = texts.get(choice["index"], "") + piece
            if choice["finish_reason"]:
                assert choice["index"] not in reasons
                reasons[choice["index"]] = choice["finish_reason"]
    return texts, reasons
