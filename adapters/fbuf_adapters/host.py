"""The old name of `fbuf.host`."""

raise ImportError(
    "fbuf_adapters.host has been named fbuf.host since version 0.4: from fbuf.host import HostStore"
)
