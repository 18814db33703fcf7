"""Replicas that are other Shoal servers, which are reached over a socket.

Their frames are those of a worker process. Read `handshake` first: nothing is unpickled before both
ends have proved that they know the token. `sockets` opens a connection, `keep_alive` notices when
the other end is gone, and `replica` is the replica in the server that forwards batches. The other
end is in `shoal.serving.model_server`.
"""
