"""Workers without a model as children of their core; the role is one of `entries`, as "module:function"."""

import pkgutil
import sys
from multiprocessing.connection import Connection

from pyllm.supervision.parent_link import die_with_parent


def main(entry: str, connection_file: int, thread_stays: int, *files: int) -> None:
    """Run the worker, as `child_main` of `pyllm.launch.entrypoints` does."""
    if thread_stays:
        die_with_parent()
    pkgutil.resolve_name(entry)()(Connection(connection_file), *files)


if __name__ == "__main__":
    _, entry, *numbers = sys.argv[1:]
    main(entry, *map(int, numbers))
