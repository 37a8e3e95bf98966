"""One suite per port, run against everything that claims to be one."""
