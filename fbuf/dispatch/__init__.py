"""The door: where every call comes in, and what it brings is checked."""
