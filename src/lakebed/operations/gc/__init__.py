"""Garbage collection: in the contract's words, in ours (collectors), and the rules beside it."""
