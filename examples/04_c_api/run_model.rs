// Runs a compiled model from Rust: run_model PARAMETERS INPUTS OUTPUTS
//
// INPUTS holds the bytes of all inputs, one after the other, of as many inferences as there are;
// OUTPUTS gets those of all outputs in the same way. run.py, next to this file, builds and calls it:
//
//     vdla compile model.onnx --target cpu -o folder
//     rustc -O run_model.rs -C link-arg=folder/model.so -C link-arg=-Wl,-rpath,folder
use std::alloc::{alloc_zeroed, Layout};
use std::ffi::{c_char, c_void, CStr};
use std::fs;
use std::process::exit;
use std::slice;

/// VDLA_API_VERSION and VDLA_ALIGN_BYTES of vdla.h, whose structures follow.
const API_VERSION: u32 = 1;
const ALIGN_BYTES: usize = 64;

#[repr(C)]
struct Tensor {
    name: *const c_char,
    dtype: *const c_char,
    shape: *const u64,
    rank: u32,
    bytes: u64,
}

#[repr(C)]
struct Model {
    api_version: u32,
    parameters_crc32: u32,
    parameters_bytes: u64,
    arena_bytes: u64,
    input_count: u32,
    output_count: u32,
    inputs: *const Tensor,
    outputs: *const Tensor,
    run: unsafe extern "C" fn(*const *const c_void, *const *mut c_void, *const c_void, *mut c_void),
}

extern "C" {
    static vdla_model: Model;
}

/// Memory for the model: aligned, and there until the program ends.
fn buffer(bytes: u64) -> &'static mut [u8] {
    let layout = Layout::from_size_align((bytes as usize).max(1), ALIGN_BYTES).unwrap();
    // SAFETY: the layout is not empty, and nobody else has the memory.
    unsafe { slice::from_raw_parts_mut(alloc_zeroed(layout), bytes as usize) }
}

/// CRC-32, as zlib has it.
fn crc32(data: &[u8]) -> u32 {
    !data.iter().fold(!0u32, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg()))
    })
}

/// The tensor as a line: its name, type and shape.
fn describe(kind: &str, tensor: &Tensor) -> String {
    // SAFETY: strings and shapes of a model live as long as its library.
    unsafe {
        let shape = slice::from_raw_parts(tensor.shape, tensor.rank as usize);
        let text = |at| CStr::from_ptr(at).to_string_lossy();
        let sizes: Vec<String> = shape.iter().map(u64::to_string).collect();
        format!("{kind} {}: {}[{}]", text(tensor.name), text(tensor.dtype), sizes.join(","))
    }
}

fn run(parameters_path: &str, inputs_path: &str, outputs_path: &str) -> Result<usize, String> {
    let at = |path: &str, error: &dyn ToString| format!("{path}: {}", error.to_string());
    // SAFETY: the model is linked, and its tables have the lengths beside them.
    let (model, inputs, outputs) = unsafe {
        let model = &*std::ptr::addr_of!(vdla_model);
        let inputs = slice::from_raw_parts(model.inputs, model.input_count as usize);
        (model, inputs, slice::from_raw_parts(model.outputs, model.output_count as usize))
    };
    if model.api_version != API_VERSION {
        return Err(format!("expected a model of version {API_VERSION} of vdla.h, got {}", model.api_version));
    }
    inputs.iter().for_each(|tensor| println!("{}", describe("input", tensor)));
    outputs.iter().for_each(|tensor| println!("{}", describe("output", tensor)));
    let file = fs::read(parameters_path).map_err(|error| at(parameters_path, &error))?;
    if file.len() as u64 != model.parameters_bytes || crc32(&file) != model.parameters_crc32 {
        return Err(at(parameters_path, &"expected the parameters of this model, got another file"));
    }
    let parameters = buffer(model.parameters_bytes);
    parameters.copy_from_slice(&file);
    let arena = buffer(model.arena_bytes);
    let mut given: Vec<&mut [u8]> = inputs.iter().map(|tensor| buffer(tensor.bytes)).collect();
    let mut made: Vec<&mut [u8]> = outputs.iter().map(|tensor| buffer(tensor.bytes)).collect();

    let source = fs::read(inputs_path).map_err(|error| at(inputs_path, &error))?;
    let each: usize = inputs.iter().map(|tensor| tensor.bytes as usize).sum();
    if each == 0 || source.len() % each != 0 {
        return Err(at(inputs_path, &"expected whole inputs, it ends within one"));
    }
    let mut results = Vec::new();
    for sample in source.chunks(each) {
        let mut rest = sample;
        for bytes in &mut given {
            let (own, others) = rest.split_at(bytes.len());
            bytes.copy_from_slice(own);
            rest = others;
        }
        let from: Vec<*const c_void> = given.iter().map(|bytes| bytes.as_ptr().cast()).collect();
        let to: Vec<*mut c_void> = made.iter_mut().map(|bytes| bytes.as_mut_ptr().cast()).collect();
        // SAFETY: all buffers have the sizes and the alignment that the model says.
        unsafe { (model.run)(from.as_ptr(), to.as_ptr(), parameters.as_ptr().cast(), arena.as_mut_ptr().cast()) };
        made.iter().for_each(|bytes| results.extend_from_slice(bytes));
    }
    fs::write(outputs_path, results).map_err(|error| at(outputs_path, &error))?;
    Ok(source.len() / each)
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [parameters, inputs, outputs] = arguments.as_slice() else {
        eprintln!("run_model: arguments: expected PARAMETERS INPUTS OUTPUTS");
        exit(1);
    };
    match run(parameters, inputs, outputs) {
        Ok(count) => println!("{count} inferences"),
        Err(error) => {
            eprintln!("run_model: {error}");
            exit(1);
        }
    }
}
