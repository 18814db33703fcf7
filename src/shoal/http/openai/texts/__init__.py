"""Texts that models generate, in several protocols.

`TextJob` is one request for texts, in the form of chats or completions (`text_job`). Each protocol
has a subclass, which makes the response: `chats`, `responses` and `transcriptions`. `results` has
what a model gives, and finds where that ends. `text_route` makes the calls.
"""
