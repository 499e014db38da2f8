"""Other people's multimodal models behind an OpenAI-compatible server, asked the benchmarks' expressions."""
