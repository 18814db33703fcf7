"""The server: sockets, connections, HTTP protocols, and a shutdown that loses no request."""
