"""A stand-in for ``pynvml``: two GPUs that a test sets, or that hang."""

from __future__ import annotations

import sys
import threading
import types
from importlib.machinery import ModuleSpec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest


class NVMLError(Exception):
    """As the module's own."""


class FakeNvml(types.ModuleType):
    """The module.

    Attributes:
        gpus: Of each GPU its UUID, name, used and total memory, and utilization in percent; None
            for what it can't tell. An error in place of all of it is raised.
        hold: While it is cleared, every call hangs.
        calls: How many times the GPUs were counted.
        init_error: What `nvmlInit` raises; None for nothing.
    """

    NVMLError = NVMLError

    def __init__(self) -> None:
        super().__init__("pynvml")
        self.__spec__ = ModuleSpec("pynvml", None)
        self.gpus: list[Any] = [
            ("GPU-aaaa-1", "NVIDIA L4", 3 * 2**30, 24 * 2**30, 25),
            ("GPU-bbbb-2", b"NVIDIA L4", 0, 24 * 2**30, 0),
        ]
        self.go_on = threading.Event()
        self.go_on.set()
        self.calls = 0
        self.init_error: Exception | None = None

    def nvmlInit(self) -> None:
        self.go_on.wait()
        if self.init_error is not None:
            raise self.init_error

    def nvmlDeviceGetCount(self) -> int:
        self.go_on.wait()
        self.calls += 1
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any:
        if isinstance(self.gpus[index], Exception):
            raise self.gpus[index]
        return self.gpus[index]

    def nvmlDeviceGetUUID(self, gpu: Any) -> str:
        return str(gpu[0])

    def nvmlDeviceGetName(self, gpu: Any) -> Any:
        return gpu[1]

    def nvmlDeviceGetMemoryInfo(self, gpu: Any) -> Any:
        if gpu[2] is None:
            raise NVMLError("not supported")
        return types.SimpleNamespace(used=gpu[2], total=gpu[3], free=gpu[3] - gpu[2])

    def nvmlDeviceGetUtilizationRates(self, gpu: Any) -> Any:
        if gpu[4] is None:
            raise NVMLError("not supported")
        return types.SimpleNamespace(gpu=gpu[4], memory=0)


def installed(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    """Installs a fake module for a test."""
    fake = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    return fake
