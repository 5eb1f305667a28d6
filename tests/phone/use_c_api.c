/* Uses romou.h, for tests:
 *   use_c_api run FOLDER OUTPUTS INPUT.bin ...      run, from the folder and from memory, in all ways that there are, and write OUTPUTS/output0.bin ...
 *   use_c_api errors FOLDER                         call everything wrongly; print code and text of each call
 *   use_c_api open FOLDER                           only open; print code and text
 *   use_c_api several LINK FOLDER FOLDER            open two models of 4 x 8 numbers in memory and by LINK, which is made, in several orders; after each
 *                                                   step print the first number that each open model makes of inputs of -1 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "romou.h"

#define MOST 8

static int told(const char* what, romou_status status) {
  printf("%s: %d %s\n", what, (int)status, status == ROMOU_OK ? "" : romou_error());
  return status != ROMOU_OK;
}

static romou_file read_file(const char* folder, const char* name) {
  char path[4096];
  snprintf(path, sizeof path, "%s%s%s", folder, *folder ? "/" : "", name);
  romou_file read = {name, NULL, 0};
  FILE* file = fopen(path, "rb");
  if (file == NULL) exit(2);
  fseek(file, 0, SEEK_END);
  read.bytes = (size_t)ftell(file);
  rewind(file);
  void* data = malloc(read.bytes + 1);
  if (fread(data, 1, read.bytes, file) != read.bytes) exit(2);
  read.data = data;
  fclose(file);
  return read;
}

/* Run `model` by run (0), by start and wait (1), or with mapped inputs and outputs (2), and check that the outputs are `expected`, or keep them there. */
static int run(romou_model* model, char** inputs, int how, romou_file* expected) {
  for (size_t i = 0; i < romou_input_count(model); ++i) {
    romou_tensor tensor;
    if (told("input", romou_input(model, i, &tensor))) return 1;
    printf("%s %s %s %zu %zu:", tensor.name, tensor.dtype, tensor.stored, tensor.rank, tensor.bytes);
    for (size_t axis = 0; axis < tensor.rank; ++axis) printf(" %lld", (long long)tensor.shape[axis]);
    printf("\n");
    const romou_file file = read_file("", inputs[i]);
    void *place = NULL, *again = NULL;
    if (how == 2) {
      if (told("map", romou_map(model, tensor.name, &place))) return 1;
      memcpy(place, file.data, file.bytes);
      if (told("map again", romou_map(model, tensor.name, &again)) != 1 || again != NULL) return 1;
      if (told("set mapped", romou_set(model, tensor.name, file.data, file.bytes)) != 1) return 1;
      if (told("unmap", romou_unmap(model, tensor.name))) return 1;
      if (told("unmap again", romou_unmap(model, tensor.name)) != 1) return 1;
    } else if (told("set", romou_set(model, tensor.name, file.data, file.bytes))) {
      return 1;
    }
    free((void*)file.data);
  }
  if (how == 1 ? told("start", romou_start(model)) || told("wait", romou_wait(model)) : told("run", romou_run(model))) return 1;
  for (size_t i = 0; i < romou_output_count(model); ++i) {
    romou_tensor tensor;
    if (told("output", romou_output(model, i, &tensor))) return 1;
    void *data = malloc(tensor.bytes), *place = NULL;
    if (how == 2) {
      if (told("map output", romou_map(model, tensor.name, &place)) || memcmp(place, expected[i].data, tensor.bytes) != 0) return 1;
      if (told("run mapped", romou_run(model)) != 1) return 1;
      if (told("unmap output", romou_unmap(model, tensor.name))) return 1;
    }
    if (told("get", romou_get(model, tensor.name, data, tensor.bytes))) return 1;
    if (expected[i].data == NULL) {
      expected[i] = (romou_file){NULL, data, tensor.bytes};
      continue;
    }
    if (memcmp(data, expected[i].data, tensor.bytes) != 0) return printf("other outputs\n"), 1;
    free(data);
  }
  return 0;
}

static int run_all(int argc, char** argv) {
  romou_file expected[MOST] = {{0}};
  romou_model* model = NULL;
  if (told("open", romou_open(argv[2], NULL, &model)) || run(model, argv + 4, 0, expected) || run(model, argv + 4, 1, expected) || run(model, argv + 4, 2, expected) ||
      run(model, argv + 4, 2, expected) || run(model, argv + 4, 0, expected)) {
    return 1;
  }
  const char* about = romou_about(model);
  char variant[64] = "", kernels[128], weights[128];
  if (sscanf(about, "{\"variant\":\"%63[^\"]", variant) != 1) return 1;
  printf("about: %s\n", about);
  romou_close(model);
  snprintf(kernels, sizeof kernels, "%s/model.so", variant);
  snprintf(weights, sizeof weights, "%s/weights.bin", variant);
  const romou_file files[] = {read_file(argv[2], "model.json"), read_file(argv[2], kernels), read_file(argv[2], weights)};
  const romou_options options = {variant, NULL};
  if (told("open_memory", romou_open_memory(files, 3, &options, &model))) return 1;
  for (int i = 0; i < 3; ++i) {
    memset((void*)files[i].data, 0x55, files[i].bytes); /* nobody may read it any more */
    free((void*)files[i].data);
  }
  if (run(model, argv + 4, 1, expected)) return 1;
  romou_close(model);
  for (int i = 0; i < MOST && expected[i].data != NULL; ++i) {
    char path[4096];
    snprintf(path, sizeof path, "%s/output%d.bin", argv[3], i);
    FILE* file = fopen(path, "wb");
    if (file == NULL || fwrite(expected[i].data, 1, expected[i].bytes, file) != expected[i].bytes || fclose(file) != 0) return 2;
    free((void*)expected[i].data);
  }
  (void)argc;
  return 0;
}

