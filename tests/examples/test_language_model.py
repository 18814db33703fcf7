"""The language model: its gradient, its independence of company, and what ships with it."""

from pathlib import Path

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

import shoal
from examples.language_model import layers
from examples.language_model.corpus import docstrings
from examples.language_model.generate import Prompt, generate
from examples.language_model.model import (
    ALPHABET,
    BOUNDARY,
    TOKENS,
    WEIGHTS,
    CharTransformer,
    encode,
)
from examples.language_model.train import loss_and_gradient, train


@pytest.fixture(scope="module", autouse=True)
def one_thread_for_numpy():
    with threadpool_limits(limits=1, user_api="blas"):
        yield


@pytest.fixture(scope="module")
def model():
    return CharTransformer.load()


def written(model, prompts, has_left=lambda _: False):
    """Return what was written for each prompt."""
    texts = [""] * len(prompts)
    for slots in generate(model, prompts, has_left):
        assert len(slots) == len(prompts)
        texts = [
            text if slot is shoal.END else text + slot
            for text, slot in zip(texts, slots, strict=True)
        ]
    return texts


def small_model(dtype=np.float64):
    model = CharTransformer.fresh(0, channels=8, inner=12, depth=2, heads=2, dtype=dtype)
    # A fresh model's last layer is nearly zero, and so would be all gradients before it.
    model.parameters["unembed"] *= 10
    return model


@pytest.mark.parametrize("name", sorted(small_model().parameters))
def test_the_gradient_agrees_with_finite_differences(name):
    model = small_model()
    random = np.random.default_rng(1)
    tokens = random.integers(0, TOKENS, (3, 7))
    _, gradients = loss_and_gradient(model, tokens)
    weight = model.parameters[name]
    direction = random.standard_normal(weight.shape)
    step = 1e-6
    weight += step * direction
    above, _ = loss_and_gradient(model, tokens)
    weight -= 2 * step * direction
    below, _ = loss_and_gradient(model, tokens)
    slope = (above - below) / (2 * step)
    assert np.vdot(gradients[name], direction) == pytest.approx(slope, rel=1e-5)


def test_every_weight_has_a_gradient_of_its_shape():
    model = small_model()
    _, gradients = loss_and_gradient(model, np.arange(16).reshape(2, 8))
    assert {name: g.shape for name, g in gradients.items()} == {
        name: p.shape for name, p in model.parameters.items()
    }


def test_no_position_sees_what_is_right_of_it():
    model = small_model()
    tokens = np.arange(20).reshape(1, 20)
    changed = tokens.copy()
    changed[0, -1] = 50
    blocks = [model.of_block(index) for index in range(model.depth)]

    def hidden(tokens):
        x = model.parameters["embed"][tokens]
        bias = layers.distance_bias(model.heads, 20, 20, x.dtype)
        for weights in blocks:
            x, _ = layers.block(x, weights, bias)
        return x

    before, after = hidden(tokens), hidden(changed)
    assert np.array_equal(before[0, :-1], after[0, :-1])
    assert not np.allclose(before[0, -1], after[0, -1])


def test_a_bias_for_the_last_queries_is_the_end_of_the_whole_bias():
    whole = layers.distance_bias(4, 10, 10, np.float32)
    assert np.array_equal(layers.distance_bias(4, 3, 10, np.float32), whole[:, 7:])


def test_scores_do_not_depend_on_batch_mates(model):
    texts = [encode(text) for text in ("Return the ", "x", "A longer text, " * 20, "\n")]
    together = model.next_scores(texts)
    for text, scores in zip(texts, together, strict=True):
        assert model.next_scores([text])[0] == pytest.approx(scores, abs=1e-3)


def test_only_the_window_is_looked_at(model):
    text = encode("abcdefgh" * 40)
    assert np.array_equal(model.next_scores([text]), model.next_scores([text[-model.window :]]))


def test_what_is_written_does_not_depend_on_batch_mates(model):
    prompts = [
        Prompt(text="Return the ", max_tokens=30, seed=3),
        Prompt(text="", max_tokens=12, seed=4, temperature=1.0),
        Prompt(text="Raise an exception if ", max_tokens=40, temperature=0),
    ]
    assert written(model, prompts) == [written(model, [prompt])[0] for prompt in prompts]


def test_equal_seeds_write_equal_texts_and_other_seeds_others(model):
    def one(seed):
        return written(model, [Prompt(text="The ", max_tokens=40, temperature=1, seed=seed)])

    assert one(1) == one(1)
    assert one(1) != one(2)


