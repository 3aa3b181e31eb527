"""Operations on what clients send, by name: what `channel:` in a grid may list. Own ones: docs/channel.md."""

PFL_BENCH = True  # tells the registry that this is our package, not another distribution of the same name
