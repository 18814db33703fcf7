"""Texts that join and leave a running batch, step by step and slowly enough to be read.

The batch has eight places, and a few more readers than that want a text. Each step writes one
character of every text that has a place. A text that is over, or whose reader has left, frees its
place, and the next in line takes it in the very next step, while the others go on.
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
"""The most texts of visitors at once; more are refused."""

_READERS = 12
_STEPS_KEPT = 160
_EVENTS_KEPT = 400
_LENGTHS = (14, 64)
_PAUSES_S = (0.1, 1.5)  # before the next reader comes in place of one that has gone
_LEAVING = 0.2  # the part of the simulated readers that leave before the end
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
    """A reader has come, or its text has ended."""

    reader: int
    prompt: str
    end: End | None


class Cell(TypedDict):
    """What one step wrote in one place: a character, or nothing where the model ended its text."""

    reader: int
    text: str


Step = list[Cell | None]
"""One step of the batch: for each place what was written there; None where it was free."""


class Lanes:
    """The batch, and its readers.

    Args:
        tasks: Where readers' tasks are started.

    Attributes:
        steps: What was written.
        events: Who came, and who is through.
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
        """Keep simulated readers coming, until cancelled."""
        one_blas_thread()
        handler = SlowWriter(model, self.steps)
        batcher = shoal.Batcher(
            handler, fill="continuous", streams=True, max_batch_size=PLACES, name="lanes"
        )
        async with batcher as self._write, anyio.create_task_group() as readers:
            for _ in range(_READERS):
                readers.start_soon(self._simulated_reader, self._write)

    def visit(self, text: str) -> int | None:
        """Have a visitor's text written; gives its reader's number, or None if there is no room."""
        if self._write is None or self._visitors >= VISITORS:
            return None
        self._visitors += 1
        number = next(self._numbers)
        self._tasks.start_soon(self._visitor, self._write, number, text)
        return number

    def leave(self, reader: int) -> bool:
        """Let a reader leave; says whether it was there."""
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
        """Read a text to its end, or as many characters as the reader has patience for."""
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
        steps: Where to write down what each step wrote.
    """

    def __init__(self, model: CharTransformer, steps: Log[Step]) -> None:
        self._model = model
        self._steps = steps

    async def __call__(self, batch: shoal.OpenBatch[Prompt, str]) -> None:
        """Stream a character for each prompt, step by step."""
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
                waiter = Cell(reader=request.metadata["reader"], text=character or "")
                step[places.index(request)] = waiter
                if character is not None:
                    await request.send(character)
                if over:
                    request.finish()
            self._steps.add(step)
            await anyio.sleep(STEP_S)
