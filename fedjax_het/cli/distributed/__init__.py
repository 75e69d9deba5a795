"""Training in several processes: initialization, exchange of values, CPU devices."""
