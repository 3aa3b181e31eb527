"""Ways to run a step again: recorded operations, TorchScript, CUDA graphs."""
