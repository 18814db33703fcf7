"""Code that says which GPUs its process sees, since before it was imported."""

import os
from typing import Any, Final

AT_IMPORT: Final = {
    name: os.environ.get(name)
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "OMP_NUM_THREADS")
}


class Seen:
    def __call__(self, item: str) -> Any:
        if item == "die":
            os._exit(3)
        return AT_IMPORT[item], os.getpid()
