"""The description of an application for those who call it: OpenAPI, a page with it, and ``/``.

`document` makes the OpenAPI document, of operations (`operations`), the schemas of items and
results (`schemas`), the forms of requests (`inputs`) and of answers (`answers`, `problems`).
`viewer` has the page on which it is read, and `landing` the page at ``/``.
"""
