"""A FastAPI site whose routes share batches: a classifier, a stream, a token, a background task.

    pip install '.[serve]' fastapi uvicorn
    uvicorn examples.fastapi.app:api

    curl -X POST localhost:8000/classify -H 'Authorization: Bearer token-of-ann' \\
        -H 'Content-Type: application/json' -d '{"text": "free prices"}'
    curl -N 'localhost:8000/spell?text=prices' -H 'Authorization: Bearer token-of-ann'
    curl localhost:8000/-/readyz
"""

from collections import Counter
from collections.abc import AsyncGenerator
from typing import Annotated

import anyio
from fastapi import BackgroundTasks, Depends, FastAPI, HTTPException
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel

import shoal
from shoal.integrations.starlette import (
    ResultStreamResponse,
    cancel_on_disconnect,
    exception_handlers,
    lifespan,
    operator_pages,
)

TOKENS = {"token-of-ann": "ann", "token-of-bob": "bob"}
USES: Counter[str] = Counter()
bearer = HTTPBearer()


class ModelError(RuntimeError):
    """The model failed for a whole batch."""


@shoal.batch(max_batch_size=64, max_queued_requests=1024, request_timeout_s=10)
async def classify(texts: list[str]) -> list[str]:
    if any("\0" in text for text in texts):
        raise ModelError("the model takes no zero bytes")
    await anyio.sleep(0.01)  # the time of a model, whatever the size of the batch
    return ["spam" if "free" in text else "other" for text in texts]


@shoal.batch(max_batch_size=8)
async def spell(texts: list[str]) -> AsyncGenerator[list[str | type[StopIteration]]]:
    for step in range(max(map(len, texts))):
        yield [text[step] if step < len(text) else StopIteration for text in texts]
        await anyio.sleep(0.05)


def current_user(given: Annotated[HTTPAuthorizationCredentials, Depends(bearer)]) -> str:
    if given.credentials not in TOKENS:
        raise HTTPException(401, "Send your token", {"WWW-Authenticate": "Bearer"})
    return TOKENS[given.credentials]


User = Annotated[str, Depends(current_user)]

api = FastAPI(lifespan=lifespan, exception_handlers=exception_handlers(ModelError))
api.mount("/-", operator_pages())


class Document(BaseModel):
    text: str


class Label(BaseModel):
    label: str


@api.post("/classify")
@cancel_on_disconnect
async def classify_document(document: Document, user: User, tasks: BackgroundTasks) -> Label:
    label = await classify(document.text)
    tasks.add_task(USES.update, [user])
    return Label(label=label)


@api.get("/spell")
async def spell_text(text: str, _user: User) -> ResultStreamResponse:
    return ResultStreamResponse(spell(text))
