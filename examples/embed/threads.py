"""A program with threads and no event loop: Shoal runs one in its own thread."""

import time
from concurrent.futures import ThreadPoolExecutor

import shoal


@shoal.batch(max_batch_size=32, batch_wait_timeout_s=0.005)
def squares(numbers: list[int]) -> list[int]:
    time.sleep(0.01)  # a plain function may block: it runs in a worker thread
    print(f"one call for {len(numbers)} numbers")
    return [number * number for number in numbers]


def main() -> None:
    with shoal.blocking(squares) as call, ThreadPoolExecutor(max_workers=8) as threads:
        print(list(threads.map(call, range(24))))


if __name__ == "__main__":
    main()
