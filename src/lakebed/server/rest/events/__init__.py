"""Events, and subscriptions to them."""
