"""The types that a draft can be quantised to, by their numbers in llama.cpp's headers."""

FILE_TYPES = {"Q8_0": 7, "Q6_K": 18, "Q5_K": 17, "Q4_K": 15, "Q4_1": 3, "Q4_0": 2, "F16": 1}
"""llama_ftype of a body type (llama.h)."""
TENSOR_TYPES = {"Q8_0": 8, "Q6_K": 14, "Q5_K": 13, "Q4_K": 12, "Q4_1": 3, "Q4_0": 2, "IQ4_NL": 20}
"""ggml_type of a head type (ggml.h)."""
SUPER_BLOCK = 256
TRAINED = {"Q4_K": SUPER_BLOCK, "Q4_1": 32, "Q8_0": 32}
"""What a draft can be trained for, and of what the lengths of its rows must be multiples."""
