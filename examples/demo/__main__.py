"""Runs the demo: two workers train their models, then the page is served until Ctrl-C.

python -m examples.demo --port 8000
"""

import argparse
import json
import shlex
import signal
import sys
from pathlib import Path

import trio
from sklearn.datasets import load_digits

from examples.demo.app import app, show
from shoal.asgi.http_options import HttpOptions
from shoal.server.server import serve

_LOAD = Path(__file__).parents[1] / "digits" / "load.py"
_DOCUMENTATION = Path(__file__).parents[2] / "docs" / "start.md"
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def main() -> int:
    """Serves the demo; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m examples.demo", description="Shoal's demo.")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen at (%(default)s)")
    parser.add_argument("--port", type=int, default=8000, help="0 for a free one (%(default)s)")
    options = parser.parse_args()
    config = HttpOptions(host=options.host, port=options.port, graceful_timeout_s=10)
    exit_code = 0
    try:
        print("Starting two workers and training their models: a few seconds.", flush=True)
        trio.run(_serve, config)
    except* OSError as errors:
        reason = errors.exceptions[0]
        print(f"can't listen at {config.host} port {config.port}: {reason}", file=sys.stderr)
        exit_code = 1
    except* KeyboardInterrupt:
        exit_code = 128 + signal.SIGINT
    return exit_code


async def _serve(config: HttpOptions) -> None:
    drained = await serve(app, config, shutdown=_signalled, on_listening=_announce)
    if drained.started:
        cut = f"; {drained.cut:,} requests were cut off" if drained.cut else ""
        print(
            f"Ended: {drained.served:,} HTTP requests were served, and the simulated clients had"
            f" {show.answered:,} calls answered{cut}.",
            flush=True,
        )


async def _signalled() -> None:
    """Waits for the first signal. A second one gets Python's default handlers and ends at once."""
    with trio.open_signal_receiver(*_SIGNALS) as signals:
        await anext(signals)
    print("\nEnding; running requests may finish.", flush=True)
    app.begin_drain()


def _announce(url: str) -> None:
    url = url.rstrip("/")
    image = json.dumps(load_digits().images[0].astype(int).tolist(), separators=(",", ":"))
    prompt = json.dumps({"text": "Return the ", "max_tokens": 200})
    asked = json.dumps({"model": "language-model", "prompt": "Return the ", "stream": True})
    # Quoted and absolute, so that it works in any shell and directory.
    load = shlex.join([sys.executable, str(_LOAD)])
    print(
        f"""
Shoal's demo is at {url}/

  dashboard:      {url}/-/dashboard
  endpoints:      {url}/-/docs
  documentation:  {_DOCUMENTATION}

Recognise the digit of an image, and stream a generated text, also as OpenAI's clients do:

  curl {url}/digits -H 'content-type: application/json' -d '{image}'

  curl -N {url}/generate -H 'content-type: application/json' -d '{prompt}'

  curl -N {url}/v1/completions -H 'content-type: application/json' -d '{asked}'

Measure the gain of batching at full speed, with separate servers:

  {load}

Ctrl-C ends it.
""",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
