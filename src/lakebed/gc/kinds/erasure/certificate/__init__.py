"""The certificate of an erasure: erased objects, remaining copies, and the proof that no garbage is left."""
