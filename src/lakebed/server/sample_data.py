"""A few small sample files for a new repository (`sample_data`)."""

from __future__ import annotations

from collections.abc import Iterator

from lakebed.catalog import Repository
from lakebed.versions import Note

MESSAGE = "Add sample data"
_README = """# Sample data

`stations.csv` names three stations, `readings/` has what they measured, a file for each month.
Make a branch, change a file, look at the difference, merge it:

    lakebed branch create lakefs://REPOSITORY/try --source main
    lakebed object upload readings.csv lakefs://REPOSITORY/try/sample/readings/2026-02.csv
    lakebed diff lakefs://REPOSITORY/try
"""
_STATIONS = {"hamburg": (53.55, 9.99), "lisbon": (38.72, -9.14), "oslo": (59.91, 10.75)}
_DAYS = {"2026-01": 31, "2026-02": 28}


def sample_files() -> Iterator[tuple[str, str, str]]:
    """Yield path, content type and text of each file. The files are always the same."""
    yield "sample/README.md", "text/markdown", _README
    rows = [f"{name},{latitude},{longitude}" for name, (latitude, longitude) in _STATIONS.items()]
    yield "sample/stations.csv", "text/csv", "\n".join(["station,latitude,longitude", *rows]) + "\n"
    for month, days in _DAYS.items():
        lines = ["day,station,celsius"]
        for day in range(1, days + 1):
            # Colder in the north, and varying within a week: enough to draw a line.
            lines += [
                f"{month}-{day:02},{name},{30 - latitude / 2 + day % 7 - 3:.1f}"
                for name, (latitude, _) in _STATIONS.items()
            ]
        yield f"sample/readings/{month}.csv", "text/csv", "\n".join(lines) + "\n"


async def add_sample_data(repository: Repository, branch: str, *, committer: str) -> None:
    """Upload the sample files to a branch and commit them."""
    for path, content_type, text in sample_files():
        await repository.objects.upload(branch, path, text.encode(), content_type=content_type)
    await repository.changes.commit(branch, Note(message=MESSAGE, committer=committer))
