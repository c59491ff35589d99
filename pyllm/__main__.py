"""`python -m pyllm`: the command line, and the entry point of child processes."""

import sys

from pyllm.cli import main

if __name__ == "__main__":
    sys.exit(main())
