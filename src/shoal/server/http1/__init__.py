"""HTTP/1.1: requests from bytes, the application's calls, and responses as bytes.

Read `connection` first, then `head` and `body`, then `call`.
"""
