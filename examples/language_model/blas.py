"""Limits the threads that numpy uses for a matrix product."""

from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]


def one_blas_thread() -> None:
    """Limits numpy to one thread for each matrix product of this process.

    The model's matrices are small. A second thread saves little on an idle machine, and on a busy
    one the two threads wait for each other: on two busy cores a step took 20 times as long.
    """
    threadpool_limits(limits=1, user_api="blas")
