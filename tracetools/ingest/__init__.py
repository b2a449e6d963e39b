"""Bytes to columns. In: paths. Out: `Trace`. Its two doors are `find_inputs` and `read_trace`."""
