"""Dispatch of calls: arguments are checked, and the function is compiled or traced."""
