"""What a server and an application both know: the words between them that ASGI does not have.

The server and the application are strangers: neither imports the other, and ASGI is what stands
between them. Both check headers, hosts and origins, run lifespans, and read one table of options;
and the server's extension of ASGI has a name here. Read `extensions` first, then `http_options`.
"""
