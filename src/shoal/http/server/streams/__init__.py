"""HTTP/2 and WebSockets: Hypercorn's protocols, hardened, on connections with their own task."""
