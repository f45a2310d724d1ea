"""Delete files of trees that no commit names, folders of old runs, and old dumps and symlinks."""
