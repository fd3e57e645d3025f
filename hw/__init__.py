"""The hardware: the core (core), boards that it runs on (boards), bitstreams (fpga)."""
