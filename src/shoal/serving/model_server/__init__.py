"""A model server: the backends of this server, for other Shoal servers that forward batches to it.

`listener` accepts and authenticates the connections; `ingress` serves one of them. The other end is
in `shoal.replicas.remote`, and the frames in `shoal.replicas.process.wire`.
"""
