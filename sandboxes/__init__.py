"""Runs commands somewhere and returns what happened. Decides nothing, judges nothing."""
