"""Settings that hold for every test."""

from hypothesis import settings

# How long an example takes is a matter of the machine's load, not of the code: pytest's timeout is the bound.
settings.register_profile("quatserve", deadline=None)
settings.load_profile("quatserve")
