"""Parts of the report: each has one function `render(analysis, view)` that returns lines, none where it has nothing."""
