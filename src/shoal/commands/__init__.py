"""The commands of ``shoal``: one module per command, or per family of commands.

Each module has ``add_arguments(parser)``, which adds the command's arguments to its parser, and a
function that runs the command and returns the exit code. A user's mistake raises `CommandError`.
"""
