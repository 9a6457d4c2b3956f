"""The same engine without a server: `python -m service classify` and `python -m service segment`."""
