"""Answers. Each room has one door, `measure`: a `Structure` in, frozen rows out."""
