"""The verbs: what can be done with a buffer. One file a verb."""
