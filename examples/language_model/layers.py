"""The parts of a transformer in numpy, each as a function and its gradient.

Training and inference use the same functions, so the two can't diverge. Each forward function
returns its result and the values that its gradient needs; inference drops the latter.

A position attends to itself and to the nearest positions on its left. The distance of two positions
is a penalty on their score (ALiBi: Press, Smith and Lewis, 2021). Therefore keys and values depend
only on the text to their left, and not on their own position, so a cache can keep them from one
step to the next.

Letters in shapes: B texts, T positions, D channels, H heads.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.floating[Any]]
"""Weights and activations: float32 normally, float64 for checks of gradients."""

_EPSILON = 1e-6


class NormSaved(NamedTuple):
    """The values that the gradient of a norm needs."""

    unit: Array
    inverse_rms: Array


def norm(x: Array, gain: Array) -> tuple[Array, NormSaved]:
    """Scales each position to a root mean square of one, then by a gain for each channel."""
    inverse_rms = 1 / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + _EPSILON)
    unit = x * inverse_rms
    return unit * gain, NormSaved(unit, inverse_rms)


def norm_gradient(d_out: Array, saved: NormSaved, gain: Array) -> tuple[Array, Array]:
    """Returns the gradients for the input and the gain of `norm`."""
    d_gain = np.sum(d_out * saved.unit, axis=(0, 1))
    d_unit = d_out * gain
    along = np.mean(d_unit * saved.unit, axis=-1, keepdims=True)
    return (d_unit - saved.unit * along) * saved.inverse_rms, d_gain


def penalty(heads: int, distance: npt.NDArray[np.intp], dtype: npt.DTypeLike) -> Array:
    """Returns the penalty on the scores of keys at distances to the left of their query.

    Args:
        heads: The number of heads; each has its own slope, from 1/2 down to 1/256.
        distance: The distance of each key to the left.
        dtype: The type of the scores.

    Returns:
        An array of heads x the shape of `distance`.
    """
    slopes = 2.0 ** (-8.0 * np.arange(1, heads + 1) / heads)
    return np.multiply.outer(-slopes, distance).astype(dtype)


def distance_bias(heads: int, positions: int, window: int, dtype: npt.DTypeLike) -> Array:
    """Returns the bias on the attention scores of a text: the penalty, and the mask.

    Args:
        heads: The number of heads.
        positions: The length of the text.
        window: The number of positions that each sees: itself and those directly to its left.
        dtype: The type of the scores.

    Returns:
        An array of heads x positions x positions; minus infinity where a key lies to the right of
        its query, or too far to the left.
    """
    distance = np.arange(positions)[:, None] - np.arange(positions)
    bias = penalty(heads, distance, dtype)
    bias[:, (distance < 0) | (distance >= window)] = -np.inf
    return bias


class AttentionSaved(NamedTuple):
    """The values that the gradient of attention needs."""

    query: Array
    key: Array
    value: Array
    weights: Array
    out: Array


def attention(query: Array, key: Array, value: Array, bias: Array) -> tuple[Array, AttentionSaved]:
    """Returns the values weighted by the softmax of query and key. All are B x H x T x D/H."""
    weights = (query * query.shape[-1] ** -0.5) @ key.swapaxes(-1, -2)
    weights += bias
    weights -= weights.max(axis=-1, keepdims=True)
    np.exp(weights, out=weights)
    weights /= weights.sum(axis=-1, keepdims=True)
    out = weights @ value
    return out, AttentionSaved(query, key, value, weights, out)


def attention_gradient(d_out: Array, saved: AttentionSaved) -> tuple[Array, Array, Array]:
    """Returns the gradients for the queries, keys and values of `attention`."""
    d_value = saved.weights.swapaxes(-1, -2) @ d_out
    d_scores = d_out @ saved.value.swapaxes(-1, -2)
    # The softmax's own term, sum(d_weights * weights), equals this much smaller sum.
    d_scores -= np.sum(d_out * saved.out, axis=-1, keepdims=True)
    d_scores *= saved.weights
    d_scores *= saved.query.shape[-1] ** -0.5
    return d_scores @ saved.key, d_scores.swapaxes(-1, -2) @ saved.query, d_value


Attend = Callable[[Array, Array, Array], tuple[Array, AttentionSaved]]
"""`attention` with some bias: over the keys and values of these positions, or of more."""


class BlockSaved(NamedTuple):
    """The values that the gradient of a block needs."""

    norm_1: NormSaved
    read: Array
    attention: AttentionSaved
    mixed: Array
    norm_2: NormSaved
    thought: Array
    inner: Array
    active: Array


def block(
    x: Array, weights: Mapping[str, Array], heads: int, attend: Attend
) -> tuple[Array, BlockSaved]:
    """Runs one transformer block: attention, then a feed-forward layer, each added to the input.

    Args:
        x: The activations, B x T x D.
        weights: This block's weights, by their short names.
        heads: The number of attention heads.
        attend: The attention function.
    """
    read, norm_1 = norm(x, weights["gain_1"])
    query, key, value = _split_heads(read @ weights["query_key_value"], heads)
    attended, attention_saved = attend(query, key, value)
    mixed = _join_heads(attended)
    x = x + mixed @ weights["mix"]
    thought, norm_2 = norm(x, weights["gain_2"])
    inner = np.maximum(thought @ weights["widen"], 0)
    # The square of the rectifier learns faster than the rectifier (So et al., Primer, 2021).
    active = inner * inner
    out = x + active @ weights["narrow"]
    return out, BlockSaved(norm_1, read, attention_saved, mixed, norm_2, thought, inner, active)


def block_gradient(
    d_out: Array, saved: BlockSaved, weights: Mapping[str, Array]
) -> tuple[Array, dict[str, Array]]:
    """Returns the gradients for the input and for each weight of `block`."""
    d_inner = (d_out @ weights["narrow"].T) * saved.inner * 2
    d_x, d_gain_2 = norm_gradient(d_inner @ weights["widen"].T, saved.norm_2, weights["gain_2"])
    d_x += d_out
    heads = saved.attention.weights.shape[1]
    (d_mixed,) = _split_heads(d_x @ weights["mix"].T, heads, parts=1)
    d_projected = np.concatenate(
        [_join_heads(part) for part in attention_gradient(d_mixed, saved.attention)], axis=-1
    )
    d_read = d_projected @ weights["query_key_value"].T
    d_first, d_gain_1 = norm_gradient(d_read, saved.norm_1, weights["gain_1"])
    return d_x + d_first, {
        "gain_1": d_gain_1,
        "query_key_value": weight_gradient(saved.read, d_projected),
        "mix": weight_gradient(saved.mixed, d_x),
        "gain_2": d_gain_2,
        "widen": weight_gradient(saved.thought, d_inner),
        "narrow": weight_gradient(saved.active, d_out),
    }


def weight_gradient(x: Array, d_out: Array) -> Array:
    """Returns the gradient for `weight` in `x @ weight`, summed over texts and positions."""
    gradient: Array = x.reshape(-1, x.shape[-1]).T @ d_out.reshape(-1, d_out.shape[-1])
    return gradient


def _split_heads(x: Array, heads: int, parts: int = 3) -> tuple[Array, ...]:
    """Turns B x T x (parts * D) into as many arrays of B x H x T x D/H."""
    texts, positions, _ = x.shape
    split = x.reshape(texts, positions, parts, heads, -1).transpose(2, 0, 3, 1, 4)
    return tuple(split)


def _join_heads(x: Array) -> Array:
    """Turns B x H x T x D/H into B x T x D."""
    texts, heads, positions, channels = x.shape
    return x.transpose(0, 2, 1, 3).reshape(texts, positions, heads * channels)
