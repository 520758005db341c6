"""Answers held to a form: grammars over tokens, and the limit on thinking. Belongs to requests; engines see masks."""