static int call_wrongly(const char* folder) {
  char data[8] = {0};
  romou_tensor tensor;
  romou_model *model = NULL, *other = (romou_model*)data;
  const romou_options unknown = {"nonesuch", NULL};
  const romou_file unnamed = {NULL, data, 8}, lost = {"x", NULL, 8};
  told("open NULL", romou_open(NULL, NULL, &model));
  told("open to NULL", romou_open(folder, NULL, NULL));
  told("open unknown", romou_open(folder, &unknown, &other));
  if (other != NULL) return 1; /* a model that was not opened */
  told("open nothing", romou_open_memory(NULL, 0, NULL, &model));
  told("open no files", romou_open_memory(NULL, 1, NULL, &model));
  told("open unnamed", romou_open_memory(&unnamed, 1, NULL, &model));
  told("open lost", romou_open_memory(&lost, 1, NULL, &model));
  if (told("open", romou_open(folder, NULL, &model))) return 1;
  told("input 99", romou_input(model, 99, &tensor));
  told("input to NULL", romou_input(model, 0, NULL));
  told("output of NULL", romou_output(NULL, 0, &tensor));
  told("run unset", romou_run(model));
  romou_input(model, 0, &tensor);
  told("set unknown", romou_set(model, "nonesuch", data, 8));
  told("set NULL", romou_set(model, NULL, data, 8));
  told("set no data", romou_set(model, tensor.name, NULL, tensor.bytes));
  told("set size", romou_set(model, tensor.name, data, 8));
  romou_output(model, 0, &tensor);
  void* place = NULL;
  told("map early", romou_map(model, tensor.name, &place));
  told("map unknown", romou_map(model, "nonesuch", &place));
  told("map to NULL", romou_map(model, tensor.name, NULL));
  told("unmap unknown", romou_unmap(model, "nonesuch"));
  told("get early", romou_get(model, tensor.name, data, tensor.bytes));
  told("get size", romou_get(model, tensor.name, data, 8));
  told("get unknown", romou_get(model, "nonesuch", data, 8));
  told("run NULL", romou_run(NULL));
  printf("counts: %zu %zu '%s'\n", romou_input_count(NULL), romou_output_count(NULL), romou_about(NULL));
  romou_close(model);
  romou_close(NULL);
  return 0;
}

static romou_model* open_in_memory(const char* folder) {
  const romou_file files[] = {read_file(folder, "model.json"), read_file(folder, "cpu/model.so"), read_file(folder, "cpu/weights.bin")};
  romou_model* model = NULL;
  if (romou_open_memory(files, 3, NULL, &model) != ROMOU_OK) told("open_memory", ROMOU_FAILED);
  for (int i = 0; i < 3; ++i) free((void*)files[i].data);
  return model;
}

static romou_model* open_by_link(const char* link, const char* folder) {
  romou_model* model = NULL;
  unlink(link);
  if (symlink(folder, link) != 0 || romou_open(link, NULL, &model) != ROMOU_OK) told("open", ROMOU_FAILED);
  return model;
}

static void print_all(const char* step, romou_model** models) {
  printf("%s:", step);
  for (int i = 0; i < MOST; ++i) {
    float numbers[32];
    for (int k = 0; k < 32; ++k) numbers[k] = -1;
    romou_tensor tensor;
    if (models[i] == NULL) continue;
    for (size_t input = 0; romou_input(models[i], input, &tensor) == ROMOU_OK; ++input) romou_set(models[i], tensor.name, numbers, sizeof numbers);
    if (romou_run(models[i]) != ROMOU_OK) told("run", ROMOU_FAILED);
    romou_output(models[i], 0, &tensor);
    if (romou_get(models[i], tensor.name, numbers, sizeof numbers) != ROMOU_OK) told("get", ROMOU_FAILED);
    printf(" %g", numbers[0]);
  }
  printf("\n");
}

static int open_several(const char* link, const char* a, const char* b) {
  romou_model* models[MOST] = {open_in_memory(a), open_in_memory(b), open_in_memory(a)};
  print_all("a b a", models);
  romou_close(models[0]);
  models[0] = open_in_memory(b);
  print_all("b b a", models);
  romou_close(models[2]);
  romou_close(models[1]);
  models[1] = open_in_memory(a);
  models[2] = open_by_link(link, a);
  models[3] = open_by_link(link, b);
  models[4] = open_by_link(link, a);
  print_all("b a, by link a b a", models);
  for (int i = 0; i < MOST; ++i) romou_close(models[i]);
  return 0;
}

int main(int argc, char** argv) {
  romou_model* model = NULL;
  if (argc > 4 && strcmp(argv[1], "run") == 0) return run_all(argc, argv);
  if (argc == 5 && strcmp(argv[1], "several") == 0) return open_several(argv[2], argv[3], argv[4]);
  if (argc == 3 && strcmp(argv[1], "errors") == 0) return call_wrongly(argv[2]);
  if (argc == 3 && strcmp(argv[1], "open") == 0) told("open", romou_open(argv[2], NULL, &model));
  romou_close(model);
  return argc < 3;
}
