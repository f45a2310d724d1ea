"""Parts of collections: listing, preparing, lifecycle, erasure, sweep."""
