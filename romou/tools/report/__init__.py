"""Tables and figures of a tuned model for a person."""
