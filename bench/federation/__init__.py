"""The loop of one cell: server, clients, evaluation, simulated time and traffic."""
