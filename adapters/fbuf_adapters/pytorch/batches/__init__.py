"""The way of a batch: drawn by a program or by NumPy, and delivered as tensors."""
