"""The language model: its gradient, its cache, its independence of other texts, its weights."""

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

import shoal
from examples.language_model.cache import Cache
from examples.language_model.generate import generate
from examples.language_model.model import (
    ALPHABET,
    BOUNDARY,
    TOKENS,
    WEIGHTS,
    CharTransformer,
    encode,
)
from examples.language_model.train import loss_and_gradient, train
from examples.language_model.writing import Prompt

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def one_thread_for_numpy():
    with threadpool_limits(limits=1, user_api="blas"):
        yield


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


def test_scores_do_not_depend_on_batch_mates(model):
    texts = [encode(text) for text in ("Return the ", "x", "A longer text, " * 20, "\n")]
    together = model.next_scores(texts)
    for text, scores in zip(texts, together, strict=True):
        assert model.next_scores([text])[0] == pytest.approx(scores, abs=1e-3)


def test_a_score_depends_on_what_is_within_reach_and_on_nothing_else():
    model = small_model()
    model.window = 4
    assert model.reach == 7
    text = list(range(20))

    def scores(*, changed):
        return model.next_scores([[50 if at == changed else at for at in text]])

    assert np.array_equal(scores(changed=12), scores(changed=None))
    assert not np.array_equal(scores(changed=13), scores(changed=None))


class TestCache:
    """Whatever joins, grows and leaves, the scores are those of reading each text from scratch."""

    @pytest.fixture
    def random(self):
        return np.random.default_rng(7)

    def tokens(self, random, count):
        return random.integers(0, TOKENS, count).tolist()

    def grow(self, cache, texts, random):
        """Let each text grow by a token; return the scores."""
        new = self.tokens(random, len(texts))
        for text, token in zip(texts, new, strict=True):
            text.append(token)
        return cache.step(new)

    @pytest.mark.parametrize("window", [1, 2, 5, 32])
    def test_texts_of_any_length_grow_far_past_the_window(self, random, window):
        model = small_model()
        model.window = window
        cache = Cache(model, rows=6)
        texts = [self.tokens(random, length) for length in (0, 1, 4, 5, 6, 23)]
        for text in texts:
            cache.join(text)
        for _ in range(3 * window + 4):
            scores = self.grow(cache, texts, random)
            assert scores == pytest.approx(model.next_scores(texts), abs=1e-9)

    def test_texts_join_and_leave_between_steps(self, random):
        model = small_model()
        model.window = 6
        cache = Cache(model, rows=4)
        texts = []
        joined = 0
        for _ in range(120):
            if len(texts) == 4 or (texts and random.random() < 0.3):
                row = int(random.integers(len(texts)))
                cache.leave(row)
                last = texts.pop()
                if row < len(texts):
                    texts[row] = last
            if not texts or random.random() < 0.5:
                texts.append(self.tokens(random, int(random.integers(0, 15))))
                cache.join(texts[-1])
                joined += 1
            scores = self.grow(cache, texts, random)
            assert scores == pytest.approx(model.next_scores(texts), abs=1e-9)
        assert joined > 20


def test_equal_seeds_write_equal_texts_and_other_seeds_others(model):
    def one(seed):
        return written(model, [Prompt(text="The ", max_tokens=40, temperature=1, seed=seed)])

    assert one(1) == one(1)
    assert one(1) != one(2)


@pytest.mark.parametrize(("temperature", "share"), [(0, 1), (0.5, 0.9), (1, 0.75), (2, 0.634)])
def test_a_character_is_written_as_often_as_it_is_likely(model, monkeypatch, temperature, share):
    scores = np.full(TOKENS, -np.inf)
    scores[encode("ab")] = np.log([0.25, 0.75])
    monkeypatch.setattr(Cache, "step", lambda _, tokens: np.stack([scores] * len(tokens)))
    (text,) = written(model, [Prompt(max_tokens=4_000, temperature=temperature, seed=5)])
    assert text.count("a") + text.count("b") == 4_000
    assert text.count("b") / 4_000 == pytest.approx(share, abs=0.02)


def test_a_prompt_that_is_done_ends_and_costs_no_more_while_others_go_on(model, rows):
    prompts = [Prompt(text="Return ", max_tokens=n, temperature=0) for n in (2, 5)]
    steps = list(generate(model, prompts))
    assert [slots[0] is shoal.END for slots in steps] == [False, False, True, True, True]
    assert all(slots[1] is not shoal.END for slots in steps)
    assert rows == [2, 2, 1, 1, 1]


def test_a_text_ends_where_the_model_says_so(model, monkeypatch):
    n, o = encode("No")
    follows = {BOUNDARY: n, n: o, o: BOUNDARY, encode("?")[0]: BOUNDARY}
    monkeypatch.setattr(
        Cache, "step", lambda _, tokens: np.eye(TOKENS)[[follows[token] for token in tokens]]
    )
    prompts = [Prompt(temperature=0), Prompt(text="Are you there?", temperature=0)]
    assert written(model, prompts) == ["No", ""]


def test_a_prompt_whose_reader_left_costs_no_more_work(model, rows):
    prompts = [Prompt(text="Return ", max_tokens=4, temperature=0)] * 2
    steps = list(generate(model, prompts, lambda index: index == 1 and len(rows) >= 2))
    assert rows == [2, 2, 1, 1]
    assert [slots[1] is shoal.END for slots in steps] == [False, False, True, True]


def test_a_character_outside_the_alphabet_counts_as_a_question_mark():
    assert encode("é\t?") == encode("???")
    assert [ALPHABET[token] for token in encode("a\n~ ")] == ["a", "\n", "~", " "]


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
