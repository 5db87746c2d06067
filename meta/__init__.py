"""Records of schedules: for now their replay; the search that makes them comes next."""
