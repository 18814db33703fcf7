"""What lets a text grow by the work of one token: the keys and values of what it has so far.

The keys and values of a position depend on nothing but what is left of it, so they stay as they are
while the text grows. `Cache` keeps those of the last `window` positions of each text in a ring:
position p lies at place p % window, and takes it from the one that has just gone out of sight.
Nothing is moved from step to step.

The texts are the cache's first rows, without a gap, whoever joins and leaves. So one step for all
of them is a few matrix products over a view of those rows, however long each text is.

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
        rows: The most texts at once.
    """

    def __init__(self, model: CharTransformer, rows: int) -> None:
        self._model = model
        shape = (model.depth, rows, model.heads, model.window, model.channels // model.heads)
        self._keys: Array = np.zeros(shape, model.dtype)
        self._values: Array = np.zeros(shape, model.dtype)
        # How many positions of each text have been read.
        self._read = np.zeros(rows, dtype=np.intp)
        self._texts = 0
        self._penalty = layers.penalty(model.heads, np.arange(model.window), model.dtype)

    def join(self, tokens: Sequence[int]) -> None:
        """Read the beginning of a text, which becomes the last row.

        Args:
            tokens: The beginning, which may be empty. Only the model's `reach` is looked at.
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
        """Let each text grow by one token.

        Args:
            tokens: The new token of each text, in the order of the rows.

        Returns:
            One row for each text: the scores of every token as the one that comes next.
        """
        model, rows = self._model, np.arange(self._texts)
        read = self._read[: self._texts]
        new_places = read % model.window
        # The places beyond the longest text hold nothing to look at.
        used = min(int(read.max()) + 1, model.window)
        distance = (new_places[:, None] - np.arange(used)) % model.window
        bias = self._penalty[:, distance].swapaxes(0, 1)
        # A place that this text has not come to holds zeros, or what an earlier text left there.
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
        """Forget a text; the last row moves to its place."""
        self._texts -= 1
        for kept in (self._keys, self._values, self._read[None]):
            kept[:, row] = kept[:, self._texts]

    def _each_block(self, attend_in: Callable[[Array, Array], Attend]) -> list[Attend]:
        return [attend_in(*kept) for kept in zip(self._keys, self._values, strict=True)]
