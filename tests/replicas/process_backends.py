"""Code that the tests of process replicas run; it is imported in the workers.

Hundreds of workers are started, so what takes long to import, and few need, is imported by the
methods that need it.
"""

import os
import pickle
import re
import sys
import time
from collections.abc import AsyncGenerator, Generator
from typing import Any

import anyio

from shoal.batching.current import current_batch
from shoal.replicas.code.endpoint_call import CallOut, parent_channel
from shoal.testing.replicas.code import Folder

MISSING = object()


class Unsendable:
    """An item that can't be pickled."""

    def __reduce__(self) -> Any:
        raise RuntimeError("not me")


class Unreadable:
    """An item that can be pickled, and not be made again in a worker."""

    def __reduce__(self) -> Any:
        return _unreadable, ()


def _unreadable() -> None:
    raise RuntimeError("made again")


class Block:
    """Memory that travels beside its pickle, as that of an array does."""

    def __init__(self, memory: Any) -> None:
        self.memory = memory

    def __reduce_ex__(self, _: Any) -> Any:
        return Block, (pickle.PickleBuffer(self.memory),)


class Plain:
    """Plain code."""

    def __init__(self, folder: str = "") -> None:
        self._folder = Folder(folder)
        self._kept: list[Any] = []
        self._channel = parent_channel.get(None)

    def __call__(self, items: list[int]) -> list[int]:
        return [2 * item for item in items]

    def _note(self, line: str) -> None:
        if self._folder.path:
            self._folder.note(line)

    def pid(self, item: int) -> int:
        return os.getpid()

    def hold(self, name: str) -> str:
        self._folder.note(f"holds {name}")
        self._folder.wait(name)
        return name

    def note(self, line: str) -> None:
        self._folder.note(line)

    def unsendable(self, items: list[int]) -> list[Any]:
        return [1, lambda: None]

    def exit(self, code: int) -> None:
        print("last words", file=sys.stderr)
        os._exit(code)

    def crash(self, item: int) -> None:
        import ctypes

        ctypes.string_at(0)

    def close_files(self, item: int) -> None:
        os.closerange(3, 100)
        time.sleep(1000)

    def send_rubbish(self, sent: tuple[str, bytes]) -> None:
        channel, rubbish = sent
        _, _, data, control, *_ = sys.orig_argv[
            sys.orig_argv.index("shoal.replicas.process.child.main") + 1 :
        ]
        os.write(int(data if channel == "data" else control), rubbish)
        time.sleep(1000)

    def write(self, item: int) -> None:
        print("to stdout")
        print("to stderr", file=sys.stderr)
        sys.stdout.write("no end of line")

    def flood(self, lines: int) -> int:
        for line in range(lines):
            print(line)
        return lines

    def environment(self, name: str) -> Any:
        return os.environ.get(name)

    def cpus(self, item: int) -> Any:
        return sorted(os.sched_getaffinity(0))

    def has_default(self, item: int, other: Any = MISSING) -> bool:
        return other is MISSING

    def batch(self, items: list[Any]) -> list[Any]:
        now = time.monotonic()
        return [
            (
                request.item,
                dict(request.metadata),
                None if request.deadline is None else request.deadline - now,
                request.priority,
                request.cancelled,
            )
            for request in current_batch().requests
        ]

    def metadata(self, names: list[str]) -> list[Any]:
        found: list[Any] = []
        for name in names:
            try:
                found.append(current_batch().requests[0].metadata[name])
            except KeyError as error:
                found.append(str(error))
        return found

    def echo(self, items: list[Any]) -> list[Any]:
        return items

    def echoes(self, items: list[Any]) -> Generator[list[Any]]:
        yield items
        yield items

    def lengths(self, items: list[Any]) -> list[int]:
        return [len(item) for item in items]

    def sums(self, items: list[Any]) -> list[Any]:
        return [float(item.sum()) for item in items]

    def one_array(self, items: list[Any]) -> list[Any]:
        import numpy as np

        whole = np.asarray(items)
        return [whole.shape, bool(np.shares_memory(whole, items[0])), float(whole.sum())]

    def replaced(self, items: list[Any]) -> list[Any]:
        import numpy as np

        items[0] = items[0] + 1
        return [float(np.asarray(items).sum())]

    def keep(self, items: list[Any]) -> list[int]:
        self._kept.append(items[0])
        return [len(self._kept)]

    def kept(self, items: list[int]) -> list[Any]:
        return [float(kept.sum()) for kept in self._kept]

    def forget(self, items: list[int]) -> list[int]:
        self._kept.clear()
        return items

    def count(self, items: list[int]) -> Generator[list[int]]:
        try:
            for step in range(items[0]):
                self._note(f"step {step}")
                yield [step]
        finally:
            self._note("closed the generator")

    def eat(self, size: int) -> None:
        eaten = bytearray(size)
        eaten[::4096] = b"x" * len(eaten[::4096])
        self._folder.note("has eaten")
        self._folder.wait("never")

    def start_child(self, item: int) -> int:
        import subprocess

        return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"]).pid

    def in_sleep(self, item: int) -> None:
        self._folder.note(f"works {os.getpid()}")
        time.sleep(1000)

    def in_c(self, item: int) -> None:
        self._folder.note(f"works {os.getpid()}")
        re.match(r"(a|a)*b", "a" * 60)

    def call_out(self, item: int) -> Any:
        return self._channel.call(CallOut(endpoint="other", args=(item,)))

    def stream_out(self, item: int) -> Generator[Any]:
        yield from self._channel.stream(CallOut(endpoint="other", args=(item,), stream=True))


