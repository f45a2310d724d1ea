"""Tools for operators: backups, checks, recovery, probes, metrics, logs and the audit log."""
