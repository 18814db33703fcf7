"""Code that notes which requests it began and finished, on which node."""

import sys
import time
from typing import Any

from shoal.testing.replicas.code import Folder


class Noting:
    """Takes a moment for each batch.

    Args:
        folder: Where it notes what happens.
    """

    def __init__(self, folder: str) -> None:
        self.folder = Folder(folder)
        context = sys.modules["ray"].get_runtime_context()
        self.node = context.get_node_id()

    def __call__(self, items: list[int]) -> list[Any]:
        for item in items:
            self.folder.note(f"began {item} {self.node}")
        time.sleep(0.02)
        return [[item, self.node] for item in items]
