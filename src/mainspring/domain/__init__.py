"""Values and rules, pure: what a task is, when it may change, how it is retried and placed."""
