"""Commands about data, a file each noun: repositories, refs, history, objects and checkouts."""
