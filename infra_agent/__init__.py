"""Proposes changes, has them measured, judges them, remembers them, and asks a person."""
