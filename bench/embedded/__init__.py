"""The library in this process, without HTTP: commits, histories, trees, sandboxes, migration."""
