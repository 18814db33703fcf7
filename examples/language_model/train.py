"""Trains the language model on the standard library's docstrings: `--steps`, `--seed`, `--out`.

Run it from the repository's root:

    python -m examples.language_model.train

Everything is numpy: the gradient is written by hand in `layers.py` and checked against finite
differences by the tests. README.md has the duration and the loss of a run.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from examples.language_model import layers
from examples.language_model.blas import one_blas_thread
from examples.language_model.corpus import docstrings, standard_library
from examples.language_model.layers import Array
from examples.language_model.model import BOUNDARY, WEIGHTS, CharTransformer, Tokens, encode

TEXTS_PER_STEP = 16
_HELD_OUT = 20
"""One docstring in this many is held out to measure the loss."""


def loss_and_gradient(model: CharTransformer, tokens: Tokens) -> tuple[float, dict[str, Array]]:
    """Returns the mean loss of predicting each next token, and its gradient for every weight.

    Args:
        model: The model.
        tokens: Texts of equal length, B x (T + 1).

    Returns:
        The loss in nats a character, and the gradients under the names of the weights.
    """
    given, wanted = tokens[:, :-1], tokens[:, 1:]
    parameters = model.parameters
    x: Array = parameters["embed"][given]
    bias = layers.distance_bias(model.heads, given.shape[1], model.window, x.dtype)
    attend = partial(layers.attention, bias=bias)
    saved: list[layers.BlockSaved] = []
    for weights in model.blocks:
        x, kept = layers.block(x, weights, model.heads, attend)
        saved.append(kept)
    last, norm_saved = layers.norm(x, parameters["gain"])
    loss, d_scores = _cross_entropy(last @ parameters["unembed"], wanted)

    gradients = {"unembed": layers.weight_gradient(last, d_scores)}
    d_x, gradients["gain"] = layers.norm_gradient(
        d_scores @ parameters["unembed"].T, norm_saved, parameters["gain"]
    )
    for index in reversed(range(model.depth)):
        d_x, of_block = layers.block_gradient(d_x, saved[index], model.blocks[index])
        gradients |= {f"block_{index}.{name}": value for name, value in of_block.items()}
    gradients["embed"] = np.zeros_like(parameters["embed"])
    np.add.at(gradients["embed"], given, d_x)
    return loss, gradients


def _cross_entropy(scores: Array, wanted: Tokens) -> tuple[float, Array]:
    scores = scores - scores.max(axis=-1, keepdims=True)
    chances = np.exp(scores)
    total = chances.sum(axis=-1, keepdims=True)
    of_wanted = np.take_along_axis(scores, wanted[..., None], axis=-1) - np.log(total)
    chances /= total
    d_wanted = np.take_along_axis(chances, wanted[..., None], axis=-1) - 1
    np.put_along_axis(chances, wanted[..., None], d_wanted, axis=-1)
    return float(-of_wanted.mean()), chances / wanted.size


class Adam:
    """The optimiser of Kingma and Ba (2014), with the gradient's norm limited to 1."""

    def __init__(self, parameters: dict[str, Array]) -> None:
        self._parameters = parameters
        self._mean = {name: np.zeros_like(value) for name, value in parameters.items()}
        self._square = {name: np.zeros_like(value) for name, value in parameters.items()}
        self._steps = 0

    def step(self, gradients: dict[str, Array], rate: float) -> None:
        """Changes the parameters in place, against the gradient."""
        keep_mean, keep_square = 0.9, 0.99
        self._steps += 1
        length = np.sqrt(sum(float(np.vdot(g, g)) for g in gradients.values()))
        scale = min(1.0, 1 / max(length, 1e-12))
        rate = rate * np.sqrt(1 - keep_square**self._steps) / (1 - keep_mean**self._steps)
        for name, gradient in gradients.items():
            gradient = gradient * scale
            mean, square = self._mean[name], self._square[name]
            mean += (1 - keep_mean) * (gradient - mean)
            square += (1 - keep_square) * (gradient * gradient - square)
            self._parameters[name] -= rate * mean / (np.sqrt(square) + 1e-8)


def _stream(texts: Sequence[str]) -> Tokens:
    tokens = [BOUNDARY]
    for text in texts:
        tokens += [*encode(text), BOUNDARY]
    return np.array(tokens, dtype=np.intp)


def _crops(stream: Tokens, count: int, length: int, random: np.random.Generator) -> Tokens:
    starts = random.integers(0, len(stream) - length, size=count)
    crops: Tokens = stream[starts[:, None] + np.arange(length)]
    return crops


def _rate(step: int, steps: int, peak: float = 2e-3) -> float:
    warm_up = min(1.0, (step + 1) / min(100, max(1, steps // 10)))
    return float(peak * warm_up * 0.5 * (1 + np.cos(np.pi * step / steps)))


def train(model: CharTransformer, corpus: Sequence[str], *, steps: int, seed: int) -> None:
    """Trains a model in place, with progress on standard error."""
    random = np.random.default_rng(seed)
    order = random.permutation(len(corpus))
    held_out = max(1, len(corpus) // _HELD_OUT)
    test = _stream([corpus[index] for index in order[:held_out]])
    stream = _stream([corpus[index] for index in order[held_out:]])
    length = model.window + 1
    probe = _crops(test, 64, length, np.random.default_rng(0))
    print(f"{len(stream):,} characters; loss is in nats a character", file=sys.stderr)
    print(f"held-out loss before: {loss_and_gradient(model, probe)[0]:.3f}", file=sys.stderr)
    adam = Adam(model.parameters)
    recent: list[float] = []
    started = time.monotonic()
    for step in range(steps):
        batch = _crops(stream, TEXTS_PER_STEP, length, random)
        loss, gradients = loss_and_gradient(model, batch)
        adam.step(gradients, _rate(step, steps))
        recent.append(loss)
        if (step + 1) % max(1, steps // 100) == 0:
            elapsed = time.monotonic() - started
            left = elapsed / (step + 1) * (steps - step - 1)
            print(
                f"step {step + 1:,}/{steps:,}  loss {np.mean(recent):.3f}"
                f"  {elapsed:.0f} s, {left:.0f} s left",
                file=sys.stderr,
                flush=True,
            )
            recent.clear()
    print(f"held-out loss after: {loss_and_gradient(model, probe)[0]:.3f}", file=sys.stderr)


def main() -> None:
    """Parses the options, trains a model, and writes its weights."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=9_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=WEIGHTS)
    options = parser.parse_args()
    one_blas_thread()
    model = CharTransformer.fresh(options.seed)
    train(model, docstrings(standard_library()), steps=options.steps, seed=options.seed)
    model.save(options.out)
    print(f"wrote {options.out}: {options.out.stat().st_size:,} bytes", file=sys.stderr)


if __name__ == "__main__":
    main()
