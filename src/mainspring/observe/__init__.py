"""How a node is watched: log lines and metrics."""
