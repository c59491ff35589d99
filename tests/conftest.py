"""For every test: processes that share cores must not spin while they wait; OpenMP reads this when it is loaded."""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
