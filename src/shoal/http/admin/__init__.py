"""The admin API: the verbs of a client as HTTP, under ``/-/api/``."""
