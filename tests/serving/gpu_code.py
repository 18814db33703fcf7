"""Code that says which GPUs its process sees, and code that holds memory of one.

That is held by CUDA's driver itself, so that no framework is needed.
"""

import ctypes
import os
from typing import Any, Final

HELD_BYTES: Final = 2**30

AT_IMPORT: Final = {
    name: os.environ.get(name)
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "OMP_NUM_THREADS")
}


class Seen:
    def __call__(self, item: str) -> Any:
        if item == "die":
            os._exit(3)
        return AT_IMPORT[item], os.getpid()


class Cuda:
    """CUDA's driver, in a process of its own: what was opened stays open until its end."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", 0)

    def call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, name)(*arguments)
        if status:
            raise RuntimeError(f"{name} failed with {status}")

    def hold(self, size: int) -> None:
        """Takes memory of the first GPU that this process sees."""
        context, at = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self.call("cuCtxSetCurrent", context)
        self.call("cuMemAlloc_v2", ctypes.byref(at), ctypes.c_size_t(size))

    def uuids(self) -> list[str]:
        """The GPUs that this process sees, as NVML names them."""
        count = ctypes.c_int()
        self.call("cuDeviceGetCount", ctypes.byref(count))
        found = []
        for index in range(count.value):
            uuid = (ctypes.c_ubyte * 16)()
            self.call("cuDeviceGetUuid_v2", uuid, index)
            digits = bytes(uuid).hex()
            found.append(
                "GPU-"
                + "-".join([digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]])
            )
        return found


class Holder:
    """Holds a GiB of its GPU, and says which GPUs its process sees, and its number."""

    def __init__(self) -> None:
        self._cuda = Cuda()
        self._cuda.hold(HELD_BYTES)

    def __call__(self, items: list[Any]) -> list[tuple[list[str], int]]:
        return [(self._cuda.uuids(), os.getpid())] * len(items)
