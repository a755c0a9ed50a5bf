"""One file per measure; see `specswap.measure`."""
