"""The measurements of `bench speed`: our executors and a plain loop on the same work, in one run."""
