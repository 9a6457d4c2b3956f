"""What a person did wrong, said in one sentence: the value, the bound, the remedy."""


class UserError(Exception):
    """Bad input from a person. The command prints it on one line and exits with 2."""
