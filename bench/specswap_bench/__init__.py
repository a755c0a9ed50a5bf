"""What measures: client, suites, blocks, statistics, sessions and reports. See docs/architecture.md, "Result"."""

__version__ = "0.1.0"
