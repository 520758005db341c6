"""Request, loop and encoder charts with their actors' guards and the real plan(), composed, to be explored."""
