"""The description of an application for its callers: OpenAPI, a page with it, and ``/``.

`document` makes the OpenAPI document, from the schemas of items and results and the forms of
requests (`schemas`). `pages` has the page that shows it, and the page at ``/``.
"""
