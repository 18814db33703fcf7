"""The models that clients of the Open Inference Protocol call in tests."""

from typing import Any

import numpy as np
from numpy.typing import NDArray  # read at run time

import shoal


def oip_app() -> shoal.App:
    app = shoal.App(protocols=["oip"])

    @app.endpoint("/same", name="same", max_batch_size=4)
    def same(x: list[Any]) -> list[Any]:
        return x

    @app.endpoint("/array", name="array", max_batch_size=4)
    def array(x: list[np.ndarray]) -> list[np.ndarray]:
        assert all(isinstance(one, np.ndarray) for one in x)
        return x

    @app.endpoint("/half", name="half", max_batch_size=4)
    def half(x: list[np.ndarray]) -> list[np.ndarray]:
        import ml_dtypes

        return [one.astype(ml_dtypes.bfloat16) for one in x]

    @app.endpoint("/upper", name="upper")
    def upper(text: list[str]) -> list[str]:
        return [one.upper() for one in text]

    @app.endpoint("/dot", name="dot", max_batch_size=16)
    def dot(a: list[NDArray[np.float64]], b: list[NDArray[np.float64]]) -> list[dict[str, Any]]:
        batch = len(a)
        return [{"dot": x @ y, "batch": batch} for x, y in zip(a, b, strict=True)]

    @app.endpoint("/fail", name="fail")
    def fail(x: list[int]) -> list[int]:
        raise RuntimeError("private")

    return app


app = oip_app()
