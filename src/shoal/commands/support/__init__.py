"""Code that commands share.

`arguments` and `values` parse the command line, `loading` imports applications, `output` and
`mistake` write results and errors.
"""
