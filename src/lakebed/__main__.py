"""Start the command line: `lakebed` and `python -m lakebed`. Its imports wait until Ctrl-C cannot show a traceback."""

from lakebed import interrupts


def main() -> None:
    """Run one command and exit with its code."""
    interrupts.end_at_once()
    from lakebed.cli.__main__ import main as run

    run()


if __name__ == "__main__":
    main()
