"""Shoal in other frameworks: batched functions in their routes, views and tests.

`starlette` is for Starlette and FastAPI: a lifespan, exception handlers, cancellation, streams, and
pages for operators. `error_responses` makes the responses to errors for any other framework.
`pytest` has fixtures. Each file needs the package that it is for, and no other part of Shoal
imports it.
"""
