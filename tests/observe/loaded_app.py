"""What the tests of the exposition serve: an application that has a sample of every metric."""

import anyio

import shoal

app = shoal.App(protocols=["oip", "openai"])


@app.endpoint(
    "/lengths",
    name="lengths",
    max_batch_size=8,
    batch_size_fn=len,
    allowed_batch_sizes=[4, 8],
    pad=lambda texts, _size: texts,
    split=lambda text, most: [text[:most], *[text[n : n + 8] for n in range(most, len(text), 8)]],
    join=sum,
    isolate_errors=True,
)
async def lengths(texts: list[str]) -> list[int]:
    if "!" in texts:
        raise ValueError
    return [len(text) for text in texts]


@app.endpoint("/write", name="write", fill="continuous", streams=True, max_batch_size=4)
async def write(batch: shoal.OpenBatch[str, str]) -> None:
    async for _ in batch.steps():
        await anyio.sleep(0.02)
        for request in batch.active:
            await request.send("word")
            request.finish()


@app.endpoint("/shared", name="shared", dedupe=True, cache={"max_size": 10, "ttl_s": 60})
async def shared(items: list[int]) -> list[int]:
    await anyio.sleep(0.01)
    return items


async def doubled(items: list[int]) -> list[int]:
    return [2 * item for item in items]


app.backend("doubled", doubled, placement="process")
app.backend("next", doubled)
app.route("doubled", backend="doubled", path="/doubled")
app.shadow("doubled", "next", 1.0, compare=lambda ours, theirs: ours == theirs)


@app.endpoint("/all", name="all")
async def call_all(items: list[int]) -> list[int]:
    assert app.controller is not None
    handle = await app.controller.get_handle("doubled")
    return [await handle.call(item) for item in items]
