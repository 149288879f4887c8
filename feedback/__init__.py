"""Turns what happened into observations, signals and a verdict. Pure: reads only the files it is given."""
