"""Further commands of the workstation: start an experiment, inspect a model, measure rounds, estimate links."""
