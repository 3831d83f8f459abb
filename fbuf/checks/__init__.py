"""Checks of arguments. They are made while tracing, or on the host, and cost no time in a step."""
