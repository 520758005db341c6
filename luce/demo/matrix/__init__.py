"""The first promise as a matrix: one request in every combination of cache, chunking, slots, parking, pictures and
neighbours, its answer compared bit for bit with the one that it gets alone on a fresh service.

`cells` names the combinations, `covering` picks few of them that hold every triple of levels, `questions` says what is
asked, `parking` decides when the request is parked, `company` is the neighbours, `running` runs one cell, and `summary`
counts what happened. `luce doctor --matrix` and the tests are the two that use it.
"""
