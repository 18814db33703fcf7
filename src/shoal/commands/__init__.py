"""The commands of ``shoal`` that serve, start and drive servers: a file for each, or for a family.

Each has ``add_arguments(parser)``, which describes its command line, and a function that runs it
and returns the exit code. A user's mistake is raised as a `CommandError`.
"""
