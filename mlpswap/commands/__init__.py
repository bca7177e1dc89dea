"""The small verbs of the command line, one file each. `config.py` holds their keys and is light to import."""
