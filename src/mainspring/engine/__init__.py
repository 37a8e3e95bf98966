"""The owner's brain, pure and synchronous: no I/O, no clock, no randomness.

Inputs are rows, demand, outcomes and the time; outputs are what to claim and what to load.
"""
