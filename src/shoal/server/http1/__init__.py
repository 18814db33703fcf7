"""HTTP/1.1: requests from bytes, the application's calls, and responses as bytes.

Read `head` and `body` first, then `call`.
"""
