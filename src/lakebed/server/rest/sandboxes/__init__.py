"""What bounds those who write: sandboxes."""