class Async(Plain):
    """The same with async code, so that it runs in an event loop."""

    async def __call__(self, items: list[int]) -> list[int]:
        return [2 * item for item in items]

    async def hold_async(self, name: str) -> str:
        self._folder.note(f"holds {name}")
        try:
            await self._folder.wait_async(name)
        finally:
            self._folder.note(f"leaves {name}")
        return name

    async def stubborn(self, name: str) -> None:
        self._folder.note(f"holds {name}")
        with anyio.CancelScope(shield=True):
            await self._folder.wait_async(name)

    async def count_async(self, items: list[int]) -> AsyncGenerator[list[int], None]:
        try:
            for step in range(items[0]):
                self._note(f"step {step}")
                yield [step]
        finally:
            self._note("closed the generator")

    async def call_out_async(self, item: int) -> Any:
        return await self._channel.call_async(CallOut(endpoint="other", args=(item,)))

    async def stream_out_async(self, item: int) -> AsyncGenerator[Any, None]:
        async for step in self._channel.stream_async(
            CallOut(endpoint="other", args=(item,), stream=True)
        ):
            yield step


class Made:
    """Code that gives what it was made of, or was configured with."""

    def __init__(self, made_of: Any) -> None:
        self._made_of = made_of

    def __call__(self, item: int) -> Any:
        return self._made_of

    def reconfigure(self, user_config: dict[str, Any]) -> None:
        self._made_of = user_config["large"]


class Panic(BaseException):
    """Like the class that Rust extensions raise."""


def odd_errors() -> dict[str, type[BaseException]]:
    import asyncio

    return {"panic": Panic, "cancelled": asyncio.CancelledError, "closed": GeneratorExit}


class Odd:
    """Plain code that raises what is no `Exception`; the next call gets the number of the process.

    It does so in a call, in a step, in its ``reconfigure``, and in its ``health`` once it was told.
    """

    sick = ""

    def pid(self, how: str) -> int:
        if kind := odd_errors().get(how):
            raise kind("odd")
        return os.getpid()

    __call__ = pid

    def steps(self, how: str) -> Generator[int]:
        yield 1
        yield self.pid(how)

    def reconfigure(self, how: str) -> None:
        if how.startswith("sick "):
            self.sick = how.removeprefix("sick ")
        else:
            self.pid(how)

    def health(self) -> None:
        self.pid(self.sick)


class OddAsync(Odd):
    """The same, with an event loop beside; its plain methods run in threads."""

    async def health(self) -> None:
        self.pid(self.sick)

    async def waits(self, how: str) -> int:
        await anyio.lowlevel.checkpoint()
        return self.pid(how)


class BadClose(Plain):
    """Code that can't be closed."""

    def close(self) -> None:
        raise ValueError("close failed")


class StuckClose(Plain):
    """Code whose closing never ends."""

    def close(self) -> None:
        self._folder.note("closing")
        time.sleep(1000)


class Prints(Plain):
    """Code that says why it can't be constructed."""

    def __init__(self) -> None:
        print("the weights are missing", file=sys.stderr)
        raise FileNotFoundError("weights.bin")


class Slow:
    """Code that takes for ever to construct."""

    def __init__(self, folder: str) -> None:
        Folder(folder).note("constructing")
        time.sleep(1000)

    def __call__(self, items: list[int]) -> list[int]:
        return items
