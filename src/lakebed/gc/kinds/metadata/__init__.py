"""Files of trees that no commit names, and folders of old runs."""
