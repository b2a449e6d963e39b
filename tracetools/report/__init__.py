"""Answers into words and files: every format takes an `Analysis` and returns text or bytes; nothing here computes."""
