"""A decision for the sites of a consortium: what a run of `bench decide` says, with intervals."""
