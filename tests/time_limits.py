"""How long tests wait before they fail: long, since only a test that hangs waits so long.

A busy machine takes seconds to start a process, or to give a thread its turn.
"""

HANG_S = 60  # for one wait of a test
TEST_S = 120
SLOW_TEST_S = 300
