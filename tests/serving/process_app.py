"""What `test_served_processes.py` serves with ``shoal serve``: code in processes of its own."""

import os
import time
from pathlib import Path

import shoal

app = shoal.App()


class Work:
    """Takes its time, and answers with its item."""

    def __call__(self, items: list[int]) -> list[int]:
        time.sleep(0.01)
        with Path(os.environ["LEDGER"]).open("a", encoding="utf-8") as ledger:
            ledger.write("".join(f"{item}\n" for item in items))
        return items


app.backend("work", Work, placement="process", num_replicas=2, max_batch_size=4)
app.route("work", backend="work", path="/work")
