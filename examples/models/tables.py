"""A scikit-learn pipeline and a LightGBM model, trained on data that comes with scikit-learn.

pip install scikit-learn lightgbm
shoal serve examples.models.tables:app
curl localhost:8000/diabetes -H 'content-type: application/json' \\
     -d '[0.04, 0.05, 0.06, 0.02, -0.04, -0.03, -0.04, 0.0, 0.02, -0.02]'
"""

from typing import Annotated

import lightgbm
import numpy as np
from pydantic import Field
from sklearn.datasets import load_diabetes, load_digits
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import shoal

Pixels = Annotated[list[float], Field(min_length=64, max_length=64)]
Patient = Annotated[list[float], Field(min_length=10, max_length=10)]


class Digits:
    """Which digit is on an image: three steps of scikit-learn."""

    def __init__(self) -> None:
        images, digits = load_digits(return_X_y=True)
        steps = StandardScaler(), PCA(32), LogisticRegression()
        self.pipeline = make_pipeline(*steps).fit(images, digits)

    def __call__(self, images: list[Pixels]) -> list[int]:
        digits: list[int] = self.pipeline.predict(np.array(images)).tolist()
        return digits


class Diabetes:
    """How far diabetes will progress in a year: 300 trees of LightGBM."""

    def __init__(self) -> None:
        patients, progress = load_diabetes(return_X_y=True)
        data = lightgbm.Dataset(patients, progress)
        options = {"verbosity": -1, "min_data_in_leaf": 5}
        self.booster = lightgbm.train(options, data, num_boost_round=300)

    def __call__(self, patients: list[Patient]) -> list[float]:
        progress: list[float] = self.booster.predict(np.array(patients), num_threads=1).tolist()
        return progress


app = shoal.App()
app.endpoint("/digits", name="digits", max_batch_size=64)(Digits)
app.endpoint("/diabetes", name="diabetes", max_batch_size=64)(Diabetes)
