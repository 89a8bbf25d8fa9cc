"""What every request goes through: the chain, its context, dispatch, rights, error answers."""
