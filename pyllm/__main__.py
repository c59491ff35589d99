"""`python -m pyllm`: the command line, and the way that child processes start."""

import sys

from pyllm.cli import main

if __name__ == "__main__":
    sys.exit(main())
