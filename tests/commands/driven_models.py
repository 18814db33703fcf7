"""What the servers of these tests run."""

import anyio


class Scaler:
    """Multiplies, by lists."""

    def __init__(self, factor: int = 2, plus: int = 0) -> None:
        self.factor = factor
        self.plus = plus

    def reconfigure(self, config: object) -> None:
        if config == "refused":
            raise LookupError("no such config")

    def __call__(self, items: list[int]) -> list[int]:
        if 13 in items:
            raise ValueError("13 is not\nwelcome")
        return [self.factor * item + self.plus for item in items]

    async def count(self, items: list[int]):
        for step in range(2):
            yield [step] * len(items)


def add_one(item: int) -> int:
    return item + 1


def greet(name: str, *, mark: str = "!") -> str:
    return f"hello {name}{mark}"


def unreadable(items: "list[Absent]") -> list[int]:  # noqa: F821 - that is the point
    return [0 for _ in items]


async def of_open_batches(batch):
    async for request in batch:
        request.finish(request.item)


class Sleeper:
    def reconfigure(self, run_s: float) -> None:
        self.run_s = run_s

    async def __call__(self, items: list[int]) -> list[int]:
        await anyio.sleep(self.run_s)
        return items


def last_digit(item: int) -> int:
    return item % 10


def alike(first: object, second: object) -> bool:
    return first == second


number = 3
