"""/v1/dead-letters, and changes of many tasks at once."""
