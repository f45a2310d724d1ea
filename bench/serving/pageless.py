"""Serve as `lakebed serve` does, without the page: what clients of the API and of S3 would cost if there were none."""

from __future__ import annotations

from lakebed.__main__ import main
from lakebed.server import app
from lakebed.server.http.requests import RestRequest


class NoDoor:
    def __init__(self, *_: object) -> None:
        pass

    def is_asked(self, _: RestRequest) -> bool:
        return False


if __name__ == "__main__":
    vars(app)["Door"] = NoDoor
    main()
