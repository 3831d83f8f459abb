"""Storage: the arrays of rows, and a record of the stored rows."""
