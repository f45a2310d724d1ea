"""Delete objects that no commit ever named. `saved` has the state for the next run, `old_layout` other keys."""
