"""The admin API: the verbs of a client over HTTP, under ``/-/api/``."""
