"""A cache of keys and values, so that each new token of a text costs only the work of one token.

The keys and values of a position depend only on the text to its left, so they do not change while
the text grows. `Cache` keeps those of the last `window` positions of each text in a ring: position
p is at index p % window, where it replaces the position that just left the window. No data moves
from step to step.

The texts are always the first rows of the cache, without gaps. So one step for all of them is a few
matrix products over a view of those rows, regardless of the lengths of the texts.

The scores are those of `CharTransformer.next_scores`, to within rounding, at any length.
"""

from collections.abc import Callable, Sequence

import numpy as np

from examples.language_model import layers
from examples.language_model.layers import Array, Attend, AttentionSaved
from examples.language_model.model import CharTransformer


class Cache:
    """The keys and values of the texts that are being written.

    Args:
        model: The model that writes them.
        rows: The maximum number of concurrent texts.
    """

    def __init__(self, model: CharTransformer, rows: int) -> None:
        self._model = model
        shape = (model.depth, rows, model.heads, model.window, model.channels // model.heads)
        self._keys: Array = np.zeros(shape, model.dtype)
        self._values: Array = np.zeros(shape, model.dtype)
        # The number of positions of each text that have been read.
        self._read = np.zeros(rows, dtype=np.intp)
        self._texts = 0
        self._penalty = layers.penalty(model.heads, np.arange(model.window), model.dtype)

    def join(self, tokens: Sequence[int]) -> None:
        """Reads the beginning of a text, which becomes the last row.

        Args:
            tokens: The beginning, which may be empty. Only the last `reach` tokens are used.
        """
        model, row = self._model, self._texts
        length = min(len(tokens), model.reach)
        if length:
            bias = layers.distance_bias(model.heads, length, model.window, model.dtype)
            kept = np.arange(length)[-model.window :]
            places = kept % model.window

            def attend_in(keys: Array, values: Array) -> Attend:
                def attend(query: Array, key: Array, value: Array) -> tuple[Array, AttentionSaved]:
                    keys[row, :, places] = key[0, :, kept]
                    values[row, :, places] = value[0, :, kept]
                    return layers.attention(query, key, value, bias)

                return attend

            model.hidden(np.array([tokens[-length:]]), self._each_block(attend_in))
        self._read[row] = length
        self._texts += 1

    def step(self, tokens: Sequence[int]) -> Array:
        """Appends one token to each text.

        Args:
            tokens: The new token of each text, in the order of the rows.

        Returns:
            One row for each text: the scores of every token as the next one.
        """
        model, rows = self._model, np.arange(self._texts)
        read = self._read[: self._texts]
        new_places = read % model.window
        # Places beyond the longest text are unused.
        used = min(int(read.max()) + 1, model.window)
        distance = (new_places[:, None] - np.arange(used)) % model.window
        bias = self._penalty[:, distance].swapaxes(0, 1)
        # Places that this text has not reached contain zeros, or data of an earlier text.
        np.copyto(bias, -np.inf, where=(distance > read[:, None])[:, None])

        def attend_in(keys: Array, values: Array) -> Attend:
            def attend(query: Array, key: Array, value: Array) -> tuple[Array, AttentionSaved]:
                keys[rows, :, new_places] = key[:, :, 0]
                values[rows, :, new_places] = value[:, :, 0]
                seen = np.s_[: len(rows), :, :used]
                return layers.attention(query, keys[seen], values[seen], bias[:, :, None])

            return attend

        hidden = model.hidden(np.array(tokens)[:, None], self._each_block(attend_in))
        read += 1
        return model.scores(hidden[:, 0])

    def leave(self, row: int) -> None:
        """Removes a text; the last row moves to its place."""
        self._texts -= 1
        for kept in (self._keys, self._values, self._read[None]):
            kept[:, row] = kept[:, self._texts]

    def _each_block(self, attend_in: Callable[[Array, Array], Attend]) -> list[Attend]:
        return [attend_in(*kept) for kept in zip(self._keys, self._values, strict=True)]
