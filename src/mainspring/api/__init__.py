"""The HTTP face: one module per subject, problem documents for everything that goes wrong."""
