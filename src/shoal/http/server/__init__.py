"""The server: sockets, connections, HTTP's protocols, and a shutdown that loses no request."""
