"""Texts that models generate, in several protocols.

`TextJob` is one request for texts, in the form of chats or completions (`text_request`). `results`
has what a model gives, and finds where that ends. `completions` makes the calls. `messages` has the
forms of the responses of chats and completions, `transcriptions` those of speech.
"""
