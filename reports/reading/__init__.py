"""Results as reports read them."""
