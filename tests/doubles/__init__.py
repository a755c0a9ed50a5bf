"""Doubles for fault injection: programs that imitate the outside of a server and can be told to misbehave."""
