"""One config file per data set. --config=pacs:fedrd calls get_config("fedrd") of pacs.py."""
