"""The documentation as a site: it builds, every page is in its menu, and every link leads somewhere."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert (tmp_path / "guide" / "concepts" / "index.html").is_file()
    changes = (tmp_path / "changes" / "index.html").read_text()
    assert "Not released yet" in changes
    assert "What users notice" in changes
