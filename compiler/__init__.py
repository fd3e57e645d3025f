"""The compiler: graph, tensor expressions, loop programs, code generators."""
