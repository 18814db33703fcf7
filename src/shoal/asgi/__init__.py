"""Code that a server and an application share, and the names of Shoal's extensions of ASGI.

Neither imports the other: ASGI is the interface between them. Both check headers, hosts and
origins, run lifespans, and read one table of options. Read `extensions` first, then `http_options`.
"""
