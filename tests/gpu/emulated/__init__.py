"""A GPU that a CPU emulates, for tests/gpu on machines without one."""
