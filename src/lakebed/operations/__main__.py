"""Write the documents that are made from the table: `python -m lakebed.operations openapi|reference`."""

from __future__ import annotations

import json
import sys
from importlib.metadata import version

from .openapi import document, reference

if __name__ == "__main__":
    match sys.argv[1:]:
        case ["openapi"]:
            sys.stdout.write(json.dumps(document(version("lakebed")), indent=2) + "\n")
        case ["reference"]:
            sys.stdout.write(reference())
        case _:
            sys.exit("usage: python -m lakebed.operations openapi|reference")
