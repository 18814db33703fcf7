"""Code that commands share.

`arguments` and `values` parse the command line, `loading` imports applications, and `output` writes
results and errors.
"""
