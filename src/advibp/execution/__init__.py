"""How a user's module is run: input copies, modes, BatchNorm statistics, memory, seeds."""
