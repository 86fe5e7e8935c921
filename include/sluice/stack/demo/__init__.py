"""The sample shop, its workload, and the demonstration that runs them."""
