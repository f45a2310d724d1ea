"""The certificate of an erasure: what went, what still has the content, and the proof that no garbage is left."""
