"""The targets, each with its operators, schedules and code generator."""
