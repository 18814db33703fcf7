"""The digits model: what it answers and which images it takes."""

import sys

import numpy as np
import pytest
from pydantic import TypeAdapter, ValidationError

import shoal

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def digits():
    from examples.digits.model import Digits

    return Digits(trees=50)


@pytest.fixture(scope="module")
def images():
    from sklearn.datasets import load_digits

    data, labels = load_digits(return_X_y=True)
    return data.reshape(-1, 8, 8).tolist(), labels.tolist()


def test_it_is_right_about_nearly_all_held_out_images(digits):
    assert digits.accuracy > 0.95


async def test_a_prediction_names_the_digit_the_chances_and_the_batch(digits, images):
    shown, labels = images
    async with shoal.Batcher(digits, max_batch_size=4, batch_wait_timeout_s=None) as call:
        predictions = await call.map(shown[:4])
    assert [prediction["digit"] for prediction in predictions] == labels[:4]
    for prediction in predictions:
        assert len(prediction["probabilities"]) == 10
        assert sum(prediction["probabilities"]) == pytest.approx(1)
        assert prediction["probabilities"][prediction["digit"]] == max(prediction["probabilities"])
    assert {tuple(prediction["batch"].items()) for prediction in predictions} == {
        (("id", predictions[0]["batch"]["id"]), ("size", 4), ("reason", "full"))
    }


def test_an_image_of_the_wrong_shape_or_ink_is_refused():
    from examples.digits.model import Image

    image = TypeAdapter(Image)
    blank = np.zeros((8, 8)).tolist()
    assert image.validate_python(blank) == blank
    for wrong in (
        blank[:7],
        [*blank, blank[0]],
        [row[:7] for row in blank],
        [[17.0] * 8] * 8,
        [[-1.0] * 8] * 8,
        [[float("nan")] * 8] * 8,
        [0.0] * 64,
        "ink",
    ):
        with pytest.raises(ValidationError):
            image.validate_python(wrong)


def test_the_load_driver_measures_batched_against_unbatched(tmp_path, monkeypatch, capsys):
    from examples.digits import load

    plot = tmp_path / "load.png"
    words = ["--clients", "64", "--seconds", "1", "--plot", str(plot)]
    monkeypatch.setattr(sys, "argv", ["load.py", *words])
    load.main()
    said = capsys.readouterr()
    table = [line.split() for line in said.out.splitlines()]
    (batched,) = (line for line in table if line[0] == "batched")
    (unbatched,) = (line for line in table if line[0] == "unbatched")
    assert float(batched[2]) > 1
    assert float(unbatched[2]) == 1
    # It is asked about images that it was trained on for the most part.
    assert float(batched[-1].rstrip("%")) > 95
    assert "Batching answers" in said.out
    assert "batched: 1/1 s" in said.err
    assert plot.read_bytes().startswith(b"\x89PNG")
