; |0 - (-7)| = 7 into four entries of tmp
vector op=absdiff src0=tmp src1=imm dst=tmp imm=-7 extents=1,1,1,4 src0_strides=0,0,0,1 dst_strides=0,0,0,1
