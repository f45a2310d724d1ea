"""Reading what commits name while a collection of metadata takes files of commits that are gone.

A run reads commit records first and their trees after that, and in between another run may delete files: of a commit
that was swept meanwhile, or of one that its committer gave up before he wrote the record, which nobody can publish any
more (docs/design/protocols.md, "Void commits"). Such a commit keeps nothing, and stops nobody: the records are asked
for again, and where they say that commits are gone which were there before, the trees are read again without these.

Reading commit records later than need be is as good: what must come before them (listing, what is staged) came before.
A file that is missing though no commit went is damage, and stops the run as ever. Each turn takes a commit that went,
so there is an end.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from lakebed.base import Corrupt
from lakebed.gc import protocol
from lakebed.gc.protocol import Manifest

from .failures import told
from .files import Files
from .workshop import Workshop, read_input

A = TypeVar("A")
T = TypeVar("T")


def reread(
    shop: Workshop,
    files: Files,
    ask: Callable[[], A],
    work: Callable[[A], T],
    *,
    commits_of: Callable[[A], Manifest] = attrgetter("commits"),
) -> T:
    """What `work` makes of the server's answer. `commits_of` an answer is its table COMMITS.

    Raises:
        Corrupt: a file is missing or altered, and not because its commit is gone.
    """
    answer = ask()
    while True:
        try:
            with told():
                return work(answer)
        except Corrupt as error:
            # Asked again, the server may write its table over the one that was read.
            before = _there(read_input(files, commits_of(answer), protocol.COMMITS))
            answer = ask()
            now = _there(read_input(files, commits_of(answer), protocol.COMMITS))
            gone = len(before) - pc.sum(pc.is_in(before, value_set=now), min_count=0).as_py()
            if not gone:
                raise
            shop.progress(f"{gone} commits went meanwhile, and files of theirs ({error}): reading again")


def _there(commits: pa.Table) -> pa.Array:
    """Ids of those that were not swept."""
    return commits.filter(pc.invert(commits["swept"]))["id"].combine_chunks()
