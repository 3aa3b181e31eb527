"""What the authors use beside the package: simulations, the structure of the source, the cost
of commands, the league's release file."""
