"""The league: its rule, its page, its entries."""
