"""Front ends: processes that speak HTTP for a server, and forward the requests to its process."""
