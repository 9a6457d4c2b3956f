"""Settings that hold for every test."""

import signal

from hypothesis import settings

# How long an example takes is a matter of the machine's load, not of the code: pytest's timeout is the bound.
settings.register_profile("quatserve", deadline=None)
settings.load_profile("quatserve")

# A shell that starts this suite in the background makes it ignore Ctrl-C, and children inherit that. Some
# tests press Ctrl-C on what they start: take the usual handler back, which for a child is the default again.
signal.signal(signal.SIGINT, signal.default_int_handler)
