"""For all tests: none is timed, so no example of a property has to end within some milliseconds."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
