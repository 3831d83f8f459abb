"""Classes of users and of earlier versions: what they may define, and what `help` shows of them."""
