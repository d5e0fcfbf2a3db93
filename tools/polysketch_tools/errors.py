"""Errors that a user can correct, and the function that prints them."""

import sys


# For --help: the statuses of run, and that of argparse.
EXIT_STATUSES = (
    "Exit status: 0 done; 1 an input is wrong, or a file cannot be read or written; "
    "2 the command line is wrong; 130 interrupted."
)


class ToolError(Exception):
    """Bad input. The message says what was expected and what was found."""


def run(main) -> None:
    """Runs main(argv) as a program: a ToolError or an OSError becomes one line on stderr and exit status 1. Names out of a
    file are in it: what is not printable is escaped."""
    try:
        main(sys.argv[1:])
    except (ToolError, OSError) as error:
        text = "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(error))
        print(f"error: {text}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
