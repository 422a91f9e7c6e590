"""The command line: a folder for each group of commands, and one for what commands share."""
