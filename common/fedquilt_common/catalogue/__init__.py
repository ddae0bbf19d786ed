"""What an experiment can name: algorithms, models and data sets, each with its source and its fields."""
