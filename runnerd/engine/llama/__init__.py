"""llama.cpp through the low-level functions of llama-cpp-python."""
