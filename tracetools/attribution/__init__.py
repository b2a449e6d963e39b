"""One column more per stage: phase, module. In: table and structure. Out: a value per event row."""
