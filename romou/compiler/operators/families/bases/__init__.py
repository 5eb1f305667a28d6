"""What several families extend: contractions, and convolutions in any number of axes."""
