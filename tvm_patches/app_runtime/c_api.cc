// SPDX-License-Identifier: Apache-2.0
//
// The functions of romou.h.
#include <exception>
#include <new>
#include <string>

#include "model.h"
#include "romou.h"

struct romou_model : romou::app::Model {
  using Model::Model;
};

namespace romou::app {
namespace {

thread_local std::string last_error;

/// Do `work`, and return the code of the error that ends it.
template <typename Work>
romou_status guarded(Work work) noexcept {
  const auto fail = [](romou_status status, const char* text) {
    try {
      last_error = text;
    } catch (...) {
      last_error.clear();
    }
    return status;
  };
  try {
    work();
    return ROMOU_OK;
  } catch (const Failure& failure) {
    return fail(failure.status, failure.what());
  } catch (const std::bad_alloc&) {
    return fail(ROMOU_NO_MEMORY, "there is not enough memory");
  } catch (const std::exception& error) {
    return fail(ROMOU_FAILED, error.what());
  } catch (...) {
    return fail(ROMOU_FAILED, "an unknown error");
  }
}

template <typename Pointer>
Pointer given(Pointer pointer, const char* what) {
  if (pointer == nullptr) throw Failure(ROMOU_INVALID, std::string(what) + " is NULL");
  return pointer;
}

void open(Files& files, const romou_options* options, romou_model** model) { *model = new romou_model(files, options == nullptr ? romou_options{} : *options); }

}  // namespace
}  // namespace romou::app

using romou::app::given;
using romou::app::guarded;

romou_status romou_open(const char* folder, const romou_options* options, romou_model** model) {
  return guarded([&] {
    *given(model, "model") = nullptr;
    romou::app::Folder files(given(folder, "folder"));
    romou::app::open(files, options, model);
  });
}

romou_status romou_open_memory(const romou_file* files, size_t count, const romou_options* options, romou_model** model) {
  return guarded([&] {
    *given(model, "model") = nullptr;
    romou::app::InMemory in_memory(count == 0 ? files : given(files, "files"), count);
    romou::app::open(in_memory, options, model);
  });
}

void romou_close(romou_model* model) {
  guarded([&] { delete model; });
}

size_t romou_input_count(const romou_model* model) { return model == nullptr ? 0 : model->input_count(); }
size_t romou_output_count(const romou_model* model) { return model == nullptr ? 0 : model->output_count(); }

romou_status romou_input(const romou_model* model, size_t index, romou_tensor* tensor) {
  return guarded([&] { *given(tensor, "tensor") = given(model, "model")->input(index); });
}

romou_status romou_output(const romou_model* model, size_t index, romou_tensor* tensor) {
  return guarded([&] { *given(tensor, "tensor") = given(model, "model")->output(index); });
}

romou_status romou_reshape(romou_model* model, const char* input, const int64_t* shape, size_t rank) {
  return guarded([&] {
    const int64_t* sides = rank == 0 ? shape : given(shape, "shape");
    given(model, "model")->reshape(given(input, "input"), std::vector<int64_t>(sides, sides + rank));
  });
}

romou_status romou_set(romou_model* model, const char* input, const void* data, size_t bytes) {
  return guarded([&] { given(model, "model")->set(given(input, "input"), bytes == 0 ? data : given(data, "data"), bytes); });
}

romou_status romou_run(romou_model* model) {
  return guarded([&] {
    given(model, "model")->start();
    model->wait();
  });
}

romou_status romou_start(romou_model* model) {
  return guarded([&] { given(model, "model")->start(); });
}

romou_status romou_wait(romou_model* model) {
  return guarded([&] { given(model, "model")->wait(); });
}

romou_status romou_get(romou_model* model, const char* output, void* data, size_t bytes) {
  return guarded([&] { given(model, "model")->get(given(output, "output"), bytes == 0 ? data : given(data, "data"), bytes); });
}

romou_status romou_decode(romou_model* model, const int64_t* tokens, size_t count, int64_t* next) {
  return guarded([&] {
    given(next, "next");
    *next = given(model, "model")->decode(count == 0 ? tokens : given(tokens, "tokens"), count);
  });
}

romou_status romou_rewind(romou_model* model, size_t count) {
  return guarded([&] { given(model, "model")->rewind(count); });
}

romou_status romou_map(romou_model* model, const char* name, void** data) {
  return guarded([&] {
    *given(data, "data") = nullptr;
    *data = given(model, "model")->map(given(name, "name"));
  });
}

romou_status romou_unmap(romou_model* model, const char* name) {
  return guarded([&] { given(model, "model")->unmap(given(name, "name")); });
}

const char* romou_about(const romou_model* model) { return model == nullptr ? "" : model->about().c_str(); }
const char* romou_error(void) { return romou::app::last_error.c_str(); }
const char* romou_version(void) { return ROMOU_VERSION; }
