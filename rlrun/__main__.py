"""python -m rlrun"""

import os
import sys

if __name__ == "__main__":
    # Python puts the current folder first, where a file random.py would be imported in place of Python's own.
    first = sys.path[:1] if os.path.isdir(sys.path[0]) and os.path.samefile(sys.path[0], os.curdir) else []
    del sys.path[: len(first)]
    from rlrun.cli import main

    sys.path[:0] = first  # main() decides what else may be imported from there
    main()
