"""Where ranks are mapped: in this process, or in several. Each engine has one door, `map_ranks`."""
