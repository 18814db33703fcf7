"""A decoder on a real GPU: the matrices of Llama 2 7B, with random weights, by PyTorch.

It does the work of a language model that writes, and what it writes means nothing: positions are
not encoded, and each text has the same number of tokens before it, as in the middle of a long one.
A step is one CUDA graph, which has a place for each of 1, 2, 4 and so on texts, and takes the
smallest that its texts fit into, as vLLM does. The prompts of the texts that join in a step are
read before it, together.

The step runs in a thread, as a model in Shoal does, so that the event loop goes on meanwhile.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

import anyio.to_thread

PROMPT: Final = 64
CONTEXT: Final = 256


@dataclass(frozen=True)
class Shape:
    """The sizes of a decoder; these are those of Llama 2 7B."""

    width: int = 4096
    layers: int = 32
    heads: int = 32
    inner: int = 11008
    words: int = 32000


def why_not() -> str | None:
    """Returns what is missing here to run the model; None if nothing is."""
    if find_spec("torch") is None:
        return "PyTorch is not installed"
    if not import_module("torch").cuda.is_available():
        return "PyTorch finds no GPU"
    return None


class Decoder:
    """The weights, and a graph for each number of places.

    Args:
        capacity: How many texts a step can take, a power of two.
        shape: The sizes.
        device: Where it runs, by PyTorch's name; graphs are made on ``"cuda"`` only.
    """

    def __init__(self, capacity: int, shape: Shape = Shape(), device: str = "cuda") -> None:
        self.capacity = capacity
        self._shape = shape
        self._torch = torch = import_module("torch")
        self._on = {"device": device, "dtype": torch.bfloat16}
        torch.manual_seed(1)
        width = shape.width
        self._words = self._matrix(shape.words, width)
        self._layers = [
            (
                self._matrix(width, 3 * width),
                self._matrix(width, width),
                self._matrix(width, 2 * shape.inner),
                self._matrix(shape.inner, width),
            )
            for _ in range(shape.layers)
        ]
        cache = (shape.layers, 2, capacity, shape.heads, CONTEXT, width // shape.heads)
        self._cache = torch.randn(cache, **self._on)
        self._tokens = torch.zeros(capacity, dtype=torch.long, device=device)
        self._graphs: dict[int, Any] = {}
        with torch.inference_mode():
            self._write(capacity)
            if device == "cuda":
                for places in self.sizes:
                    self._graphs[places] = self._captured(places)

    @property
    def sizes(self) -> list[int]:
        """The numbers of places."""
        return [2**power for power in range(self.capacity.bit_length())]

    @property
    def name(self) -> str:
        """What it runs on."""
        return str(self._torch.cuda.get_device_name()) if self._graphs else "a CPU"

    def step(self, texts: int, joining: int) -> None:
        """Reads the prompts of those that join, and writes a token of each text; it blocks."""
        torch, places = self._torch, 1 << (texts - 1).bit_length()
        with torch.inference_mode():
            if joining:
                self._read(joining)
            if not self._graphs:
                self._write(places)
                return
            self._graphs[places].replay()
            torch.cuda.current_stream().synchronize()

    def step_ms(self, texts: int, joining: int = 0, count: int = 20) -> float:
        """Returns the median time of a step."""
        took = []
        for _ in range(count):
            began_at = time.perf_counter()
            self.step(texts, joining)
            took.append(time.perf_counter() - began_at)
        return sorted(took)[count // 2] * 1e3

    def _matrix(self, rows: int, columns: int) -> Any:
        return self._torch.randn(rows, columns, **self._on) / math.sqrt(rows)

    def _captured(self, places: int) -> Any:
        torch = self._torch
        graph = torch.cuda.CUDAGraph()
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            self._write(places)  # libraries choose their kernels in the first run
        torch.cuda.current_stream().wait_stream(aside)
        with torch.cuda.graph(graph):
            self._write(places)
        return graph

    def _write(self, places: int) -> None:
        """Writes one token of each text."""
        states = self._words[self._tokens[:places]].unsqueeze(1)
        for nth, layer in enumerate(self._layers):
            keys, values = self._cache[nth, :, :places]
            query, key, value = self._projected(states, layer)
            keys[:, :, -1:], values[:, :, -1:] = key, value
            states = self._mixed(states, query, keys, values, layer)
        found = self._norm(states[:, -1]) @ self._words.T
        self._tokens[:places] = found.argmax(-1)

    def _read(self, joining: int) -> None:
        """Reads the prompts of some texts."""
        torch = self._torch
        states = self._words[
            torch.zeros(joining, PROMPT, dtype=torch.long, device=self._on["device"])
        ]
        for nth, layer in enumerate(self._layers):
            query, key, value = self._projected(states, layer)
            self._cache[nth, 0, :joining, :, :PROMPT] = key
            self._cache[nth, 1, :joining, :, :PROMPT] = value
            states = self._mixed(states, query, key, value, layer, is_causal=True)

    def _projected(self, states: Any, layer: Any) -> Any:
        """The queries, keys and values, by text, head, position and column."""
        texts, length, _ = states.shape
        joint = self._norm(states) @ layer[0]
        return joint.view(texts, length, 3, self._shape.heads, -1).permute(2, 0, 3, 1, 4)

    def _mixed(
        self,
        states: Any,
        query: Any,
        keys: Any,
        values: Any,
        layer: Any,
        *,
        is_causal: bool = False,
    ) -> Any:
        functional = self._torch.nn.functional
        seen = functional.scaled_dot_product_attention(query, keys, values, is_causal=is_causal)
        states = states + seen.transpose(1, 2).flatten(2) @ layer[1]
        opened, passed = (self._norm(states) @ layer[2]).chunk(2, -1)
        return states + (functional.silu(opened) * passed) @ layer[3]

    def _norm(self, states: Any) -> Any:
        return self._torch.nn.functional.rms_norm(states, (self._shape.width,))


@dataclass
class DecoderModel:
    """The decoder as a model that counts, for one run; it is used as `GpuModel` is.

    Attributes:
        decoder: The decoder.
        steps: The number of steps so far.
        tokens: The number of tokens written so far.
    """

    decoder: Decoder
    steps: int = 0
    tokens: int = 0

    @property
    def capacity(self) -> int:
        """How many texts a step can take."""
        return self.decoder.capacity

    async def step(self, texts: int, joining: int = 0) -> None:
        """Writes one token of each of some texts, of which some join."""
        await anyio.to_thread.run_sync(self.decoder.step, texts, joining)
        self.steps += 1
        self.tokens += texts
