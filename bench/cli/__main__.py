"""`python -m bench.cli`, the same as the command `bench`."""

from bench.cli import main

if __name__ == "__main__":
    main()
