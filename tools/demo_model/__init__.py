"""Training and export of the bundled demo model.  Needs torch; nothing here is used at run time."""
