"""The digits with and without batching, for the comparison of `load.py`.

shoal serve examples.digits.servers:batched
shoal serve examples.digits.servers:unbatched
"""

import shoal
from examples.digits.model import Digits

batched = shoal.App()
batched.endpoint("/digits", max_batch_size=64, batch_wait_timeout_s=0.002)(Digits)

unbatched = shoal.App()
unbatched.endpoint("/digits", max_batch_size=1)(Digits)
