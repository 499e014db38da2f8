"""Training data: samples, readers, mixtures and the packing of many expressions behind one image."""
