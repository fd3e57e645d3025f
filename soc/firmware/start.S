/* Where the processor starts, and where its traps go: only the core interrupts it. */
#include "vdla_registers.h"

/* For each register that a function may change: `what` it at its place on the stack. */
.macro for_saved what
    .set place, 0
    .irp n, 1, 5, 6, 7, 10, 11, 12, 13, 14, 15, 16, 17, 28, 29, 30, 31
    \what x\n, place(sp)
    .set place, place + 4
    .endr
.endm

    .section .start, "ax"
    .globl start
start:
    la sp, stack_end
    la t0, trap
    csrw mtvec, t0
    la t0, bss_begin
    la t1, bss_end
1:  bgeu t0, t1, 2f
    sw zero, 0(t0)
    addi t0, t0, 4
    j 1b
2:  call main
3:  j 3b

    .balign 4
trap:
    addi sp, sp, -64
    for_saved sw
    csrr a0, mcause
    csrr a1, mepc
    call on_trap
    for_saved lw
    addi sp, sp, 64
    mret
