"""Files to batches: index, data set, transforms, sampler, data module, in that order."""
