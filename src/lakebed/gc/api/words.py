"""Say what each option of a request does, once for `lakebed gc` and `python -m lakebed.gc`. Imports nothing."""

from __future__ import annotations

from typing import Final

OPTIONS: Final = {
    "committed": ("", "Only data of commits that expired by the rules."),
    "uncommitted": ("", "Only data that is in no commit."),
    "metadata": (
        "",
        (
            "Only Lakebed's own files: ranges that no commit names, folders of old runs. Without a kind: uncommitted, "
            "committed, metadata, one after the other."
        ),
    ),
    "pruning": ("", "Only files of tables that nothing names any more."),
    "clean": ("", "Uncommitted data: look at everything, not only at changes."),
    "optimised": ("", "Uncommitted data: look only at changes since an earlier run, or fail."),
    "old-layout": ("", "With --uncommitted: look only at objects outside data/SLICE/."),
    "older-than": ("7d", "With --old-layout: only objects written this long ago."),
    "clean-every": ("N", "Look at everything in one of this many runs. Default: 10."),
    "clean-after": ("7d", "Look at everything when the last such run is this old."),
    "token-expiry": ("1h", "Leave slices opened within this time to a later run."),
    "active-only": ("", "Lifecycle data: commits that the retention rules let go keep nothing."),
    "rules": ("FILE", "Plan by the rules of a file; they are not saved."),
    "window": ("7d", "Delete nothing yet. Objects can be restored for this long."),
    "readers-grace": (
        "15m",
        (
            "Delete nothing that a read may have found within this time. A bare number is seconds. Default: 2s where "
            "all reads go through the server, else 15m."
        ),
    ),
    "branches": (
        "",
        "First delete branches that are due by the lifecycle policy. They can be undeleted for a while.",
    ),
    "days": ("N", "How many days ahead. Default: 60."),
    "policy": ("FILE", "Use the policy in this file. It is not saved."),
    "engine": (
        "spark|local|auto",
        "The engine; auto starts no Spark for small work. Default: LAKEBED_GC_ENGINE, else spark if installed.",
    ),
    "tasks": (
        "N",
        (
            "Split Spark's work into N tasks. Default: two a core on one machine; four a core of a cluster, and at "
            "least 16."
        ),
    ),
}
"""For each option the name of its value in the help, empty for a flag, and the help text."""
