"""From a request to a handler, and from an answer or an error to bytes."""
