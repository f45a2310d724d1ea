"""Commands for operators and for setting up: servers, users, backups, configuration."""
