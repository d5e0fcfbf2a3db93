"""polysketch-linearize: a pretrained transformer becomes a model whose layers, but for some, attend to a window and sinks."""
