// SPDX-License-Identifier: Apache-2.0
#include "program.h"

#include <tvm/ffi/error.h>

#include <cstdlib>
#include <set>
#include <sstream>
#include <utility>

#include "loader.h"
#include "sha256.h"
#include "statistics.h"

#if !defined(ROMOU_VERSION)
#error "set ROMOU_VERSION to the version of romou, as a text"
#endif

namespace romou::opencl {
namespace {

/// Build options of the user and of the source: romou/compiler/passes/division.py marks divisions whose last bit counts.
std::string build_options(const Device& device, const std::string& source) {
  const char* given = std::getenv("ROMOU_OPENCL_BUILD_OPTIONS");
  std::string options = given == nullptr ? "" : given;
  if (const std::string own = device.build_options(); !own.empty()) options += " " + own;
  if (device.facts().divides_exactly && source.find("/* correctly rounded */") != std::string::npos) {
    options += " -cl-fp32-correctly-rounded-divide-sqrt";
  }
  // romou/devices/backends/opencl/dot_products.py asks for it.
  if (device.facts().has_vnni && source.find("ROMOU_VNNI") != std::string::npos) options += " -DROMOU_VNNI";
  return options;
}

}  // namespace

std::string program_key(const Device& device, const std::string& name, const std::string& source) {
  const DeviceFacts& facts = device.facts();
  std::string all;
  for (const std::string& part : {std::string("opencl"), std::string(ROMOU_VERSION), facts.platform, facts.platform_version, facts.vendor, facts.name,
                                  facts.version, facts.driver, build_options(device, source), name, source}) {
    all += std::to_string(part.size()) + ":" + part;
  }
  return sha256_hex(all);
}

namespace {

std::string build_log(cl_program program, cl_device_id id) {
  size_t bytes = 0;
  api().clGetProgramBuildInfo(program, id, CL_PROGRAM_BUILD_LOG, 0, nullptr, &bytes);
  std::string log(bytes, '\0');
  if (bytes != 0) api().clGetProgramBuildInfo(program, id, CL_PROGRAM_BUILD_LOG, bytes, log.data(), nullptr);
  while (!log.empty() && (log.back() == '\0' || log.back() == '\n')) log.pop_back();
  return log;
}

std::string with_log(const std::string& name, const std::string& source, const std::string& log) {
  return "source saved in " + save_source(name, source) + "\nbuild log:\n" + log;
}

/// Compile a source. Return the code of the call that failed, or CL_SUCCESS. `made` is the program, also of a failed build.
cl_int compile_source(Device& device, const std::string& name, const std::string& source, const std::string& options, Program& made) {
  const char* content = source.c_str();
  const size_t length = source.size();
  cl_int code = CL_SUCCESS;
  made = Program(api().clCreateProgramWithSource(device.context(), 1, &content, &length, &code));
  device.check(code, "clCreateProgramWithSource", name);
  cl_device_id id = device.id();
  return api().clBuildProgram(made.get(), 1, &id, options.c_str(), nullptr, nullptr);
}

}  // namespace

std::string joined(const std::vector<std::string>& sources) {
  std::string all;
  std::set<std::string> functions;
  for (const std::string& source : sources) {
    std::string text;
    bool is_inside = false;
    std::istringstream lines(source);
    for (std::string line; std::getline(lines, line);) {
      text += line + "\n";
      const bool is_start = !is_inside && !line.empty() && line[0] != '#' && line.find('{') != std::string::npos;
      is_inside = is_inside ? line != "}" : is_start && line.back() == '{';
      if (is_inside) continue;
      const bool is_function = (is_start || line == "}") && text.rfind("__kernel", 0) != 0;
      if (!is_function || functions.insert(text).second) all += text;
      text.clear();
    }
    all += text;
  }
  return all;
}

std::shared_ptr<const Program> compile_together(Device& device, const std::string& source) {
  Program made;
  const cl_int code = compile_source(device, "", source, build_options(device, source), made);
  return code == CL_SUCCESS ? std::make_shared<const Program>(std::move(made)) : nullptr;
}

void Kernel::build(Device& device, const std::string& name, const std::string& source, ProgramCache* cache) {
  if (handle) return;
  if (!program && cache != nullptr && cache->is_usable()) {
    const std::string key = key_ = program_key(device, name, source);
    const auto entry = cache->find(key, name);
    if (entry.has_value() && entry->kind == ProgramCache::Kind::kRefused) refuse(device, name, source, entry->content, *cache);
    const bool is_binary = entry.has_value() && entry->kind == ProgramCache::Kind::kBinary;
    if (is_binary && cache->loads_binaries() && load(device, name, source, entry->content, *cache)) return;
    // A program that may not be loaded is not written either.
    if (!cache->loads_binaries() || (entry.has_value() && entry->kind == ProgramCache::Kind::kSourceOnly)) key_.clear();
    const ProgramCache::Attempt attempt(*cache, key, ProgramCache::Work::kCompile);
    if (const auto crash = attempt.may_go_on() ? std::nullopt : cache->find(key, name)) refuse(device, name, source, crash->content, *cache);
    compile(device, name, source, cache);
    return create(device, name, program->get());
  }
  if (!program) compile(device, name, source, nullptr);
  create(device, name, program->get());
}

void Kernel::refuse(Device& device, const std::string& name, const std::string& source, const std::string& log, const ProgramCache& cache) {
  const std::string path = cache.path_of(program_key(device, name, source));
  key_.clear();
  device.check(CL_BUILD_PROGRAM_FAILURE, "clBuildProgram", name, "refused before, to try again remove " + path + "; " + with_log(name, source, log));
}

void Kernel::compile(Device& device, const std::string& name, const std::string& source, ProgramCache* cache) {
  Program made;
  const cl_int code = compile_source(device, name, source, build_options(device, source), made);
  if (code != CL_SUCCESS) {
    const std::string log = build_log(made.get(), device.id());
    // Other codes, such as no memory or a lost device, may not occur the next time.
    if (code == CL_BUILD_PROGRAM_FAILURE && cache != nullptr && !key_.empty()) cache->store(key_, ProgramCache::Kind::kRefused, log);
    device.check(code, "clBuildProgram", name, with_log(name, source, log));
  }
  program = std::make_shared<const Program>(std::move(made));
}

bool Kernel::load(Device& device, const std::string& name, const std::string& source, const std::string& binary, ProgramCache& cache) {
  const ProgramCache::Attempt attempt(cache, key_, ProgramCache::Work::kLoad);
  if (!attempt.may_go_on()) {
    key_.clear();
    return false;
  }
  const size_t length = binary.size();
  const auto* bytes = reinterpret_cast<const unsigned char*>(binary.data());
  cl_device_id id = device.id();
  cl_int status = CL_SUCCESS, code = CL_SUCCESS;
  Program made(api().clCreateProgramWithBinary(device.context(), 1, &id, &length, &bytes, &status, &code));
  if (code == CL_SUCCESS) code = status;
  if (code == CL_SUCCESS) code = api().clBuildProgram(made.get(), 1, &id, build_options(device, source).c_str(), nullptr, nullptr);
  KernelObject created;
  if (code == CL_SUCCESS) created = KernelObject(api().clCreateKernel(made.get(), name.c_str(), &code));
  if (code != CL_SUCCESS) {
    cache.note("the driver does not take the kept program of " + name + " (" + error_name(code) + "), which is compiled again");
    cache.remove(key_);
    return false;
  }
  program = std::make_shared<const Program>(std::move(made));
  handle = std::move(created);
  is_from_cache = true;
  key_.clear();
  return true;
}

bool Kernel::keep(const std::string& name, ProgramCache& cache) {
  const std::string key = std::exchange(key_, {});
  if (key.empty() || !program || !cache.is_usable()) return false;
  size_t bytes = 0;
  cl_int code = api().clGetProgramInfo(program->get(), CL_PROGRAM_BINARY_SIZES, sizeof(bytes), &bytes, nullptr);
  std::string binary(code == CL_SUCCESS ? bytes : 0, '\0');
  char* start = binary.data();
  if (code == CL_SUCCESS && bytes != 0) code = api().clGetProgramInfo(program->get(), CL_PROGRAM_BINARIES, sizeof(start), &start, nullptr);
  if (code != CL_SUCCESS || bytes == 0) {
    cache.note("the driver gives no binary of " + name + " (" + error_name(code) + ")");
    return false;
  }
  return cache.store(key, ProgramCache::Kind::kBinary, binary);
}

void Kernel::create(Device& device, const std::string& name, cl_program built) {
  cl_int code = CL_SUCCESS;
  handle = KernelObject(api().clCreateKernel(built, name.c_str(), &code));
  device.check(code, "clCreateKernel", name);
}

void Kernel::set_argument(Device& device, const std::string& name, size_t index, size_t bytes, const void* value) {
  const cl_int code = api().clSetKernelArg(handle.get(), static_cast<cl_uint>(index), bytes, value);
  if (code != CL_SUCCESS) device.check(code, "clSetKernelArg", name, "argument " + std::to_string(index));
}

void Kernel::enqueue(Device& device, Device::Queue& queue, const std::string& name, cl_uint dimensions, const size_t* global,
                     const size_t* local) {
  cl_event event = nullptr;
  const bool is_logged = queue.is_logging();
  const cl_int code =
      api().clEnqueueNDRangeKernel(queue.handle(), handle.get(), dimensions, nullptr, global, local, 0, nullptr, is_logged ? &event : nullptr);
  if (code != CL_SUCCESS) {
    std::ostringstream detail;
    const char* names[] = {"global", "local"};
    const size_t* sizes[] = {global, local};
    for (int which = 0; which < 2; ++which) {
      detail << names[which] << " size (";
      for (cl_uint i = 0; i < dimensions; ++i) detail << (i ? ", " : "") << sizes[which][i];
      detail << "), ";
    }
    size_t allowed = 0;
    api().clGetKernelWorkGroupInfo(handle.get(), device.id(), CL_KERNEL_WORK_GROUP_SIZE, sizeof(allowed), &allowed, nullptr);
    detail << "the kernel allows a work group of " << allowed << ", the device of " << device.facts().max_work_group_size;
    device.check(code, "clEnqueueNDRangeKernel", name, detail.str());
  }
  statistics().launches += 1;
  if (is_logged) queue.log_event(Event(event));
}

}  // namespace romou::opencl
