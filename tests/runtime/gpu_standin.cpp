// A stand-in for libcuda on the host's processor: enough of the driver to test a launcher, its memory and its graph.
//
// A "cubin" is the path of a library of emulated kernels. A pointer on the device is one on the host that is XORed with KEY, so that
// a kernel which got a pointer of the host, or a host that reads one of the device, does not work. What is launched while a stream is
// captured runs only when the graph does.
#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

constexpr uint64_t KEY = 0x5500000000000000u;
constexpr int OK = 0, INVALID_VALUE = 1, NOT_INITIALISED = 3, NO_DEVICE = 100, NOT_FOUND = 500, FAILED = 719;

using Entry = int (*)(void**, const unsigned*, int, uint64_t*);
// A tensor map as emulated kernels read it (runtime/gpu/warpgroup.h).
struct Map {
  uint64_t address, rank, element_bytes, row_bytes, shape[5], box[5], unused[2];
};
struct Launch {
  Entry entry;
  unsigned sizes[6];
  std::vector<void*> arguments;
  std::vector<Map> maps;  // the last arguments
};
struct Function {
  Entry entry;
  size_t arguments, maps;
  unsigned shared = 48 << 10;
};
struct Stream {
  bool capturing = false;
  std::vector<Launch> recorded;
};
struct Graph {
  std::vector<Launch> launches;
};

bool initialised = false;
int replays = 0, launches = 0;

int run(const Launch& launch) {
  std::vector<void*> arguments = launch.arguments;
  std::vector<Map> maps = launch.maps;
  for (Map& map : maps) arguments.push_back(&map);
  uint64_t counts[3] = {};
  return launch.entry(arguments.data(), launch.sizes, 0, counts) ? FAILED : OK;
}

}  // namespace

