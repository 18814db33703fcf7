"""Batching in a trio program: many tasks call a list function with one item each."""

import trio

import shoal


@shoal.batch(max_batch_size=32)
async def word_lengths(words: list[str]) -> list[int]:
    await trio.sleep(0.01)  # one call of a model or a database for all words
    print(f"one call for {len(words)} words")
    return [len(word) for word in words]


async def report(word: str) -> None:
    print(f"{word}: {await word_lengths(word)}")


async def main() -> None:
    async with shoal.open_batchers(word_lengths), trio.open_nursery() as nursery:
        for word in ("a", "shoal", "of", "fish", "turns", "as", "one"):
            nursery.start_soon(report, word)


if __name__ == "__main__":
    trio.run(main)
