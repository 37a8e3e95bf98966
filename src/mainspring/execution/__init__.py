"""Built-in executors: what runs a task inside the node."""
