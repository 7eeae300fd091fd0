"""Building blocks of decoders, one idea a file; stacked over layers, called with an index."""
