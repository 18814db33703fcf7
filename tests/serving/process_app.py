"""What `test_served_processes.py` serves with ``shoal serve``: code in processes of its own."""

import os
import time
from pathlib import Path

import shoal

app = shoal.App()


class Work:
    """Takes its time, and answers with its item and its process."""

    def __call__(self, items: list[int]) -> list[tuple[int, int]]:
        time.sleep(0.01)
        with Path(os.environ["LEDGER"]).open("a", encoding="utf-8") as ledger:
            ledger.write("".join(f"{item}\n" for item in items))
        return [(item, os.getpid()) for item in items]


class Held:
    """Works until a file is there, and says by another one that it does."""

    def __call__(self, items: list[str]) -> list[int]:
        for item in items:
            Path(f"{item}.runs").touch()
        while not all(Path(f"{item}.go").exists() for item in items):
            time.sleep(0.005)
        return [os.getpid()] * len(items)


app.backend("work", Work, placement="process", num_replicas=2, max_batch_size=4)
app.route("work", backend="work", path="/work")
app.backend("alone", Held, placement="process", max_batch_size=1)
app.route("alone", backend="alone", path="/alone")
