// A tensor core of one's own for the configuration 4x4, with the ports of hw/core/gemm.py. It is another design than the
// toolkit's: multipliers in place of counters compute the entries, the sum waits for its accumulator, and the last two
// results are forwarded just before the addition. Its cycles are those of docs/timing.md. It does not report errors.
//
//     vdla cosim examples/models/digits_int8.onnx --hw 4x4 --replace gemm=examples/07_cosim/my_gemm.sv
//     vdla cosim examples/models/digits_int8.onnx --hw 4x4 --record gemm=gemm.rec
//     vdla cosim --replay gemm.rec --replace gemm=examples/07_cosim/my_gemm.sv
module my_gemm (
  input clk, rst,
  input [279:0] unit__insn__payload, input unit__insn__valid, output unit__insn__ready,
  input [3:0] unit__available,
  output unit__start, unit__end, unit__busy, unit__stalled,
  output [3:0] unit__pop, unit__push, unit__waiting, unit__error,
  output [23:0] unit__error_index,
  output [9:0] uop__addr, input [32:0] uop__data,
  output [10:0] inp__addr, input [31:0] inp__data,
  output [10:0] wgt__addr, input [127:0] wgt__data,
  output [9:0] acc__addr, input [127:0] acc__data,
  output acc_write__en, output [9:0] acc_write__addr, output [127:0] acc_write__data
);
  typedef struct packed {  // from the highest bit on, as docs/isa.md lists them from the lowest
    logic [10:0] wgt_inner, wgt_outer, inp_inner, inp_outer;
    logic [9:0] acc_inner, acc_outer;
    logic [11:0] inner, outer;
    logic [10:0] uop_count;
    logic [9:0] uop_begin;
    logic init;
    logic [3:0] push, pop;
    logic [2:0] opcode;
  } insn_t;

  // Taking instructions.
  localparam logic [3:0] SELF = 4'b0010;
  wire insn_t head = unit__insn__payload[$bits(insn_t)-1:0];
  logic running = 0;
  insn_t insn;
  logic [10:0] u;
  logic [11:0] i, o;
  wire u_ends = u + 1 == insn.uop_count, i_ends = i + 1 == insn.inner, o_ends = o + 1 == insn.outer;
  wire final_one = u_ends && i_ends && o_ends;
  wire ready = !running || final_one;
  wire [3:0] missing = head.pop & ~unit__available & ~SELF;
  wire start = unit__insn__valid && ready && missing == 0;
  assign unit__insn__ready = start;
  assign unit__start = start;
  assign unit__pop = start ? head.pop : 0;
  assign unit__waiting = unit__insn__valid && ready ? missing : 0;
  assign unit__busy = running || start;
  assign unit__stalled = 0;
  assign unit__error = 0;
  assign unit__error_index = 0;

  always_ff @(posedge clk) begin
    if (running) begin
      u <= u_ends ? 0 : u + 1;
      if (u_ends) i <= i_ends ? 0 : i + 1;
      if (u_ends && i_ends) o <= o + 1;
      if (final_one) running <= 0;
    end
    if (start) begin
      insn <= head;
      {u, i, o} <= 0;
      running <= 1;
    end
    if (rst) running <= 0;
  end

  // What travels with an iteration; s[k] is the one that was issued k cycles ago.
  typedef struct packed {
    logic valid, last, init;
    logic [3:0] push;
    logic [9:0] acc;
    logic [10:0] inp, wgt;
  } step_t;
  step_t s [1:9];
  logic [127:0] sum [4:7], result [8:9];

  assign uop__addr = insn.uop_begin + u[9:0];
  assign inp__addr = s[2].inp;
  assign wgt__addr = s[2].wgt;
  assign acc__addr = s[6].acc;
  assign acc_write__en = s[8].valid;
  assign acc_write__addr = s[8].acc;
  assign acc_write__data = result[8];
  assign unit__end = s[8].valid && s[8].last;
  assign unit__push = unit__end ? s[8].push : 0;

  function automatic [127:0] products(input [31:0] x, input [127:0] w);
    for (int row = 0; row < 4; row++) begin
      automatic logic signed [31:0] total = 0;
      for (int k = 0; k < 4; k++) total += 32'($signed(x[8*k+:8])) * 32'($signed(w[8*(4*row+k)+:8]));
      products[32*row+:32] = total;
    end
  endfunction

  function automatic [127:0] add(input [127:0] a, input [127:0] b);
    for (int row = 0; row < 4; row++) add[32*row+:32] = a[32*row+:32] + b[32*row+:32];
  endfunction

  // The memory shows what was written two cycles ago and before.
  wire [127:0] held = s[8].valid && s[8].acc == s[7].acc ? result[8]
                    : s[9].valid && s[9].acc == s[7].acc ? result[9] : acc__data;

  always_ff @(posedge clk) begin
    s[1] <= '{running, final_one, insn.init, insn.push,
              10'(o * insn.acc_outer + i * insn.acc_inner),
              11'(o * insn.inp_outer + i * insn.inp_inner),
              11'(o * insn.wgt_outer + i * insn.wgt_inner)};
    s[2] <= s[1];
    s[2].acc <= s[1].acc + uop__data[9:0];
    s[2].inp <= s[1].inp + uop__data[20:10];
    s[2].wgt <= s[1].wgt + uop__data[31:21];
    s[2].init <= s[1].init && uop__data[32];
    for (int k = 3; k <= 9; k++) s[k] <= s[k-1];
    sum[4] <= products(inp__data, wgt__data);
    for (int k = 5; k <= 7; k++) sum[k] <= sum[k-1];
    result[8] <= add(s[7].init ? 128'b0 : held, sum[7]);
    result[9] <= result[8];
    if (rst) for (int k = 1; k <= 9; k++) s[k].valid <= 0;
  end
endmodule
