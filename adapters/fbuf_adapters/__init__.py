"""Bridges from fbuf to other libraries, one module each.

Importing this package imports none of them: ask for the module you want,
`from fbuf_adapters import pytorch`.
"""
