"""The contract suites: checks that a target, or a store of positions, of one's own has to pass."""
