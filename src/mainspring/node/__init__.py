"""Drivers around the engine: each one a loop that does the engine's I/O."""
