"""How long a wait may take, in the tests and in the programs here, which run apart from pytest."""

HANG_S = 60
