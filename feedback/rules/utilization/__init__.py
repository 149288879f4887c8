"""Rules on where time goes between threads, locks and devices; from traces and sampling profiles alone.

Wall time is the union of intervals, never a sum over streams or over nested calls. What a trace doesn't hold is not
taken for idleness: torch.profiler, for one, leaves out the Python threads that it wasn't started in.
"""
