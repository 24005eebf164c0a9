"""What every role shares: the blind group sum, its privacy accounting and its ledger."""