extern "C" {

int cuInit(unsigned flags) {
  if (getenv("VDLA_STANDIN_FAILS")) return NO_DEVICE;
  initialised = true;
  return flags ? INVALID_VALUE : OK;
}
int cuGetErrorName(int status, const char** text) {
  *text = status == NO_DEVICE ? "CUDA_ERROR_NO_DEVICE" : status == NOT_FOUND ? "CUDA_ERROR_NOT_FOUND" : "CUDA_ERROR";
  return OK;
}
int cuDeviceGetCount(int* count) {
  *count = getenv("VDLA_STANDIN_EMPTY") ? 0 : 1;
  return initialised ? OK : NOT_INITIALISED;
}
int cuDeviceGet(int* device, int number) {
  *device = number;
  return number ? INVALID_VALUE : OK;
}
int cuDeviceGetName(char* name, int size, int) {
  snprintf(name, size, "stand-in");
  return OK;
}
int cuDriverGetVersion(int* version) {
  *version = 13020;
  return OK;
}
int cuDeviceGetAttribute(int* value, int attribute, int) {
  *value = attribute == 75 ? 9 : 0;
  return OK;
}
int cuDevicePrimaryCtxRetain(void** context, int) {
  *context = &initialised;
  return OK;
}
int cuCtxSetCurrent(void* context) { return context == &initialised ? OK : INVALID_VALUE; }
int cuModuleLoadData(void** module, const char* path) {
  *module = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  return *module ? OK : INVALID_VALUE;
}
int cuModuleGetFunction(void** function, void* module, const char* name) {
  auto entry = reinterpret_cast<Entry>(dlsym(module, (std::string("emulate_") + name).c_str()));
  auto count = reinterpret_cast<int (*)()>(dlsym(module, (std::string("arguments_") + name).c_str()));
  auto maps = reinterpret_cast<int (*)()>(dlsym(module, (std::string("maps_") + name).c_str()));
  if (!entry || !count || !maps) return NOT_FOUND;
  *function = new Function{entry, static_cast<size_t>(count()), static_cast<size_t>(maps())};
  return OK;
}
int cuFuncSetAttribute(Function* function, int attribute, int value) {
  if (attribute != 8 || value > 227 << 10) return INVALID_VALUE;
  function->shared = value;
  return OK;
}
int cuTensorMapEncodeTiled(Map* map, int dtype, unsigned rank, uint64_t address, const uint64_t* shape, const uint64_t* strides,
                           const unsigned* box, const unsigned* steps, int interleave, int swizzle, int, int fill) {
  if (dtype > 2 || rank < 2 || rank > 5 || address % 16 || interleave || swizzle < 1 || swizzle > 3 || fill) return INVALID_VALUE;
  if (reinterpret_cast<uint64_t>(map) % 64) return INVALID_VALUE;
  *map = Map{address ^ KEY, rank, uint64_t(1) << dtype, uint64_t(16) << swizzle, {1, 1, 1, 1, 1}, {1, 1, 1, 1, 1}, {}};
  uint64_t stride = map->element_bytes;
  for (unsigned d = 0; d < rank; ++d) {
    if (box[d] > 256 || steps[d] != 1 || (d && strides[d - 1] != stride) || (d && stride % 16)) return INVALID_VALUE;
    map->shape[d] = shape[d];
    map->box[d] = box[d];
    stride *= shape[d];
  }
  return box[0] * map->element_bytes == map->row_bytes ? OK : INVALID_VALUE;
}
int cuStreamCreate(void** stream, unsigned) {
  *stream = new Stream;
  return OK;
}
int cuMemAlloc_v2(uint64_t* pointer, size_t size) {
  *pointer = reinterpret_cast<uint64_t>(aligned_alloc(256, (size + 255) / 256 * 256)) ^ KEY;
  return size ? OK : INVALID_VALUE;
}
int cuMemFree_v2(uint64_t pointer) {
  free(reinterpret_cast<void*>(pointer ^ KEY));
  return OK;
}
int cuMemcpyHtoD_v2(uint64_t to, const void* from, size_t size) {
  memcpy(reinterpret_cast<void*>(to ^ KEY), from, size);
  return OK;
}
int cuMemcpyDtoH_v2(void* to, uint64_t from, size_t size) {
  memcpy(to, reinterpret_cast<void*>(from ^ KEY), size);
  return OK;
}
int cuStreamBeginCapture_v2(Stream* stream, int) {
  if (stream->capturing) return INVALID_VALUE;
  stream->capturing = true;
  return OK;
}
int cuLaunchKernel(Function* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, Stream* stream, void** values, void**) {
  if (shared > function->shared) return INVALID_VALUE;
  Launch launch{function->entry, {gx, gy, gz, bx, by, bz}, {}, {}};
  size_t pointers = function->arguments - function->maps;
  for (size_t i = 0; i < function->arguments; ++i)
    if (i < pointers)
      launch.arguments.push_back(reinterpret_cast<void*>(*static_cast<uint64_t*>(values[i]) ^ KEY));
    else
      launch.maps.push_back(*static_cast<Map*>(values[i]));
  ++launches;
  if (!stream->capturing) return run(launch);
  stream->recorded.push_back(launch);
  return OK;
}
int cuStreamEndCapture(Stream* stream, Graph** graph) {
  if (!stream->capturing) return INVALID_VALUE;
  *graph = new Graph{stream->recorded};
  stream->recorded.clear();
  stream->capturing = false;
  return OK;
}
int cuGraphInstantiateWithFlags(Graph** ready, Graph* graph, uint64_t) {
  *ready = new Graph(*graph);
  return OK;
}
int cuGraphLaunch(Graph* graph, Stream* stream) {
  if (stream->capturing) return INVALID_VALUE;
  ++replays;
  for (const Launch& launch : graph->launches)
    if (int status = run(launch)) return status;
  return OK;
}
int cuStreamSynchronize(Stream* stream) { return stream->capturing ? INVALID_VALUE : OK; }
int cuEventCreate(void** event, unsigned flags) {
  *event = new double(-1);
  return flags ? INVALID_VALUE : OK;
}
int cuEventRecord(double* event, Stream* stream) {
  *event = replays;  // a replay takes a millisecond here
  return stream->capturing ? INVALID_VALUE : OK;
}
int cuEventElapsedTime(float* found_ms, double* before, double* after) {
  if (*before < 0 || *after < 0) return INVALID_VALUE;
  *found_ms = static_cast<float>(*after - *before);
  return OK;
}
int cuEventDestroy_v2(double* event) {
  delete event;
  return OK;
}
int standin_replays() { return replays; }
int standin_launches() { return launches; }
}
