"""A small language model: a decoder-only transformer over characters, in pure numpy.

It takes several texts of different lengths at once. They are padded on the right, which no position
of a text attends to. So the result for a text does not depend on the other texts, to within the
rounding of a matrix product.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from examples.language_model import layers
from examples.language_model.layers import Array, Attend

ALPHABET = "\n" + "".join(map(chr, range(ord(" "), ord("~") + 1)))
"""The characters that the model knows: printable ASCII and the line feed."""

BOUNDARY = len(ALPHABET)
"""The token before and after every text."""

TOKENS = len(ALPHABET) + 1

WEIGHTS = Path(__file__).with_name("weights.npz")
"""The weights that are included in the example."""

Tokens = npt.NDArray[np.intp]

_TOKEN_OF = {character: token for token, character in enumerate(ALPHABET)}


def encode(text: str) -> list[int]:
    """Returns the tokens of a text; a character outside `ALPHABET` becomes a question mark."""
    unknown = _TOKEN_OF["?"]
    return [_TOKEN_OF.get(character, unknown) for character in text]


class CharTransformer:
    """A trained transformer that predicts the next character.

    Attributes:
        heads: The number of attention heads.
        depth: The number of blocks.
        channels: The number of channels.
        dtype: The type of the weights and of all activations.
        parameters: The weights by name; those of block 0 start with `block_0.`. Training changes
            the arrays in place.
        blocks: The same arrays, for each block by their short names.
    """

    window = 128
    """The number of characters that a position sees in each block, as in training."""

    def __init__(self, parameters: Mapping[str, Array], heads: int) -> None:
        self.heads = heads
        self.parameters = dict(parameters)
        self.depth = sum(name.endswith(".mix") for name in parameters)
        self.blocks = [
            {
                name.removeprefix(prefix): value
                for name, value in parameters.items()
                if name.startswith(prefix)
            }
            for prefix in (f"block_{index}." for index in range(self.depth))
        ]
        self.channels = self.parameters["embed"].shape[1]
        self.dtype = self.parameters["embed"].dtype

    @classmethod
    def fresh(
        cls,
        seed: int,
        *,
        channels: int = 128,
        inner: int = 320,
        depth: int = 3,
        heads: int = 4,
        dtype: npt.DTypeLike = np.float32,
    ) -> Self:
        """Returns an untrained model of random weights."""
        random = np.random.default_rng(seed)

        def matrix(rows: int, columns: int, scale: float = 1.0) -> Array:
            values: Array = random.standard_normal((rows, columns)) * scale * rows**-0.5
            return values.astype(dtype)

        # What is added to the residual stream starts small, so that the sum does not grow with
        # depth.
        small = (2 * depth) ** -0.5
        parameters = {"embed": matrix(TOKENS, channels, TOKENS**0.5)}
        for index in range(depth):
            of_block = {
                "gain_1": np.ones(channels, dtype),
                "query_key_value": matrix(channels, 3 * channels),
                "mix": matrix(channels, channels, small),
                "gain_2": np.ones(channels, dtype),
                "widen": matrix(channels, inner),
                "narrow": matrix(inner, channels, small),
            }
            parameters |= {f"block_{index}.{name}": value for name, value in of_block.items()}
        parameters["gain"] = np.ones(channels, dtype)
        # Near zero, so that the first guess is even over all characters.
        parameters["unembed"] = matrix(channels, TOKENS, 0.1)
        return cls(parameters, heads)

    @classmethod
    def load(cls, path: Path = WEIGHTS) -> Self:
        """Reads a model that `save` wrote. No code in the file is run: it contains only arrays."""
        with np.load(path, allow_pickle=False) as file:
            heads = int(file["heads"])
            names = [name for name in file.files if name != "heads"]
            return cls({name: file[name].astype(np.float32) for name in names}, heads)

    def save(self, path: Path) -> None:
        """Writes the weights, rounded to half precision."""
        halves: dict[str, Any] = {
            name: value.astype(np.float16) for name, value in self.parameters.items()
        }
        with path.open("wb") as file:
            np.savez_compressed(file, heads=np.array(self.heads), **halves)

    @property
    def reach(self) -> int:
        """The number of characters that a score depends on: each block adds a window."""
        return self.depth * (self.window - 1) + 1

    def next_scores(self, texts: Sequence[Sequence[int]]) -> Array:
        """Scores every token as the next one, for each text.

        This reads the whole texts. `Cache` returns the same scores for the work of one token.

        Args:
            texts: The tokens of each text so far, at least one each. Only the last `reach` of them
                are used.

        Returns:
            One row of unnormalised log-probabilities for each text.
        """
        seen = [text[-self.reach :] for text in texts]
        lengths = np.array([len(text) for text in seen])
        padded = np.full((len(seen), lengths.max()), BOUNDARY, dtype=np.intp)
        for row, text in zip(padded, seen, strict=True):
            row[: len(text)] = text
        bias = layers.distance_bias(self.heads, padded.shape[1], self.window, self.dtype)
        hidden = self.hidden(padded, [partial(layers.attention, bias=bias)] * self.depth)
        return self.scores(hidden[np.arange(len(seen)), lengths - 1])

    def hidden(self, tokens: Tokens, attends: Sequence[Attend]) -> Array:
        """Runs the blocks over tokens, B x T, with an attention function for each block."""
        x: Array = self.parameters["embed"][tokens]
        for weights, attend in zip(self.blocks, attends, strict=True):
            x, _ = layers.block(x, weights, self.heads, attend)
        x, _ = layers.norm(x, self.parameters["gain"])
        return x

    def scores(self, hidden: Array) -> Array:
        """Returns the scores of every token, given the output of the blocks."""
        scores: Array = hidden @ self.parameters["unembed"]
        return scores
