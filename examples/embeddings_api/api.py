"""An embeddings API on this machine that limits its callers as such services do.

It stands for a real one. A request has at most 96 texts and 8,000 tokens, three run at a time, and
all together may have a million tokens a minute. Beyond that it responds with 429 and
``Retry-After``. Somebody else uses the same account from time to time, so even careful callers are
refused.

    python -m examples.embeddings_api.api
"""

import json
import math
import os
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TOKENS_PER_MIN = float(os.environ.get("TOKENS_PER_MIN", "1_000_000"))
BURST_TOKENS = 16_000


class Api(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, tokens_per_min: float = TOKENS_PER_MIN, run_s: float = 0.5) -> None:
        super().__init__(("127.0.0.1", 0), Endpoint)
        self.rate = tokens_per_min / 60
        self.run_s = run_s
        self.lock = threading.Lock()
        self.left, self.at = float(BURST_TOKENS), time.monotonic()
        self.running = self.most_running = self.tokens = self.texts = 0
        self.requests = self.refused = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def admit(self, tokens: int) -> float:
        """Returns for how long a caller must wait, in seconds; 0 if its request is accepted."""
        with self.lock:
            now = time.monotonic()
            self.left = min(BURST_TOKENS, self.left + self.rate * (now - self.at))
            self.at = now
            self.requests += 1
            if self.requests % 10 == 0:  # somebody else uses the account
                self.left = 0
            if self.running >= 3:
                return 1
            if tokens > self.left:
                return (tokens - self.left) / self.rate
            self.left -= tokens
            self.tokens += tokens
            self.running += 1
            self.most_running = max(self.most_running, self.running)
            return 0

    def release(self, texts: int) -> None:
        with self.lock:
            self.running -= 1
            self.texts += texts


class Endpoint(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Api

    def do_POST(self) -> None:
        texts = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["input"]
        tokens = sum(len(text.split()) for text in texts)
        if len(texts) > 96 or tokens > 8_000:
            self.respond(400, {"error": "too many texts or tokens"})
            return
        wait_s = self.server.admit(tokens)
        if wait_s:
            with self.server.lock:
                self.server.refused += 1
            self.respond(429, {"error": "slow down"}, retry_after=math.ceil(wait_s))
            return
        time.sleep(self.server.run_s)
        self.server.release(len(texts))
        self.respond(200, {"data": [{"embedding": [len(text), tokens]} for text in texts]})

    def respond(self, status: int, body: object, retry_after: int | None = None) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        if retry_after is not None:
            self.send_header("Retry-After", str(retry_after))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
        pass


if __name__ == "__main__":
    with Api() as api:
        print(f"listening at {api.url}", flush=True)
        api.serve_forever()
