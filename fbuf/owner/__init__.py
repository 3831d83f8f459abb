"""Who has a buffer, and how it is looked at and changed: `owner_of`."""
