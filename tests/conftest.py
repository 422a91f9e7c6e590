"""Settings for all tests."""

from hypothesis import settings

# No deadline: a busy machine is not a fault of the code.
settings.register_profile("rt", deadline=None)
settings.load_profile("rt")
