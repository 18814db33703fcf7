"""The calls of an actor's code to endpoints, which only the program's process can reach.

They are made like those of a worker process, with the same frames. An actor can't send by itself,
so there is always a call of the actor under way that returns once its code has sent frames.
Responses are sent with calls of the actor as well, one after the other, so that they can't overtake
each other; responses that accumulate are sent together. A generator was rejected: a thread would
wait in it all the time, and Ray crashes when the program ends the generator during such a wait.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio

from shoal.errors import ReplicaDied
from shoal.replicas.process.endpoint_calls import EndpointCalls
from shoal.replicas.ray.carrier import Sent

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from shoal.replicas.code.endpoint_call import CallOut
    from shoal.replicas.process.wire.frames import Kind
    from shoal.replicas.process.wire.messages import Message
    from shoal.replicas.ray.link import Link


class CallsOut:
    """Makes the calls of the code of one actor, in the program."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._answers: list[Sent] = []
        self._has_some = anyio.Event()

    async def run(self, make: Callable[[CallOut], Awaitable[Any]] | None) -> None:
        """Makes and answers calls until the actor has died; `make` is None to refuse them."""
        calls = EndpointCalls(self._send)
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(calls.run, make)
                tasks.start_soon(self._write)
                while True:
                    for one in await self._link.sent():
                        calls.handle(one.frame())
        except* ReplicaDied:
            pass

    def _send(self, kind: Kind, id_: int, message: Message) -> None:
        self._answers.append(Sent.of(kind, id_, message))
        self._has_some.set()

    async def _write(self) -> None:
        while True:
            await self._has_some.wait()
            self._has_some = anyio.Event()
            answers, self._answers = self._answers, []
            await self._link.answer(answers)
