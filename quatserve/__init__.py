"""Deep quaternion networks: train them, fold them, serve them.

`training`, `export` and `service` are links to the directories at the top of a checkout; a wheel holds the
files themselves. Everything imports them by this one name.
"""
