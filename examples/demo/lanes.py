"""A continuous batch in slow motion: texts join and leave it while it runs.

The batch has eight places, and there are more readers than places. Each step writes one character
of every text in a place. A text that ends, or whose reader leaves, frees its place. The next
request in the queue takes the place in the next step, while the other texts continue.
"""

import random
from itertools import count
from typing import Literal, TypedDict

import anyio
from anyio import to_thread
from anyio.abc import TaskGroup

import shoal
from examples.demo.log import Log
from examples.language_model.blas import one_blas_thread
from examples.language_model.model import CharTransformer
from examples.language_model.writing import Prompt, Writer

PLACES = 8
STEP_S = 0.18
VISITORS = 4
"""The maximum number of concurrent texts of visitors; more are refused."""

_READERS = 12
_STEPS_KEPT = 160
_EVENTS_KEPT = 400
_LENGTHS = (14, 64)
_PAUSES_S = (0.1, 1.5)  # between the end of one reader and the next
_LEAVING = 0.2  # share of the simulated readers that leave before the end
_BEGINNINGS = (
    "Return the ",
    "Raise an error if ",
    "This method is ",
    "Open a file ",
    "Create a new ",
    "If the argument ",
    "Called when ",
    "A list of ",
    "Compute the ",
    "Wait until ",
    "The default ",
    "Convert ",
)

Request = shoal.OpenRequest[Prompt, str]
Write = shoal.StreamCall[[Prompt], str]
End = Literal["done", "left"]


class ReaderEvent(TypedDict):
    """The arrival of a reader, or the end of its text."""

    reader: int
    prompt: str
    end: End | None


class PlaceOutput(TypedDict):
    """The output of one step in one place: a character; empty if the model ended the text."""

    reader: int
    text: str


Step = list[PlaceOutput | None]
"""One step of the batch: the output in each place; None for a free place."""


class Lanes:
    """The batch and its readers.

    Args:
        tasks: The task group in which readers are started.

    Attributes:
        steps: The output of the latest steps.
        events: The latest arrivals and ends of readers.
    """

    def __init__(self, tasks: TaskGroup) -> None:
        self.steps: Log[Step] = Log(_STEPS_KEPT)
        self.events: Log[ReaderEvent] = Log(_EVENTS_KEPT)
        self._tasks = tasks
        self._write: Write | None = None
        self._numbers = count(1)
        self._reading: dict[int, anyio.CancelScope] = {}
        self._visitors = 0

    async def run(self, model: CharTransformer) -> None:
        """Runs the batch and its simulated readers until cancelled."""
        one_blas_thread()
        handler = SlowWriter(model, self.steps)
        batcher = shoal.Batcher(
            handler, fill="continuous", streams=True, max_batch_size=PLACES, name="lanes"
        )
        async with batcher as self._write, anyio.create_task_group() as readers:
            for _ in range(_READERS):
                readers.start_soon(self._simulated_reader, self._write)

    def visit(self, text: str) -> int | None:
        """Starts a visitor's text; returns the number of its reader, or None at the limit."""
        if self._write is None or self._visitors >= VISITORS:
            return None
        self._visitors += 1
        number = next(self._numbers)
        self._tasks.start_soon(self._visitor, self._write, number, text)
        return number

    def leave(self, reader: int) -> bool:
        """Makes a reader leave; returns whether it was still reading."""
        if (scope := self._reading.get(reader)) is None:
            return False
        scope.cancel()
        return True

    async def _visitor(self, write: Write, number: int, text: str) -> None:
        try:
            await self._read(write, number, Prompt(text=text, max_tokens=_LENGTHS[1]))
        finally:
            self._visitors -= 1

    async def _simulated_reader(self, write: Write) -> None:
        while True:
            await anyio.sleep(random.uniform(*_PAUSES_S))
            length = random.randint(*_LENGTHS)
            prompt = Prompt(text=random.choice(_BEGINNINGS), max_tokens=length)
            patience = random.randint(5, length) if random.random() < _LEAVING else None
            await self._read(write, next(self._numbers), prompt, patience)

    async def _read(
        self, write: Write, number: int, prompt: Prompt, patience: int | None = None
    ) -> None:
        """Reads a text to its end, or up to a number of characters if `patience` is given."""
        self.events.add(ReaderEvent(reader=number, prompt=prompt.text, end=None))
        end: End = "left"
        try:
            with anyio.CancelScope() as scope:
                self._reading[number] = scope
                async with write.options(metadata={"reader": number})(prompt) as stream:
                    read = 0
                    async for _ in stream:
                        read += 1
                        if read == patience:
                            return
                end = "done"
        finally:
            del self._reading[number]
            self.events.add(ReaderEvent(reader=number, prompt=prompt.text, end=end))


class SlowWriter:
    """The handler: the language model, with a pause between its steps.

    Args:
        model: The model.
        steps: The log to which the output of each step is added.
    """

    def __init__(self, model: CharTransformer, steps: Log[Step]) -> None:
        self._model = model
        self._steps = steps

    async def __call__(self, batch: shoal.OpenBatch[Prompt, str]) -> None:
        """Streams one character for each prompt in each step."""
        writer: Writer[Request] = Writer(self._model, PLACES)
        places: list[Request | None] = [None] * PLACES
        async for joined in batch.steps():
            for place, request in enumerate(places):
                if request is not None and request.ended:
                    places[place] = None
                    if request in writer.keys:
                        writer.leave(request)
            for request in joined:
                places[places.index(None)] = request
                writer.join(request, request.item)
            step: Step = [None] * PLACES
            for request, character, over in await to_thread.run_sync(writer.step):
                output = PlaceOutput(reader=request.metadata["reader"], text=character or "")
                step[places.index(request)] = output
                if character is not None:
                    await request.send(character)
                if over:
                    request.finish()
            self._steps.add(step)
            await anyio.sleep(STEP_S)
