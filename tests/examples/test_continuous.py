"""The language model behind a continuous batch: prompts join and leave between two steps."""

import anyio
import pytest

import shoal
from examples.language_model.continuous import TEXTS_AT_ONCE, ContinuousTextGenerator
from examples.language_model.generate import generate
from examples.language_model.writing import Prompt

# The model's steps run in a thread.
pytestmark = [pytest.mark.real_time, pytest.mark.slow]


@pytest.fixture
async def write(model):
    handler = ContinuousTextGenerator(model)
    async with shoal.Batcher(
        handler, fill="continuous", streams=True, max_batch_size=TEXTS_AT_ONCE
    ) as call:
        yield call


def alone(model, prompt):
    return "".join(slot for (slot,) in generate(model, [prompt]) if slot is not shoal.END)


async def read(write, prompt, texts, key):
    async with write(prompt) as stream:
        texts[key] = "".join([character async for character in stream])


def endless(nth):
    return Prompt(text="Return the ", max_tokens=5_000, temperature=0, seed=nth)


async def test_what_is_written_does_not_depend_on_who_joins_and_leaves(model, write, rows):
    prompts = [
        Prompt(text="Return the "[:nth], max_tokens=5 + 7 * nth % 60, temperature=1, seed=nth)
        for nth in range(20)
    ]
    texts = {}
    async with anyio.create_task_group() as tasks:
        for key, prompt in enumerate(prompts):
            tasks.start_soon(read, write, prompt, texts, key)
    assert max(rows) == TEXTS_AT_ONCE
    assert texts == {key: alone(model, prompt) for key, prompt in enumerate(prompts)}


async def test_a_prompt_that_comes_later_joins_those_that_are_being_written(write, rows):
    async with write(endless(0)) as stream:
        await anext(stream)
        texts = {}
        await read(write, Prompt(max_tokens=5, temperature=0), texts, "later")
        assert texts["later"]
        await anext(stream)
    assert max(rows) == 2


async def test_a_reader_that_leaves_frees_its_place_at_once(write, rows):
    texts = {}
    async with anyio.create_task_group() as tasks:
        first = write(endless(0))
        async with first:
            for nth in range(1, TEXTS_AT_ONCE):
                tasks.start_soon(read, write, endless(nth), texts, nth)
            while rows[-1:] != [TEXTS_AT_ONCE]:
                await anext(first)
        await read(write, Prompt(max_tokens=5, temperature=0), texts, "in its place")
        assert texts.keys() == {"in its place"}
        tasks.cancel_scope.cancel()
    assert max(rows) == TEXTS_AT_ONCE
