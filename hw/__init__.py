"""The hardware in three packages, each of which imports only those below it: ``boards``, the FPGA
flow (``fpga``), and the core (``core``).
"""
