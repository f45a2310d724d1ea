"""One key-value store goes with one namespace: check it, and mend what a restored backup lost."""
