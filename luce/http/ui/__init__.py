"""The page at /ui: the charts live, the slots, a timeline, a chat box; saved traces in the same views."""
