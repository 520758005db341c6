"""What is done with a recorded trace: check it, show it, compare it with another one, turn it into other formats."""
