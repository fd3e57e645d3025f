"""What code is generated for: each target with its operators, schedules and code generator."""
