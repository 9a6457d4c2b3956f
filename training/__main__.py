"""`python -m training COMMAND` in a clone: the same as `quatserve COMMAND`."""

from quatserve.__main__ import start

if __name__ == "__main__":
    start()
