"""`python -m specswap_bench`."""

import sys

from .cli import main

sys.exit(main())
