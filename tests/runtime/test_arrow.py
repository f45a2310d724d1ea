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


def test_our_modules_are_imported_without_pandas() -> None:
    assert (
        answer("import lakebed.server.process.serving, lakebed.cli.__main__; print('pandas' in sys.modules)") == "False"
    )
