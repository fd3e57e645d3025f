"""The hardware in three rooms, each of which imports only those below it: boards, what is for FPGAs
(fpga), the core (core).
"""
