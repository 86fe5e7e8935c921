"""``python -m sluice.cli``."""

from sluice.cli import main

if __name__ == "__main__":
    main()
