"""The log of an adoption, byte by byte (docs/formats/repositories.md)."""

from __future__ import annotations

from lakebed.objectstore import Adoption, AdoptionState, open_objectstore, read_adoption, write_adoption

LINE = b'{"marker":"m","state":"kept","server":"http://old","compared_ms":7,"by":"ann","format":1,"number":1}'


async def test_a_line_is_written_and_read_as_the_page_says() -> None:
    store, old = open_objectstore("mem://adoption-golden"), open_objectstore("mem://adoption-golden-read")
    line = Adoption(marker="m", state=AdoptionState.KEPT, server="http://old", compared_ms=7, by="ann")

    await write_adoption(store, line, after=None)
    await old.put("_lakefs/old-server/00000001.json", LINE)

    assert await store.get("_lakefs/old-server/00000001.json") == LINE
    assert await read_adoption(old) == line
