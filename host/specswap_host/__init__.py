"""What runs on the target: jobs, journal, swap, gate. Standard library only, Python >= 3.9."""

__version__ = "0.1.0"
