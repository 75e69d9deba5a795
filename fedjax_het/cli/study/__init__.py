"""Studies: methods compared with the same number of trials, of which validation examples choose."""
