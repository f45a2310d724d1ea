"""What counts for every test: no time limit, also not Hypothesis' own, for a machine may be busy; and Ctrl-C works."""

from __future__ import annotations

import signal

from hypothesis import HealthCheck, settings

settings.register_profile("lakebed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("lakebed")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts what it runs in the background so, and every program that a test starts would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
