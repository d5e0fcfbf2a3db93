"""Errors that a user can correct, and the function that prints them."""

import sys


class ToolError(Exception):
    """Bad input. The message says what was expected and what was found."""


def run(main) -> None:
    """Runs main(argv) as a program: a ToolError or an OSError becomes one line on stderr and exit status 1."""
    try:
        main(sys.argv[1:])
    except (ToolError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
