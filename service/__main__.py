"""`python -m service` in a clone: `quatserve serve`, or one of the commands that need no server."""

import sys

from quatserve.__main__ import start

if __name__ == "__main__":
    if sys.argv[1:2] not in (["classify"], ["segment"]):
        sys.argv.insert(1, "serve")
    start()
