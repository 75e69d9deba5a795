"""Studies: methods compared with the same number of trials, selected on validation examples."""
