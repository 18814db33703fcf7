"""Coalescing writes: many tasks write to SQLite, each batch is one transaction and one commit.

A commit costs a wait for the disk, whatever it holds. A caller goes on when its own row is durable,
and pays for a part of a commit only. A row that the database refuses fails its writer alone.
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
        """Adds one entry for each text, in one transaction; gives back their row ids."""
        results: list[int | sqlite3.Error] = []
        self._database.execute("begin")
        for text in texts:
            try:
                cursor = self._database.execute("insert into entry (text) values (?)", (text,))
                results.append(cursor.lastrowid or 0)
            except sqlite3.Error as error:
                results.append(error)  # an exception in a slot fails that caller alone
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
