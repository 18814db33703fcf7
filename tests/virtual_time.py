"""Virtual time, which is in the test kit."""

from shoal.testing import run_virtually, settle

__all__ = ["run_virtually", "settle"]
