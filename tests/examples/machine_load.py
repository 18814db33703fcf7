"""A program: clients that call a URL in closed loops until its standard input ends.

It prints a line after the first response of each client, and a line of JSON at the end.
"""

import http.client
import json
import sys
import threading
import time
from contextlib import suppress

CLIENTS = 16
PAUSE_S = 0.02


def call_on(host: str, number: int, outcomes: list[str], times: list[float]) -> None:
    connection = http.client.HTTPConnection(host, timeout=50)
    for nth in range(10**9):
        if is_over.is_set():
            return
        text = "x" * (nth % 1000)
        began = time.monotonic()
        try:
            headers = {"content-type": "application/json"}
            connection.request("POST", "/embed", json.dumps(text), headers)
            response = connection.getresponse()
            body = response.read().decode()
            ok = (response.status, body) == (200, str(len(text)))
            outcomes.append("ok" if ok else f"{response.status} {body[:200]}")
        except (OSError, http.client.HTTPException) as error:
            outcomes.append(repr(error))
            connection.close()
        times.append(time.monotonic() - began)
        if nth == 0:
            started.release()
        time.sleep(PAUSE_S)


is_over = threading.Event()
started = threading.Semaphore(0)


def main() -> None:
    outcomes: list[str] = []
    times: list[float] = []
    threads = [
        threading.Thread(target=call_on, args=(sys.argv[1], number, outcomes, times))
        for number in range(CLIENTS)
    ]
    for one in threads:
        one.start()
    for _ in threads:
        started.acquire()
    print("started", flush=True)
    with suppress(KeyboardInterrupt):
        sys.stdin.read()
    is_over.set()
    for one in threads:
        one.join()
    lost = [one for one in outcomes if one != "ok"]
    print(json.dumps({"ok": len(outcomes) - len(lost), "lost": lost[:20], "longest_s": max(times)}))


main()
