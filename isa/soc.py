"""The system on a chip: where the processor finds what, and the registers beside the core's.

The RTL (``hw/soc``), the firmware's header and the images of models all take their numbers from
here.
"""

from __future__ import annotations

#: Byte addresses, of which the highest four bits choose: the processor's own memory, where it
#: begins; the memory that it shares with the core; registers, which no cache keeps.
RAM_BASE, DRAM_BASE, IO_BASE = 0x0000_0000, 0x4000_0000, 0xF000_0000
#: Of the registers: the core's with its peripheral's; the board's.
CORE_BASE, BOARD_BASE = IO_BASE, IO_BASE + 0x1000
#: Of the board, byte offsets. ``clock``: cycles since power-on; what is written goes as a byte to
#: the serial line, and the write ends when the line has it. ``flash``: the next word of the flash,
#: from the byte on that was written. ``leds``: what they show.
CLOCK, FLASH, LEDS = 0x0, 0x4, 0x8
#: LEDs that programs of the processor switch.
LED_COUNT = 7
RAM_BYTES = 16 << 10

#: Of the peripheral, byte offsets from the core's registers. ``window``: what is OR-ed to all
#: addresses of the core, a multiple of what its program takes. ``interrupt``: 1 where the core has
#: stopped since the last write.
WINDOW, INTERRUPT = 0x400, 0x404
#: The processor's interrupts: the core's, and that of its own requests to where nothing is.
INTERRUPT_LINE, FAULT_LINE = 0, 1
#: The flash: bits of an address, the command that reads, and where the image of a model begins,
#: behind the largest bitstream of the FPGA; what is left for it.
FLASH_ADDRESS_BITS, FLASH_READ, FLASH_IMAGE = 24, 0x03, 3 << 20
MOST_IMAGE_BYTES = (1 << FLASH_ADDRESS_BITS) - FLASH_IMAGE
#: Programs begin at multiples of this, where the banks of a memory begin again.
LEAST_WINDOW_BYTES = 64 << 10
#: The firmware's last byte on the serial line.
END_OF_TEXT = 0x04
