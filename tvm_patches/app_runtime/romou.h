/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs models that `romou export` wrote, from C. Link with -lromou; TVM's runtime and Romou's lie beside it.
 *
 *   romou_model* model = NULL;
 *   if (romou_open("model", NULL, &model) != ROMOU_OK) return fail(romou_error());
 *   romou_set(model, "input", pixels, sizeof pixels);
 *   romou_run(model);
 *   romou_get(model, "logits", scores, sizeof scores);
 *   romou_close(model);
 *
 * A function that returns a code leaves its text in romou_error(), which belongs to the calling thread. Threads may share a model: their calls take
 * turns. Numbers are in C order, in the type that romou_tensor names. */
#ifndef ROMOU_H_
#define ROMOU_H_

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define ROMOU_API __attribute__((visibility("default")))
#else
#define ROMOU_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef struct romou_model romou_model;

typedef enum romou_status {
  ROMOU_OK = 0,
  ROMOU_INVALID = 1,   /* an argument: an unknown name, a wrong size, an input that was never set */
  ROMOU_MISSING = 2,   /* a file of the model, or a library of the runtime */
  ROMOU_DAMAGED = 3,   /* a file that is not what was exported, or is for another processor or version */
  ROMOU_NO_DEVICE = 4, /* no device runs any variant of the model */
  ROMOU_FAILED = 5,    /* the device or its driver, in the midst of work */
  ROMOU_NO_MEMORY = 6
} romou_status;

/* How a model is opened. All zero is the default. */
typedef struct romou_options {
  /* Variant of the model, by the name of its folder. NULL: the first that suits a device, by the name that its driver gives it. */
  const char* variant;
  /* Folder for programs that the driver has compiled, so that the next start loads them. NULL: "programs" beside the variant, or none for a model in
   * memory. */
  const char* programs;
} romou_options;

/* A file of an exported model that lies in memory. Its name is relative to the folder: "model.json", "opencl-adreno640/weights.bin". */
typedef struct romou_file {
  const char* name;
  const void* data;
  size_t bytes;
} romou_file;

/* An input or an output. Texts and shape live as long as the model. */
typedef struct romou_tensor {
  const char* name;
  const char* dtype; /* "float32", "int64", ...; numbers of fewer than 8 bits and bfloat16 are stored as in `stored` */
  const char* stored;
  const int64_t* shape;
  size_t rank;
  size_t bytes;
} romou_tensor;

/* Open the model in a folder. Its programs are compiled, or loaded if an earlier start kept them. */
ROMOU_API romou_status romou_open(const char* folder, const romou_options* options, romou_model** model);
/* Open a model in memory, which may be given back when this returns. */
ROMOU_API romou_status romou_open_memory(const romou_file* files, size_t count, const romou_options* options, romou_model** model);
/* Free a model. NULL is allowed. */
ROMOU_API void romou_close(romou_model* model);

ROMOU_API size_t romou_input_count(const romou_model* model);
ROMOU_API size_t romou_output_count(const romou_model* model);
ROMOU_API romou_status romou_input(const romou_model* model, size_t index, romou_tensor* tensor);
ROMOU_API romou_status romou_output(const romou_model* model, size_t index, romou_tensor* tensor);

/* Give an input of a model of several shapes a shape: one of them, a smaller one if the model pads, or any size up to the bound of a size at run time. romou_input then describes it, and it has to be
 * set again. The run chooses the shape, and romou_output describes the outputs after romou_start or romou_run. A model of several shapes maps nothing. */
ROMOU_API romou_status romou_reshape(romou_model* model, const char* input, const int64_t* shape, size_t rank);
/* Copy an input to the device. It stays for later runs. */
ROMOU_API romou_status romou_set(romou_model* model, const char* input, const void* data, size_t bytes);
/* Run, and wait for the device. */
ROMOU_API romou_status romou_run(romou_model* model);
/* Start a run, and return without waiting for the device. Inputs may be set for the next run: the device takes commands in order. */
ROMOU_API romou_status romou_start(romou_model* model);
ROMOU_API romou_status romou_wait(romou_model* model);
/* Copy an output of the last run from the device, when the run is done. */
ROMOU_API romou_status romou_get(romou_model* model, const char* output, void* data, size_t bytes);

/* Read tokens of a language model's decoder, after the tokens that it has read, and return the most likely token that follows. Give it to the next call, with
 * what else there is to read. The caches of keys and values stay on the device. romou_get has the logits, to draw a token. A decoder has no inputs, and
 * romou_run does not run it. */
ROMOU_API romou_status romou_decode(romou_model* model, const int64_t* tokens, size_t count, int64_t* next);
/* Forget all tokens after the first `count`: 0 begins anew. Nothing is computed. If the decoder appends to its caches, the next call reads those tokens again. */
ROMOU_API romou_status romou_rewind(romou_model* model, size_t count);

/* Return the place of an input or an output in this process's memory, to write the whole input before a run, or to read the output after one. Nothing is
 * copied where the device shares memory with the processor: OpenCL on phones, plain code. No run may start until it is given back. */
ROMOU_API romou_status romou_map(romou_model* model, const char* name, void** data);
ROMOU_API romou_status romou_unmap(romou_model* model, const char* name);

/* What was opened, as JSON: variant, device, programs loaded and compiled, milliseconds of each step, and why other variants were left. It lives as
 * long as the model. */
ROMOU_API const char* romou_about(const romou_model* model);
/* The text of the calling thread's last error, or "". It lives until the thread's next call that fails. */
ROMOU_API const char* romou_error(void);
/* The version of Romou that this library belongs to. */
ROMOU_API const char* romou_version(void);

#ifdef __cplusplus
}
#endif

#endif /* ROMOU_H_ */
