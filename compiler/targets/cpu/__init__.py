"""The host's processor: operators on blocks of channels, schedules, machine code through LLVM."""
