"""`python -m lakebed` is the command line."""

from lakebed.cli.__main__ import main

if __name__ == "__main__":
    main()
