"""Calls that type checkers must refuse; an error that is missing fails as an unused ignore."""

# pyright: reportUnnecessaryTypeIgnoreComment=true

import shoal


@shoal.batch
async def unary(items: list[int]) -> list[str]:
    return [str(item) for item in items]


@shoal.batch
async def two(left: list[int], right: list[str]) -> list[bytes]:
    return [b"" for _ in left]


class Model:
    @shoal.batch
    async def predict(self, items: list[int]) -> list[str]:
        return [str(item) for item in items]


async def wrong(model: Model) -> None:
    await unary("1")  # type: ignore[arg-type]
    await unary([1])  # type: ignore[arg-type]
    await unary()  # type: ignore[call-arg]
    await unary(1, 2)  # type: ignore[call-arg]
    await two(1, 2)  # type: ignore[arg-type]
    await two(1)  # type: ignore[call-arg]
    await model.predict("1")  # type: ignore[arg-type]
    await model.predict(1, 2)  # type: ignore[call-arg]
    number: int = await unary(1)  # type: ignore[assignment]
    print(number)


@shoal.batch(max_batch_size="4")  # type: ignore[call-overload, untyped-decorator]
async def wrong_option_type(items: list[int]) -> list[str]:
    return [str(item) for item in items]


@shoal.batch(batch_size=4)  # type: ignore[call-overload, untyped-decorator]
async def unknown_option(items: list[int]) -> list[str]:
    return [str(item) for item in items]


async def configure_wrong(batcher: shoal.Batcher[object]) -> None:
    batcher.configure(max_batch_size="4")  # type: ignore[arg-type]
    batcher.configure(batch_size=4)  # type: ignore[call-arg]


@shoal.batch  # type: ignore[arg-type]
async def not_of_lists(item: int) -> str:
    return str(item)
