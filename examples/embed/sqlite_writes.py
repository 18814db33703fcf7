"""Coalescing writes: many tasks write to SQLite, with one transaction and commit per batch.

Every commit waits for the disk, regardless of its size. A caller continues when its row is durable,
but shares the cost of the commit. A row that the database rejects fails only for its own caller.
"""

import sqlite3
import sys
import tempfile
import time
from pathlib import Path

import anyio

import shoal


class Journal:
    def __init__(self, path: Path) -> None:
        self._database = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._database.execute("create table entry (id integer primary key, text not null)")
        self.commits = 0

    @shoal.batch(max_batch_size=256)
    def add(self, texts: list[str | None]) -> list[int | sqlite3.Error]:
        """Adds one entry for each text, in one transaction; returns their row ids."""
        results: list[int | sqlite3.Error] = []
        self._database.execute("begin")
        for text in texts:
            try:
                cursor = self._database.execute("insert into entry (text) values (?)", (text,))
                results.append(cursor.lastrowid or 0)
            except sqlite3.Error as error:
                results.append(error)  # an exception as a result fails only that caller
        self._database.execute("commit")
        self.commits += 1
        return results

    def close(self) -> None:
        self._database.close()


async def main(writers: int, path: Path) -> None:
    journal = Journal(path)
    async with shoal.open_batchers(journal.add):
        started = time.perf_counter()
        async with anyio.create_task_group() as tasks:
            for number in range(writers):
                tasks.start_soon(journal.add, f"entry {number}")
        seconds = time.perf_counter() - started
        print(f"{writers} durable writes in {journal.commits} commits, {seconds * 1e3:.0f} ms")

        try:
            await journal.add(None)
        except sqlite3.IntegrityError as error:
            print(f"refused: {error}")
    journal.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        writers = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
        anyio.run(main, writers, Path(folder) / "journal.db", backend="trio")
