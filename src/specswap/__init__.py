"""The console behind `./specswap`. No decisions live here: it calls plays, pytest, the benchmark and the sandbox."""

__version__ = "0.1.0"
