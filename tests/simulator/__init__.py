"""A simulator of training jobs, written to test the analyzer: synthetic Kineto traces, and the truth about them.

It imports nothing of tracetools, so that the two cannot share an error. Everything it writes says "synthetic".
"""
