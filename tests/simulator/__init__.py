"""A simulator: the real code over simulated stores, target and clocks, all from one seed."""
