"""Bridges from fbuf to other libraries, one module each.

Importing this package imports none of them. Import the module that you want: `from fbuf_adapters
import pytorch`.
"""
