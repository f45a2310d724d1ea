"""Processes of ours do without pandas until somebody needs it."""

from __future__ import annotations

import subprocess
import sys


def answer(script: str) -> str:
    whole = f"import sys\nimport pyarrow as pa\nfrom lakebed.runtime import leave_pandas_out\n{script}"
    return subprocess.run([sys.executable, "-c", whole], check=True, capture_output=True, text=True).stdout.strip()


def test_lists_become_arrays_without_pandas() -> None:
    assert answer("pa.array([1]); print('pandas' in sys.modules)") == "True", "nothing to be gained any more"
    assert answer("leave_pandas_out(); pa.table({'a': [1]}); print('pandas' in sys.modules)") == "False"


def test_who_needs_pandas_still_gets_it() -> None:
    assert answer("leave_pandas_out(); print(pa.table({'a': [1]}).to_pandas()['a'].tolist())") == "[1]"
    assert answer("leave_pandas_out(); import pandas as pd; print(pa.array(pd.Series([1, 2])).to_pylist())") == "[1, 2]"


def test_where_pandas_is_there_already_nothing_changes() -> None:
    assert answer("import pandas as pd; leave_pandas_out(); print(pa.array(pd.Series([1.5])).type)") == "double"


def test_a_server_starts_without_what_it_needs_later_or_never() -> None:
    slow = {"pandas", "httpx", "jwt", "jinja2", "yaml", "rich", "cryptography.x509"}

    imports = "import lakebed.server.process.serving, lakebed.cli.__main__"

    assert answer(f"{imports}; print({slow!r} & {{*sys.modules}})") == "set()"
