"""Plant bugs in the shipped source, and look for them."""
