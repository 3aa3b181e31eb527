"""Published numbers, and the comparison with them."""
