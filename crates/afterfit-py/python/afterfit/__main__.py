"""The ``afterfit`` command."""

import sys

from ._afterfit import main as _main


def main() -> int:
    """Run the command with the arguments of this process; return its exit code."""
    return _main(["afterfit", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
