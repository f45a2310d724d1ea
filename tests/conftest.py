"""What counts for every test: no time limit, also not Hypothesis' own, for a machine may be busy."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("lakebed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("lakebed")
