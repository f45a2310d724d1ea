# The same words CI runs. Without `just`: python3 run.py test.

python := ".venv/bin/python"

# format, lint, types, and the tests of the tier; `just check --all`: every part
check *options:
    {{python}} checks.py {{options}}

# the tests that need no JVM
test *options:
    {{python}} -m pytest -q -m "not spark" {{options}}

# the simulator's command line
sim *options:
    {{python}} -m sim {{options}}

# the collectors on a local Spark session
spark:
    {{python}} -m pytest -q -m spark

# the unchanged clients
compat:
    {{python}} -m pytest -q tests/compat

# one benchmark: just bench commit --json
bench name *options:
    {{python}} -m bench {{name}} {{options}}

# reformat
format:
    {{python}} -m ruff format .
    {{python}} -m ruff check --fix .
