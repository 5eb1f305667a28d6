"""Worker processes that may crash without taking the caller with them."""
