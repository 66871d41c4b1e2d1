"""Random histories of the product's code over simulated stores, targets and clocks."""
