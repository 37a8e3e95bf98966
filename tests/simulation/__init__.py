"""The engine and its drivers, unchanged, in a seeded world where everything goes wrong."""
