"""Scripts that tests run as trainings are no tests."""

collect_ignore = ["scripts"]
