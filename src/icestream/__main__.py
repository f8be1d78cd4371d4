"""Runs the command line: `python -m icestream`."""

from icestream.cli.main import main

if __name__ == "__main__":
    main()
