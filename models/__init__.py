"""What is computed: model families as Flax NNX modules and pure traced code.

This room knows mathematics, parameter names and logical axes. It does not know where weights come from, how a batch was
scheduled, or which device runs it. Shapes are written with one letter per dimension everywhere in the project:

    T tokens of a step      S context slots       D embedding          N query heads     K key/value heads
    G = N / K               H head dimension      F MLP hidden         V vocabulary      E experts
    X experts per token     R sequences (rows)    B cache blocks       P block size      L layers
"""
