"""What `test_dashboard_page.py` watches: known traffic, replicas that fall ill, and ugly names.

The page leaves words out where it shows more than twelve batchers, so there are twelve.
"""

from contextlib import suppress

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


async def bars(items: list[float]) -> list[float]:
    """Takes as many seconds as its largest item; fails after that if the item is negative."""
    await anyio.sleep(max(map(abs, items)))
    if min(items) < 0:
        raise LookupError("a secret")
    return items


async def paced(batch: shoal.OpenBatch[float, float]) -> None:
    """Keeps each request for as many seconds as its item; fails it then if the item is negative."""
    ends: dict[shoal.OpenRequest[float, float], float] = {}
    async for joined in batch.steps():
        now = anyio.current_time()
        ends |= {request: now + abs(request.item) for request in joined}
        for request in [request for request in batch.active if ends[request] <= now]:
            if request.item < 0:
                request.fail(LookupError("a secret"))
            else:
                request.finish(request.item)
        ends = {request: end for request, end in ends.items() if not request.ended}
        await anyio.sleep(0.005)


passes = anyio.Semaphore(0)


async def levels(items: list[int]) -> list[int]:
    await passes.acquire()
    return items


class Ailing:
    """Falls ill when it is told so; its successor starts when `stage` lets it."""

    may_start = anyio.Event()

    def __init__(self) -> None:
        self.is_well = True
        self.has_started = False

    def __call__(self, items: list[bool]) -> list[bool]:
        self.is_well = items[0]
        return items

    async def health(self) -> bool:
        if not self.has_started:
            await Ailing.may_start.wait()
            self.has_started = True
        return self.is_well


Ailing.may_start.set()


async def stage(items: list[str]) -> list[dict[str, list[float]]]:
    """Does what a test says: lets something go on, or plays what the timeline is to show."""
    match items[0]:
        case "pass":
            passes.release()
        case "stop starts":
            Ailing.may_start = anyio.Event()
        case "start":
            Ailing.may_start.set()
        case "play":
            return [await play()]
    return [{}]


async def play() -> dict[str, list[float]]:
    """Runs batches of four, two and one that fails in `bars`, while two requests stay in `paced`.

    Returns:
        How many seconds the callers waited, by the backend.
    """
    took: dict[str, list[float]] = {"bars": [], "paced": []}

    async def call(backend: str, item: float) -> None:
        handle = await shoal.connect().get_handle(backend)
        began = anyio.current_time()
        with suppress(LookupError):
            await handle.call(item)
        took[backend].append(anyio.current_time() - began)

    async with anyio.create_task_group() as stays:
        stays.start_soon(call, "paced", 0.4)
        await anyio.sleep(0.05)  # so that it has the first place
        stays.start_soon(call, "paced", -0.6)
        for count, item in [(4, 0.4), (2, 0.6), (1, -0.4)]:
            async with anyio.create_task_group() as tasks:
                for _ in range(count):
                    tasks.start_soon(call, "bars", item)
    return took


app.endpoint("/fours", name="fours", max_batch_size=4, batch_wait_timeout_s=None)(fours)
app.endpoint("/hostile", name="hostile")(hostile)
app.endpoint("/write", name="write", fill="continuous", streams=True, max_batch_size=8)(write)
app.backend("next", fours)
app.endpoint("/long", name="n" * 64)(fours)
app.endpoint("/paced", name="paced", fill="continuous", max_batch_size=10)(paced)
app.endpoint("/bars", name="bars", max_batch_size=4, batch_wait_timeout_s=0.3)(bars)
app.endpoint("/levels", name="levels", max_batch_size=1, priority_levels=2, priority_aging_s=None)(
    levels
)
app.endpoint("/ailing", name="ailing", num_replicas=2, health_check_period_s=0.05)(Ailing)
app.endpoint("/stage", name="stage", max_batch_size=1, max_concurrent_batches=None)(stage)
app.endpoint("/idle", name="idle")(fours)
app.endpoint("/last", name="last")(fours)
app.shadow("fours", "next", 1, compare=lambda one, other: one == other)
