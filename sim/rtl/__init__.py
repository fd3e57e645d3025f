"""The RTL under Verilator."""
