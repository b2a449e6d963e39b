"""Structure: columns to trees, links and steps."""
