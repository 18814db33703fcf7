"""Sockets and timeouts of a server, alike on trio and asyncio."""