def test_at_most_max_tokens_are_written(model):
    (text,) = written(model, [Prompt(text="Return the ", max_tokens=3, seed=0)])
    assert 0 < len(text) <= 3


def test_a_prompt_that_is_done_ends_while_others_go_on(model):
    prompts = [Prompt(text="Return ", max_tokens=n, temperature=0) for n in (2, 5)]
    steps = list(generate(model, prompts))
    assert [slots[0] is shoal.END for slots in steps] == [False, False, True, True, True]
    assert all(slots[1] is not shoal.END for slots in steps)


def test_a_text_ends_where_the_model_says_so():
    class Laconic(CharTransformer):
        """Says one word to whoever has said nothing, and is done."""

        def next_scores(self, texts):
            scores = np.zeros((len(texts), TOKENS))
            for row, text in zip(scores, texts, strict=True):
                row[[*encode("No"), BOUNDARY][min(len(text) - 1, 2)]] = 1
            return scores

    prompts = [Prompt(temperature=0), Prompt(text="Are you there?", temperature=0)]
    assert written(Laconic({}, 1), prompts) == ["No", ""]


def test_a_prompt_whose_reader_left_costs_no_more_work(model, monkeypatch):
    rows = []
    scored = model.next_scores
    monkeypatch.setattr(
        model, "next_scores", lambda texts: (rows.append(len(texts)), scored(texts))[1]
    )
    prompts = [Prompt(text="Return ", max_tokens=4, temperature=0)] * 2
    steps = list(generate(model, prompts, lambda index: index == 1 and len(rows) >= 2))
    assert rows == [2, 2, 1, 1]
    assert [slots[1] is shoal.END for slots in steps] == [False, False, True, True]


def test_a_character_outside_the_alphabet_counts_as_a_question_mark():
    assert encode("é\t?") == encode("???")
    assert [ALPHABET[token] for token in encode("a\n~ ")] == ["a", "\n", "~", " "]


def test_weights_survive_being_saved_and_loaded(tmp_path):
    model = small_model(np.float32)
    model.save(tmp_path / "weights.npz")
    loaded = CharTransformer.load(tmp_path / "weights.npz")
    assert (loaded.heads, loaded.depth) == (model.heads, model.depth)
    for name, value in model.parameters.items():
        assert loaded.parameters[name].dtype == np.float32
        assert loaded.parameters[name] == pytest.approx(value, abs=2e-3)


def test_a_file_that_holds_pickled_objects_is_refused(tmp_path):
    path = tmp_path / "weights.npz"
    np.savez(path, heads=np.array([object()], dtype=object))
    with pytest.raises(ValueError, match="allow_pickle=False"):
        CharTransformer.load(path)


def test_the_weights_that_ship_are_small_and_know_the_kind_of_text(model):
    assert WEIGHTS.stat().st_size <= 1_000_000
    text = (
        "Return a list of the names of the files in the directory.\n\n"
        "If the argument is not given, the current directory is used.  Raise ValueError\n"
        "if the path does not exist."
    )
    loss, _ = loss_and_gradient(model, np.array([[BOUNDARY, *encode(text)]]))
    # An even guess costs log(97), about 4.6 nats a character.
    assert loss < 1.3


def test_docstrings_are_gathered_once_and_in_a_fixed_order(tmp_path: Path):
    (tmp_path / "b.py").write_text('def f():\n    """Say f.\n\n    Twice.\n    """\n')
    (tmp_path / "a.py").write_text(
        '"""Module a."""\nclass C:\n    """Say f.\n\n    Twice.\n    """\nx = 1\n'
    )
    (tmp_path / "c.py").write_text('"""Not ASCII: \\xe9"""\nasync def g():\n    "Say g."\n')
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "d.py").write_text('"""Left out."""\n')
    assert docstrings(tmp_path) == ["Module a.", "Say f.\n\nTwice.", "Say g."]


def test_training_lowers_the_loss_and_shows_progress(capsys):
    corpus = [f"Return the item of number {number}." for number in range(200)]
    model = CharTransformer.fresh(0, channels=16, inner=32, depth=1, heads=2)
    tokens = np.array([[BOUNDARY, *encode(corpus[0])]])
    before, _ = loss_and_gradient(model, tokens)
    train(model, corpus, steps=40, seed=0)
    after, _ = loss_and_gradient(model, tokens)
    assert after < before - 0.1
    shown = capsys.readouterr().err
    assert "step 40/40" in shown
    assert "held-out loss before" in shown
