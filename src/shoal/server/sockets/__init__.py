"""Sockets and time-outs of a server, with the same code on trio and asyncio.

Read `transport` first, then `timeouts` and `tls`.
"""
