"""Attacks of malicious clients, by name: what `attack:` in a grid may name. Own ones: docs/attacks.md."""

PFL_BENCH = True  # tells the registry that this is our package, not another distribution of the same name
