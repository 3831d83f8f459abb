"""TorchRL programs, each with TorchRL's buffer and with ours, changed by one line."""
