"""What a person reads: tables of a tuned model."""
