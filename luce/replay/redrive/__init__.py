"""The real actors once more, led along a trace: does the same happen again?

What reaches actors from outside, arrivals, results of steps and encodes, timers, clients, free memory, comes from the
trace, at its place in it; what actors and policy make of that is their own. `settings` says what server it was,
`script` what no record says in time, and `arrivals` makes requests of it; `gates` keep messages and turns back until
their record is due, `world` stands in for device, clock and workers, and `plans`, if wanted, for the policy; `driver`
goes through the trace and compares `deeds`, and `outcome` says what came of it.
"""
