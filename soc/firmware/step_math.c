/* Of the C library what code of steps may call beside the compiler's own functions. */
float rintf(float x) {
    const float whole = 8388608.0f; /* 2**23: from here on all float32 are whole */
    float size = __builtin_fabsf(x);
    if (!(size < whole)) return x;
    volatile float rounded = size + whole;
    return __builtin_copysignf(rounded - whole, x);
}
