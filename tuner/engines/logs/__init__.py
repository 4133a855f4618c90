"""Reading servers' logs: what every engine has in common."""
