"""Runs compiled models without the compiler: layouts, native code, programs, saved modules."""
