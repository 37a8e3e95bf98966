"""Benches: `./dev bench NAME`."""
