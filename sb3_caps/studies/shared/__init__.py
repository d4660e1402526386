"""What studies share: runs that can be killed and resumed, settings, statistics, plots and tables."""
