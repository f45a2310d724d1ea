"""Small worlds that the explorer walks, a file each subject; small.py lists them all."""
