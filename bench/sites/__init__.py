"""One method file over a real network: one client in one process, and the server where no client's data are."""
