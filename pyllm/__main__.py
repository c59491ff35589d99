"""`python -m pyllm`: the command line, and the entry point of child processes, which import nothing of it."""

import sys

if __name__ == "__main__":
    if sys.argv[1:2] == ["_child"]:
        from pyllm.launch.entrypoints import child_main

        sys.exit(child_main(sys.argv[2], *map(int, sys.argv[3:])))
    from pyllm.cli import main

    sys.exit(main())
