"""The third door: pages for people, over the table of operations (docs/design/0012-page.md): `lakebed open ./lake`.

    door.py     select requests for a page; authenticate; show errors as pages
    visit.py    one request of a browser: the operations that it calls, the token in its form, and the answer
    asking.py   call an operation as the API does: the same gate, audit line and errors
    render.py   templates, and the display of names, sizes and times
    pages/      a file for each noun, as in `server/rest`

A handler calls operations and fills a template. It computes nothing that a user of the API could not get.
"""

from .door import Door

__all__ = ["Door"]
