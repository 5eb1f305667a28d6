"""Functions of each row along an axis, such as sorts and cumulated sums."""
