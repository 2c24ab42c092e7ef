"""Our daemon and what people would pick instead, at the same workloads, turn by turn."""
