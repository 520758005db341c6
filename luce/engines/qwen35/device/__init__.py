"""The Qwen3.5 engine on a GPU, written against :mod:`luce.compute.device`; it also runs on the kernels' host build."""
