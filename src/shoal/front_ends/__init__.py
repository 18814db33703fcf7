"""Front ends: processes that speak HTTP for a server, and pass the requests on to its process."""
