"""Settings of the tests that hold for all of them."""

from hypothesis import settings

# No deadline: a machine that also does other things is not a fault of the code.
settings.register_profile("rt", deadline=None)
settings.load_profile("rt")
