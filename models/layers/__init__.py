"""Building blocks of decoders: one idea a file. Stacked over layers; called with the layer's index."""
