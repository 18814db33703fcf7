"""What `test_dashboard_page.py` watches: batches of four, a continuous one, and ugly names."""

import anyio

import shoal

HOSTILE = "<img src=x onerror=alert(1)>"

app = shoal.App(title=HOSTILE)


async def fours(items: list[int]) -> list[int]:
    await anyio.sleep(0.05)
    return items


async def hostile(items: list[int]) -> list[int]:
    raise type(HOSTILE, (Exception,), {})("a secret")


hostile.__name__ = hostile.__qualname__ = HOSTILE


async def write(batch: shoal.OpenBatch[int, str]) -> None:
    while await batch.join():
        while batch.active:
            for request in batch.active:
                await request.send("fish ")
            await anyio.sleep(0.05)
            batch.join_nowait()


app.endpoint("/fours", name="fours", max_batch_size=4, batch_wait_timeout_s=None)(fours)
app.endpoint("/hostile", name="hostile")(hostile)
app.endpoint("/write", name="write", fill="continuous", streams=True, max_batch_size=8)(write)
app.backend("next", fours)
app.endpoint("/long", name="n" * 64)(fours)
for number in range(4):
    app.endpoint(f"/idle{number}", name=f"idle{number}")(fours)
app.endpoint("/last", name="last")(fours)
app.shadow("fours", "next", 1, compare=lambda one, other: one == other)
