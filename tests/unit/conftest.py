"""Property tests have no deadline: the machine may be busy, and a slow example is not a wrong one."""

from hypothesis import settings

settings.register_profile("sluice", deadline=None, print_blob=True)
settings.load_profile("sluice")
