"""`python -m specswap`: what the launcher `./specswap` starts."""

from specswap.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
